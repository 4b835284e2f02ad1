"""The site's commands, and which way each action takes to the machines."""

import json
import shlex
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from waiting import is_alive, until

from holdfast.control.actions import ControlAction
from holdfast.control.cluster import NodeView, RunView
from holdfast.control.decision import ActionPrice, ControlDecision
from holdfast.control.policy import ControlPolicy, SiteCommands
from holdfast.control.seeing import ActionOrder, Answered, MachinesView
from holdfast.record.errors import HoldfastError
from holdfast.schedulers.live_runs import LiveRuns
from holdfast.schedulers.machines import ClusterMachines
from holdfast.schedulers.scheduler import UNTOLD, DrainCause
from holdfast.schedulers.site import OUTPUT_BYTES_MAX, SiteAnswer, filled, run_command, told

PROVEN = [
    {"name": name, "value": 1.0, "ok": True}
    for name in ("gpu0.product", "gpu0.differing", "gpu0.wrong", "kernel.faults")
]
"""What a check must have measured of a node that was drained for `gpu-fault`."""
FREE = ActionPrice(gpu_hours=0, usd=0)
RIGID = RunView(name="pretrain", gpus=8, jobs=("7",))
ELASTIC = RunView(name="pretrain", gpus=8, is_elastic=True, can_move=True, jobs=("7",))


class Written:
    """A scheduler that writes down what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def look(self, now_ns: int) -> MachinesView:
        return MachinesView(nodes={})

    def drain(self, node: str, reason: str, cause: DrainCause = UNTOLD) -> None:
        assert cause.rule == "gpu-fault"
        self.asked.append(("drain", node, reason))

    def clear(self, node: str, jobs: tuple[str, ...]) -> str:
        self.asked.append(("clear", node, *jobs))
        return "cleared"

    def resume(self, node: str, reason: str) -> None:
        self.asked.append(("resume", node, reason))

    def requeue(self, job: str) -> str:
        self.asked.append(("requeue", job))
        return "evicted 1 pod; left: b, by its disruption budget"


class WrittenMoves:
    """Live runs, on the same page."""

    def __init__(self, written: Written) -> None:
        self._asked = written.asked

    def reaches(self, run: str) -> bool:
        return run == "pretrain"

    def migrate(self, run: str, target: str) -> Answered:
        return self._moved("migrate", run, target)

    def drain(self, run: str, node: str) -> Answered:
        return self._moved("leave", run, node)

    def restore(self, run: str, node: str) -> Answered:
        return self._moved("return", run, node)

    def _moved(self, *words: str) -> Answered:
        self._asked.append(words)
        return Answered(ok=True, outcome="moved")


def order(action: ControlAction, run: RunView | None = None, **fields: Any) -> ActionOrder:
    decision = ControlDecision(
        action=action,
        target="n17",
        run="pretrain",
        reason="go on; $(reboot)",
        evidence=(),
        price=FREE,
        alternatives=(),
        mode="act",
        rule="gpu-fault",
        incidents=(),
        member="n17.0",
    )
    node = NodeView(name="n17", is_out=True, reason="holdfast: mine", jobs=("7", "8"))
    usual: dict[str, Any] = {"reason": "holdfast: mine", "node": node, "is_long_check": False, "part": "gpu"}
    return ActionOrder(decision=decision, run=run, **(usual | fields))


def passing(checks: object = PROVEN, *, ok: bool = True) -> str:
    """A command of the site that finds this."""
    said = json.dumps({"ok": ok, "checks": checks})
    return shlex.join(["bash", "-c", f"echo '{said}'; {'true' if ok else 'false'}"])


def machines(written: Written, *, leads: bool = True, **commands: Any) -> ClusterMachines:
    policy = ControlPolicy(scheduler="slurm", commands=SiteCommands(**commands))
    return ClusterMachines(policy, written, WrittenMoves(written), lambda: leads)


@pytest.mark.parametrize(
    ("action", "run", "asked"),
    [
        ("watch", None, []),
        ("drain-when-done", None, [("drain", "n17", "holdfast: mine")]),
        ("drain-now", RIGID, [("drain", "n17", "holdfast: mine"), ("clear", "n17", "7")]),
        ("drain-now", ELASTIC, [("drain", "n17", "holdfast: mine"), ("leave", "pretrain", "n17")]),
        ("requeue", ELASTIC, [("requeue", "7")]),
        ("migrate", ELASTIC, [("migrate", "pretrain", "n17")]),
        ("replace", ELASTIC, [("migrate", "pretrain", "n17.0")]),
        ("call-a-person", None, []),
        (
            "restore",
            None,
            [("resume", "n17", "holdfast: mine"), ("return", "pretrain", "n17")],
        ),
    ],
)
def test_each_action_takes_its_way(
    action: ControlAction, run: RunView | None, asked: list[tuple[str, ...]]
) -> None:
    written = Written()
    assert machines(written, check=passing()).do(order(action, run)).ok
    assert written.asked == asked


def test_what_is_told_of_a_requeue_is_what_the_scheduler_did() -> None:
    answer = machines(Written()).do(order("requeue", ELASTIC))
    assert answer.outcome == "7: evicted 1 pod; left: b, by its disruption budget"


def test_a_run_that_can_move_leaves_the_node_and_is_not_requeued() -> None:
    written = Written()
    answered = machines(written).do(order("drain-now", ELASTIC))
    assert answered.outcome == "drained; moved"
    assert [one[0] for one in written.asked] == ["drain", "leave"]


def test_a_node_whose_check_fails_or_whose_leader_changed_stays_out() -> None:
    written = Written()
    assert not machines(written, check="false {node}").do(order("restore")).ok
    assert not machines(written, check=passing(), leads=False).do(order("restore")).ok
    assert written.asked == []


@pytest.mark.parametrize(
    ("part", "checks", "owed"),
    [
        ("nvlink", PROVEN, "gpus.reduce, gpus.reduce_wrong"),
        ("gpu", PROVEN[:3], "kernel.faults"),
        ("gpu", [*PROVEN[:3], {"name": "kernel.faults", "value": None, "ok": True}], "kernel.faults"),
        ("gpu", [*PROVEN, {"name": "gpu1.product", "value": 1, "ok": True}], "gpu1.differing, gpu1.wrong"),
        ("disk", [], "disk.write, disk.read"),
    ],
)
def test_a_check_that_did_not_measure_what_the_node_was_drained_for_is_not_a_pass(
    part: str, checks: object, owed: str
) -> None:
    written = Written()
    done = machines(written, check=passing(checks)).do(order("restore", part=part))
    assert done == Answered(
        ok=False,
        outcome=f"not proven: drained for {part}, and its check has no good figure of {owed}"
        "; the policy's command does not have --for {part}",
    )
    told = f"{passing(checks)} {{part}}"
    assert machines(written, check=told).do(order("restore", part=part)).outcome.endswith(owed)
    assert written.asked == []


def test_a_check_that_could_not_try_something_differs_from_one_that_found_it_bad() -> None:
    untried = {"name": "gpus.reduce", "value": None, "ok": False, "untried": True, "note": "one GPU"}
    bad = {"name": "disk.write", "value": 3, "ok": False}
    for checks, is_proven in (([*PROVEN, untried], False), ([*PROVEN, untried, bad], True)):
        done = machines(Written(), check=passing(checks, ok=False)).do(order("restore", part="nvlink"))
        assert not done.ok
        assert done.outcome.startswith("not proven: ") is not is_proven


@pytest.mark.parametrize(("command", "code"), [("bash -c 'exit 2'", 2), ("bash -c no-such-command", 127)])
def test_a_check_command_that_is_wrong_does_not_speak_against_a_node(command: str, code: int) -> None:
    done = machines(Written(), check=command).do(order("restore"))
    assert not done.ok
    assert done.outcome.startswith("not proven: its check could not be run: ")
    assert str(code) in done.outcome


def test_a_check_that_failed_for_another_part_is_not_a_pass() -> None:
    """As where the command names a part of its own with --for."""
    untried = {"name": "fabric.out", "value": None, "ok": False, "untried": True, "note": "busy"}
    written = Written()
    done = machines(written, check=passing([*PROVEN, untried], ok=False)).do(order("restore"))
    assert done == Answered(ok=False, outcome="1 of 5 checks are not good: fabric.out busy")
    assert written.asked == []


def test_what_ssh_says_beside_the_figures_does_not_hide_them() -> None:
    said = json.dumps({"ok": True, "checks": PROVEN}, indent=2)
    noise = "Warning: Permanently added 'n17'.", "{a banner}", said, "Connection to n17 closed."
    check = shlex.join(["printf", "%s\\n", *noise])
    written = Written()
    assert machines(written, check=check).do(order("restore")).ok
    assert ("resume", "n17", "holdfast: mine") in written.asked


def test_what_the_node_was_drained_for_is_told_to_the_check() -> None:
    done = machines(Written(), check="bash -c 'echo for {part}; false'").do(order("restore", part="fabric"))
    assert done == Answered(ok=False, outcome="exit code 1: for fabric")


def test_a_node_that_failed_before_is_checked_longer() -> None:
    for is_long, said in ((False, "short"), (True, "long")):
        asked = order("restore", is_long_check=is_long)
        check, long_check = (f"bash -c 'echo {word}; false'" for word in ("short", "long"))
        assert said in machines(Written(), check=check, long_check=long_check).do(asked).outcome


def test_what_cannot_be_done_here_is_not_offered() -> None:
    bare = ClusterMachines(ControlPolicy(), None, LiveRuns(Path("/nonexistent")), lambda: True)
    assert not bare.can & {"drain-now", "drain-when-done", "restore", "reboot", "requeue", "checkpoint"}
    assert not bare.reaches("pretrain")
    full = machines(Written(), check="x", reboot="x", checkpoint="x")
    assert full.can >= {"drain-now", "restore", "reboot", "requeue", "checkpoint"}


def test_what_is_filled_in_stays_one_word_and_reaches_no_shell(tmp_path: Path) -> None:
    words = filled("page '{node} is bad' {reason}", {"node": "n17", "reason": "$(touch x); rm -r y"})
    assert words == ["page", "n17 is bad", "$(touch x); rm -r y"]
    answered = machines(Written(), person="echo {node} {reason}").do(order("call-a-person"))
    assert answered.outcome == "exit code 0: n17 go on; $(reboot)"


def test_a_scheduler_that_reboots_is_asked_where_the_site_has_no_command() -> None:
    asked: list[tuple[str, str]] = []

    def reboot(node: str, why: str) -> str:
        asked.append((node, why))
        return "asked for it"

    for command, outcome in (("", "asked for it"), ("echo by hand", "exit code 0: by hand")):
        policy = ControlPolicy(commands=SiteCommands(reboot=command))
        made = ClusterMachines(policy, Written(), WrittenMoves(Written()), lambda: True, reboot)
        assert "reboot" in made.can
        assert made.do(order("reboot")) == Answered(ok=True, outcome=outcome)
    assert asked == [("n17", "go on; $(reboot)")]


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    begun = time.monotonic()
    answer = run_command(["bash", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; wait"], 1.0)
    assert answer.code is None
    assert told(answer) == "it took too long and was killed"
    assert time.monotonic() - begun < 60
    child = int((tmp_path / "pid").read_text())
    until(lambda: not is_alive(child))


def test_what_a_command_says_is_bounded_while_it_is_read() -> None:
    tracemalloc.start()
    try:
        loud = run_command(["bash", "-c", "head -c 64M /dev/zero; echo; echo the end"], 300.0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(loud.output) == OUTPUT_BYTES_MAX
    assert most < 8 * OUTPUT_BYTES_MAX
    assert told(loud) == "exit code 0: the end"


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(HoldfastError, match="cannot be run"):
        run_command(["/no/such/command"], 1.0)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (b'{"ok": true, "checks": [{"name": "a", "ok": true}]}', "all 1 checks are good"),
        (
            b'{"ok": false, "checks": [{"name": "clock.error", "note": "nobody keeps it", "ok": false}]}',
            "1 of 1 checks are not good: clock.error nobody keeps it",
        ),
        (b"first\nlast \x1b[31mline\n", "exit code 1: last \\x1b[31mline"),
        (b"", "exit code 1"),
    ],
)
def test_what_a_check_said_is_one_line(output: bytes, sentence: str) -> None:
    assert told(SiteAnswer(code=1, output=output)) == sentence


def test_a_name_that_is_an_option_reaches_no_command_that_does_something(tmp_path: Path) -> None:
    strange = order("reboot")
    strange = msgspec.structs.replace(
        strange, decision=msgspec.structs.replace(strange.decision, target="-rf {run}")
    )
    done = machines(Written(), reboot=f"touch {tmp_path}/done {{node}}").do(strange)
    assert not done.ok
    assert "'-rf {run}' is not a safe name" in done.outcome
    assert not (tmp_path / "done").exists()


def test_a_node_is_back_though_its_run_does_not_answer() -> None:
    class Deaf(WrittenMoves):
        def restore(self, run: str, node: str) -> Answered:
            raise HoldfastError("Nobody answers.")

    written = Written()
    policy = ControlPolicy(scheduler="slurm", commands=SiteCommands(check=passing()))
    done = ClusterMachines(policy, written, Deaf(written), lambda: True).do(order("restore"))
    assert done.ok
    assert done.outcome.endswith("the run did not take it: Nobody answers.")
