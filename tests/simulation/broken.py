"""Deliberately broken rules: the checks must find each of them, or they prove nothing.

A broken rule of the membership is a step function around the real one, which changes its events or its
effects. A broken rule of members is a script of its own.
"""

from collections.abc import Sequence

import msgspec

from holdfast.run.happenings import Close, Effect, FromMember, Happening, ToMembers, ToNode
from holdfast.run.membership import advance
from holdfast.run.state import RunState
from holdfast.run.wire import Announced, Committed, Regrouped, StopWorker
from holdfast.train.shortage import AgreedSkips
from tests.simulation.member import Script, Stand


def hears_one_for_all(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """A generation is formed when the first member has regrouped."""
    generation = state.generations.announced
    if isinstance(event, FromMember) and isinstance(event.message, Regrouped) and generation is not None:
        return _for_all(state, event.message, generation.members, now_ns)
    return advance(state, event, now_ns)


def counts_one_for_all(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """A step is the run's when the first member has committed it."""
    generation = state.generations.formed
    if isinstance(event, FromMember) and isinstance(event.message, Committed) and generation is not None:
        return _for_all(state, event.message, generation.members, now_ns)
    return advance(state, event, now_ns)


def has_what_one_has(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """The run has a step when the first member has reported it, and does not record it."""
    effects = advance(state, event, now_ns)
    versions = [member.version for member in state.roster.members.values()]
    state.progress.step = max([state.progress.step, *versions])
    return effects


def _for_all(
    state: RunState, message: Regrouped | Committed, names: Sequence[str], now_ns: int
) -> tuple[Effect, ...]:
    told = [FromMember(name, msgspec.structs.replace(message, member=name)) for name in names]
    return tuple(effect for event in told for effect in advance(state, event, now_ns))


def heeds_the_fenced(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """A member that was given up comes back by sending a message."""
    if isinstance(event, FromMember) and (member := state.roster.members.get(event.member)) is not None:
        member.is_lost = False
    return advance(state, event, now_ns)


def ends_no_member(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """A member that is given up is neither killed nor cut off, unless the whole run ends."""
    effects = advance(state, event, now_ns)
    if state.ending.closing is not None:
        return effects
    return tuple(
        effect
        for effect in effects
        if not (isinstance(effect, ToNode) and isinstance(effect.message, StopWorker))
        and not (isinstance(effect, Close) and effect.role == "worker")
    )


def leaves_out_the_last(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """After a loss the last of the survivors is not told of the next generation, nor in it."""
    effects = advance(state, event, now_ns)
    if state.policy.mesh.ranks > 1:
        return effects
    return tuple(_shortened(effect) if isinstance(effect, ToMembers) else effect for effect in effects)


def _shortened(effect: ToMembers) -> ToMembers:
    message = effect.message
    if not isinstance(message, Announced) or message.number == 1 or len(message.members) < 2:
        return effect
    members = message.members[:-1]
    return ToMembers(
        tuple(name for name in effect.members if name != message.members[-1]),
        msgspec.structs.replace(message, members=members),
    )


def forgets_the_unheard(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """In a sharded model, only members that have reported a step count as having their part of the state."""
    formed = state.generations.formed
    members = (
        []
        if formed is None
        else [state.roster.members[name] for name in formed.members if name in state.roster.members]
    )
    unheard = [one for one in members if not one.version] if any(one.version for one in members) else []
    for member in unheard:
        member.version = -1
    try:
        return advance(state, event, now_ns)
    finally:
        for member in unheard:
            member.version = max(member.version, 0)


class StaleClaims(Script):
    """Counts lanes that a member has computed of an earlier step."""

    def claims(self, stand: Stand) -> frozenset[int]:
        return stand.held


class BeginsAnew(Script):
    """Begins at the start, although there is a checkpoint."""

    def checkpoint(self) -> tuple[int, int, str]:
        super().checkpoint()
        return 0, 0, ""


class FreeSkips(Script):
    """Skips lanes for which the present members have no room, although a member may have committed the step
    differently.
    """

    def skips(self, stands: Sequence[Stand]) -> AgreedSkips | None:
        return None
