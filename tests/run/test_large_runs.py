"""Problems that only show in large or long runs and that the twin found: groups that take minutes to form, a
coordinator that was held up, a hang while a newcomer waits for its boundary.
"""

import pytest

from holdfast.record.events import GenerationOpened, MemberLost
from holdfast.run import hangs, membership
from holdfast.run.happenings import Begun, FromMember, FromNode, Record, Tick
from holdfast.run.state import RunState
from holdfast.run.waits import FORM_S_MAX, HUNG_S_MIN, LEASE_S_MIN, LOCATE_S, ns
from holdfast.run.wire import (
    AgentJoined,
    Committed,
    MemberBeat,
    NodeBeat,
    Regrouped,
    Setup,
    WorkerJoined,
    WorkerReady,
    WorkerStarted,
)

pytestmark = pytest.mark.slow

SETUP = Setup(lanes=64, seed=0, threads=1, torch="", device="", deterministic=True, model="", parts={})
READY_S = 30.0


def ready(size: int, *, nodes_max: int | None = None) -> RunState:
    """This many members at `protect()`, their first generation announced at 5 s."""
    policy = membership.RunPolicy(run="r", nodes_min=1, nodes_max=nodes_max or size, warm=0)
    state = membership.initial(policy, 0)
    membership.advance(state, Begun(), 0)
    for number in range(size):
        join(state, number, 0)
    membership.advance(state, Tick(), ns(1.5))
    for number in range(size):
        get_ready(state, number, ns(5))
    assert state.generations.announced is not None
    return state


def join(state: RunState, number: int, now_ns: int) -> None:
    joined = AgentJoined(node=f"n{number}", slots=1, address="", port=1)
    membership.advance(state, FromNode(f"n{number}", joined), now_ns)


def get_ready(state: RunState, number: int, now_ns: int) -> None:
    name = f"n{number}.0"
    membership.advance(state, FromNode(f"n{number}", WorkerStarted(member=name, pid=1)), now_ns)
    membership.advance(state, FromMember(name, WorkerJoined(member=name, pid=1)), now_ns)
    told = WorkerReady(member=name, setup=SETUP, took_s=READY_S)
    membership.advance(state, FromMember(name, told), now_ns)


def regroup(state: RunState, now_ns: int) -> list[object]:
    assert state.generations.announced is not None
    effects: list[object] = []
    for name in state.generations.announced.members:
        message = Regrouped(
            member=name,
            generation=state.generations.announced.number,
            version=state.progress.step,
            lanes=(),
            steps_total=9,
            parts_s={},
        )
        effects += membership.advance(state, FromMember(name, message), now_ns)
    return effects


def commit(state: RunState, step: int, now_ns: int) -> None:
    assert state.generations.formed is not None
    for name in state.generations.formed.members:
        message = Committed(member=name, generation=state.generations.formed.number, step=step, loss=None)
        membership.advance(state, FromMember(name, message), now_ns)


def lost(effects: object) -> list[str]:
    assert isinstance(effects, list | tuple)
    events = [effect.event for effect in effects if isinstance(effect, Record)]
    return [event.subject for event in events if isinstance(event, MemberLost)]


def test_a_first_group_may_take_minutes_to_form() -> None:
    state = ready(3)
    assert lost(membership.advance(state, Tick(), ns(5 + FORM_S_MAX / 2))) == []
    opened = [
        effect.event
        for effect in regroup(state, ns(6 + FORM_S_MAX / 2))
        if isinstance(effect, Record) and isinstance(effect.event, GenerationOpened)
    ]
    assert [len(event.members) for event in opened] == [3]


def test_a_coordinator_that_was_held_up_hears_the_others_before_it_gives_them_up() -> None:
    state = ready(3)
    regroup(state, ns(6))
    commit(state, 1, ns(7))
    late_ns = ns(7 + LEASE_S_MIN + 100)
    assert lost(membership.advance(state, Tick(), late_ns)) == []
    # No node sends anything until the leases end: they are gone.
    gone: list[str] = []
    for _ in range(100):
        due_ns = membership.deadline(state)
        assert due_ns is not None
        assert due_ns > late_ns
        gone += lost(membership.advance(state, Tick(), due_ns))
        if gone:
            break
    assert len(gone) == 3


def test_a_member_that_hangs_before_a_boundary_is_lost_alone() -> None:
    state = ready(2, nodes_max=3)
    regroup(state, ns(6))
    commit(state, 1, ns(7))
    join(state, 2, ns(8))
    membership.advance(state, Tick(), ns(8))
    get_ready(state, 2, ns(9))
    assert state.generations.announced is not None
    assert state.generations.announced.at_boundary
    for name, stage in (("n0.0", "reduce"), ("n1.0", "forward")):
        membership.advance(state, FromMember(name, MemberBeat(member=name, step=2, stage=stage)), ns(10))  # type: ignore[arg-type]
    assert state.generations.formed is not None
    waited_ns = state.observed.form_wait_ns + hangs.bound_ns(state, state.generations.formed) + ns(LOCATE_S)
    assert waited_ns >= ns(HUNG_S_MIN)
    gone: list[str] = []
    for second in range(10, 2 + (ns(9) + waited_ns) // ns(1)):
        for name in ("n0", "n1", "n2"):
            membership.advance(state, FromNode(name, NodeBeat(node=name)), ns(second))
        for name, stage in (("n0.0", "reduce"), ("n1.0", "forward"), ("n2.0", "waiting")):
            beat = MemberBeat(member=name, step=2, stage=stage)  # type: ignore[arg-type]
            membership.advance(state, FromMember(name, beat), ns(second))
        gone += lost(membership.advance(state, Tick(), ns(second)))
    assert gone == ["n1.0"]


def test_steps_that_are_reported_together_are_not_one_long_step() -> None:
    """A coordinator that was held up reads many reports at once; this must not lengthen its waits."""
    state = ready(3)
    regroup(state, ns(6))
    commit(state, 1, ns(16))
    commit(state, 101, ns(916))
    assert state.observed.first_ns_max == ns(10)
    assert state.observed.step_ns_max == ns(9)
    assert state.observed.hung_ns == 30 * ns(9)
