"""Why a member is stuck, by the looks at it: each kind, and that no member is blamed too soon."""

import pytest

from holdfast.run.explaining import FAULTS, LOOKS_MIN, Explanation, HangKind, Watched, explain
from holdfast.run.kernel_view import KernelView
from holdfast.run.stacks import Stack, StackFrame
from holdfast.run.wire import Located, Stage

SECOND = 10**9
LOOK_S = 3
PATIENCE_S = 12.0
MAIN = StackFrame("/home/me/train.py", 90, "<module>", is_own=True, source="main()")
OWN = StackFrame("/home/me/train.py", 30, "load", is_own=True, source="sock.recv(1)")
LOCKING = StackFrame("/home/me/train.py", 40, "save", is_own=True, source="with second:")
TORCH = StackFrame("/v/site-packages/torch/nn/modules/linear.py", 20, "forward")
LOADER = StackFrame("/v/site-packages/torch/utils/data/dataloader.py", 700, "__next__")
GLOO = StackFrame("/v/site-packages/torch/distributed/distributed_c10d.py", 2000, "recv")


def watched(
    *stacks: Stack,
    looks: int = 5,
    share: float = 0.0,
    bytes_per_s: int = 0,
    moves: bool = False,
    **seen: object,
) -> Watched:
    """A member after several looks. share: of a processor that it uses. moves: its stack changes."""

    def at(number: int) -> Located:
        view = KernelView(
            cpu_s=share * LOOK_S * number,
            moved_bytes=bytes_per_s * LOOK_S * number,
            **{"state": "S", **seen},  # type: ignore[arg-type]
        )
        caller = StackFrame("/home/me/train.py", 50 + number if moves else 50, "step", is_own=True)
        return Located(
            member="", place="", stacks=tuple((*stack, caller, MAIN) for stack in stacks), seen=view
        )

    found = Watched.begun(at(0), 0)
    for number in range(1, looks):
        found = found.then(at(number), number * LOOK_S * SECOND)
    return found


def explained(stage: Stage = "forward", **members: Watched) -> Explanation:
    return explain(members, dict.fromkeys(members, stage), [*members], PATIENCE_S)


@pytest.mark.parametrize(
    ("one", "kind", "is_certain"),
    [
        (watched((OWN,), share=1.0), "loop", True),
        (watched((OWN,), share=0.2), "loop", False),  # it had little of a processor so far
        (watched((OWN,), share=0.01, state="R"), "loop", False),  # next to nothing
        (watched((OWN,), share=0.01, waits_for="lock", runs_threads=True), "loop", False),
        (watched((TORCH, OWN), share=1.0), "busy", False),
        (watched((OWN,), share=1.0, moves=True), "busy", False),
        (watched((OWN,), waits_for="sleep"), "idle", True),
        (watched((OWN,), waits_for="sleep", moves=True), "idle", False),
        (watched((OWN,), waits_for="connection"), "answer", True),
        (watched((OWN,), waits_for="connection", bytes_per_s=100_000), "busy", False),
        (watched((LOADER, OWN), waits_for="poll"), "data", True),
        (watched((GLOO, OWN), waits_for="lock"), "answer", True),
        (watched((OWN,), waits_for="lock"), "lock", True),
        (watched((LOCKING,), (LOCKING,), waits_for="lock"), "lock", True),
        (watched((OWN,), state="D"), "device", False),
        (watched((OWN,), looks=LOOKS_MIN - 1), "unknown", False),
    ],
)
def test_each_kind_is_told_apart(one: Watched, kind: HangKind, is_certain: bool) -> None:
    found = explained(a=one)
    assert (found.kind, found.culprits, found.is_certain) == (kind, ("a",), is_certain)
    assert (found.sentence == "") == (kind == "unknown")


def test_between_steps_only_a_deadlock_is_certain() -> None:
    assert not explained("script", a=watched((OWN,), share=1.0)).is_certain
    assert not explained("script", a=watched((OWN,), waits_for="connection")).is_certain
    assert explained("script", a=watched((LOCKING,), (LOCKING,), waits_for="lock")).is_certain


def test_a_member_in_the_data_helpers_waits_for_data() -> None:
    assert explained("data", a=watched((OWN,), waits_for="connection")).kind == "data"


def test_of_a_connection_between_two_members_both_ends_are_known() -> None:
    ends = ("10.0.0.1:40", "10.0.0.2:50")
    found = explained(
        "script",
        a=watched((OWN,), waits_for="connection", ends=ends),
        b=watched((OWN,), waits_for="connection", ends=ends[::-1]),
        c=watched((OWN,), waits_for="connection", ends=("10.0.0.3:1", "10.0.0.1:2")),
    )
    assert (found.kind, found.culprits, found.is_certain) == ("members", ("a", "b"), True)
    assert found.sentence.startswith(
        "a and b wait for each other: a waits at train.py:30 in load(): `sock.recv(1)`"
    )


def test_a_member_that_waits_for_one_in_a_loop_is_not_to_blame() -> None:
    found = explained(a=watched((OWN,), waits_for="connection"), b=watched((OWN,), share=1.0))
    assert (found.kind, found.culprits) == ("loop", ("b",))


def test_no_member_is_blamed_if_nothing_was_seen() -> None:
    assert explain({}, {}, ["a"], PATIENCE_S) == Explanation()
    assert FAULTS["unknown"] == "no progress"
