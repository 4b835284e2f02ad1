"""Record at intervals how fast a generation's members are: how long its steps could have taken.

A run that is slow from its first step to its last has no faster step to compare with. But its members know
how long each of them worked and how long it waited for the others, and report that in their heartbeats.
"""

import msgspec

from holdfast.record.events import MembersTimed
from holdfast.run.state import Generation, Member, RunState
from holdfast.run.waits import ns
from holdfast.run.wire import Spent

INTERVAL_S_MIN = 10.0
INTERVAL_SHARE = 8
"""The time between two such events is at least the run's age divided by this: a month has about a hundred."""
STEPS_MIN = 4
"""The mean of fewer steps says little."""
QUICK_PART = 4
"""The slowest of the fastest quarter shows how long a step takes. The fastest member of all is not used,
because its machine may be better than the others."""


class _Mean(msgspec.Struct, frozen=True, kw_only=True):
    """A member's mean times in a step. work_s: the part that grows with its lanes."""

    steps: int
    lanes: int
    step_s: float
    checkpoint_s: float
    work_s: float
    exchange_s: float

    @property
    def own_s(self) -> float:
        return self.work_s + self.exchange_s

    def own_s_with(self, lanes: int) -> float:
        return self.work_s * lanes / self.lanes + self.exchange_s


def begin(state: RunState, generation: Generation) -> None:
    """Count the members' times from here, after the generation formed."""
    state.progress.pace_from = {name: state.roster.members[name].spent[0] for name in generation.members}
    state.progress.pace_due_ns = state.now_ns + _interval_ns(state)


def note(state: RunState, *, is_last: bool = False) -> None:
    """Record how fast the members were, if that is due. is_last: the run is complete."""
    generation = state.generations.formed
    if generation is None or (state.now_ns < state.progress.pace_due_ns and not is_last):
        return
    state.progress.pace_due_ns = state.now_ns + _interval_ns(state)
    present = [
        member for name in generation.members if (member := state.roster.members.get(name)) is not None
    ]
    means = [_mean(member, state.progress.pace_from.get(member.name, Spent())) for member in present]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(generation.members) or len(known) < 2:
        return
    state.progress.pace_from = {member.name: member.spent[0] for member in present}
    _record(state, known, present)


def _record(state: RunState, means: list[_Mean], members: list[Member]) -> None:
    share = -(-sum(mean.lanes for mean in means) // len(means))
    quick_s = sorted(mean.own_s_with(share) for mean in means)[(len(means) - 1) // QUICK_PART]
    slowest_s = max(mean.own_s for mean in means)
    # Compare for equal work: a member that took over lanes of a slow one takes longer, too.
    _, slowest = max(
        (mean.own_s_with(share), member.name) for mean, member in zip(means, members, strict=True)
    )
    step_s = sum(mean.step_s for mean in means) / len(means) - max(mean.checkpoint_s for mean in means)
    state.outbox.record(
        MembersTimed(
            id="",
            occurred_ns=state.now_ns,
            subject=slowest,
            steps=min(mean.steps for mean in means),
            step_ns=max(0, ns(step_s)),
            quick_ns=ns(quick_s),
            slowest_ns=ns(slowest_s),
        )
    )


def _mean(member: Member, before: Spent) -> _Mean | None:
    last = member.spent[0]
    steps = last.steps - before.steps
    if steps < STEPS_MIN or not member.lanes:
        return None
    parts_s = {
        part: (getattr(last, f"{part}_s") - getattr(before, f"{part}_s")) / steps
        for part in ("compute", "data", "exchange", "wait", "checkpoint")
    }
    return _Mean(
        steps=steps,
        lanes=len(member.lanes),
        step_s=sum(parts_s.values()),
        checkpoint_s=parts_s["checkpoint"],
        work_s=parts_s["compute"] + parts_s["data"],
        exchange_s=parts_s["exchange"],
    )


def _interval_ns(state: RunState) -> int:
    return max(ns(INTERVAL_S_MIN), (state.now_ns - state.started_ns) // INTERVAL_SHARE)
