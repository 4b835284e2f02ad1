"""How fast members are, as recorded: which member the others wait for, and how often that is recorded."""

from collections.abc import Sequence

from holdfast.record.events import MembersTimed
from holdfast.run import pacing
from holdfast.run.happenings import Record
from holdfast.run.membership import initial
from holdfast.run.state import Generation, Member, RunPolicy, RunState
from holdfast.run.wire import Spent

S = 10**9
MONTH_S = 30 * 86_400
STEPS = 10


def formed(lanes: Sequence[int]) -> RunState:
    """A generation whose members have these numbers of lanes."""
    state = initial(RunPolicy(run="r"), 1000 * S)
    for slot, count in enumerate(lanes):
        name = f"n0.{slot}"
        state.roster.members[name] = Member(
            name=name, node="n0", slot=slot, role="active", started_ns=0, lanes=tuple(range(count))
        )
    names = tuple(state.roster.members)
    state.generations.formed = Generation(
        number=1, members=names, names=frozenset(names), at_boundary=False, opened_ns=state.now_ns
    )
    pacing.begin(state, state.generations.formed)
    return state


def step(state: RunState, computes_s: Sequence[float], *, checkpoint_s: float = 0.0) -> None:
    """Let each compute for this long and wait for the slowest; member 0 also copies for a checkpoint."""
    for number, (member, compute_s) in enumerate(zip(state.roster.members.values(), computes_s, strict=True)):
        last = member.spent[0]
        copies_s = 0.0 if number else checkpoint_s
        spent = Spent(
            steps=last.steps + STEPS,
            compute_s=last.compute_s + STEPS * compute_s,
            checkpoint_s=last.checkpoint_s + STEPS * copies_s,
            exchange_s=last.exchange_s + STEPS * 0.1,
            wait_s=last.wait_s + STEPS * (max(computes_s) - compute_s + checkpoint_s - copies_s),
        )
        member.spent = (spent, last)


def recorded(state: RunState) -> list[MembersTimed]:
    out, state.outbox.effects = state.outbox.effects, []
    events = [effect.event for effect in out if isinstance(effect, Record)]
    return [event for event in events if isinstance(event, MembersTimed)]


def test_the_slowest_is_named_beside_the_quick_ones() -> None:
    state = formed((2, 2, 2, 2))
    step(state, (1.0, 1.1, 5.0, 1.2), checkpoint_s=0.5)
    pacing.note(state, is_last=True)
    (event,) = recorded(state)
    assert event.subject == "n0.2"
    assert event.steps == STEPS
    assert (event.step_ns, event.quick_ns, event.slowest_ns) == (5.1 * S, 1.1 * S, 5.1 * S)


def test_a_member_with_fewer_lanes_is_not_faster() -> None:
    state = formed((3, 3, 2))
    step(state, (3.0, 3.0, 2.0))
    pacing.note(state, is_last=True)
    (event,) = recorded(state)
    assert event.quick_ns == event.slowest_ns == 3.1 * S


def test_a_member_with_lanes_of_a_slow_one_is_not_slow() -> None:
    state = formed((5, 2, 5, 4))
    step(state, (5.2, 4.0, 5.1, 4.0))
    pacing.note(state, is_last=True)
    (event,) = recorded(state)
    assert event.subject == "n0.1"
    assert event.slowest_ns == 5.3 * S


def test_only_the_steps_since_the_last_look_count() -> None:
    state = formed((1, 1))
    step(state, (1.0, 9.0))
    pacing.note(state, is_last=True)
    step(state, (1.0, 1.0))
    pacing.note(state, is_last=True)
    _, event = recorded(state)
    assert event.slowest_ns == 1.1 * S


def test_a_member_by_itself_and_one_that_tells_nothing_are_not_compared() -> None:
    alone, silent = formed((8,)), formed((4, 4))
    step(alone, (1.0,))
    for state in (alone, silent):
        pacing.note(state, is_last=True)
        assert recorded(state) == []


def test_a_month_has_a_bounded_number_of_them() -> None:
    state = formed((1, 1))
    counted = 0
    for now_s in range(0, MONTH_S, 60):
        state.now_ns = (1000 + now_s) * S
        step(state, (1.0, 2.0))
        pacing.note(state)
        counted += len(recorded(state))
    assert 50 < counted < 150
