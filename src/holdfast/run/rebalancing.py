"""How the coordinator acts on the members' pace: it records lanes that they moved, and replaces a member that
is too slow to keep.

Members deal lanes themselves (balance.py), because a step does not pass through the coordinator. Rank 0
reports the findings, which are the same on all members.
"""

from collections.abc import Sequence

from holdfast.record.events import ActionTaken, FaultObserved
from holdfast.run import pacing, replacing
from holdfast.run.balance import SLOW, BalanceFinding
from holdfast.run.state import Generation, RunState
from holdfast.run.wire import Balanced

DATA_SHARE = 0.5
"""If waiting for data is more than this share of a slowdown of all members, data are the reason."""
NAMED_MAX = 4


def heard(state: RunState, message: Balanced) -> bool:
    """Act on rank 0's finding; whether it may require further action."""
    generation, finding = state.generations.formed, message.finding
    if generation is None or message.generation != generation.number:
        return False
    units = _units(state, generation)
    shares = (finding.before, finding.after)
    has_shares = finding.kind in ("moved", "even", "stuck", "slow")
    if not 0 <= finding.member < len(units) or (
        has_shares and any(len(each) != len(units) for each in shares)
    ):
        return False
    unit = units[finding.member]
    match finding.kind:
        case "moved" | "even":
            _moved(state, generation, finding, units)
        case "slow":
            _name(state, finding, unit)
            state.outbox.say(f"{_slow(finding, unit)}: it gets fewer lanes if that lasts", "trouble")
        case "stuck":
            _keep(state, finding, unit, len(units))
        case "floor":
            _give_up(state, finding, unit)
            return True
        case "everyone":
            state.outbox.say(_everyone(finding), "trouble")
        case "everyone_over":
            state.outbox.say("steps are as fast as before again on all members")
    return False


def _units(state: RunState, generation: Generation) -> list[tuple[str, ...]]:
    """The units that have lanes: members or, in a sharded model, replicas."""
    ranks = state.policy.mesh.ranks
    return [generation.members[first : first + ranks] for first in range(0, len(generation.members), ranks)]


def _named(unit: Sequence[str]) -> str:
    return unit[0] if len(unit) == 1 else f"the replica of {unit[0]}"


def _moved(
    state: RunState, generation: Generation, finding: BalanceFinding, units: list[tuple[str, ...]]
) -> None:
    pacing.begin(state, generation)  # earlier measurements were with other lanes
    unit = units[finding.member]
    sentence = _dealt_evenly(finding, unit) if finding.kind == "even" else _dealt(finding, units)
    state.outbox.say(sentence)
    causes: tuple[str, ...] = ()
    if finding.kind == "moved" and finding.times >= SLOW:
        causes = (_name(state, finding, unit),)
    state.outbox.record(
        ActionTaken(
            id="",
            occurred_ns=state.now_ns,
            subject=unit[0],
            action="rebalance",
            reason=sentence,
            causes=causes,
        )
    )


def _name(state: RunState, finding: BalanceFinding, unit: Sequence[str]) -> str:
    """Record the slow member, unless that is already recorded. Return the event's id."""
    member = state.roster.living(unit[0])
    if finding.is_named and member is not None and member.slow_fault:
        return member.slow_fault
    fault = FaultObserved(
        id=f"slow {unit[0]} {state.now_ns}",
        occurred_ns=state.now_ns,
        subject=unit[0],
        fault="slow member",
        severity="degraded",
        detail=f"{finding.times:.1f} times as long as the others for the same work",
    )
    state.outbox.record(fault)
    if member is not None:
        member.slow_fault = fault.id
    return fault.id


def _dealt(finding: BalanceFinding, units: list[tuple[str, ...]]) -> str:
    """A sentence such as "n0.1 takes 2.0 times as long as the others for the same work: lanes of n0.1 from 4
    to 2". A member that only had too many lanes is not called slow.
    """
    changes = [
        (before - after, f"{_named(unit)} from {before} to {after}")
        for unit, before, after in zip(units, finding.before, finding.after, strict=True)
        if before != after
    ]
    words = [words for _, words in sorted(changes, key=lambda change: -change[0])]
    more = f" and {len(words) - NAMED_MAX} more" if len(words) > NAMED_MAX else ""
    why = _slow(finding, units[finding.member]) if finding.times >= SLOW else "the members' pace has changed"
    return f"{why}: lanes of {', '.join(words[:NAMED_MAX])}{more}"


def _dealt_evenly(finding: BalanceFinding, unit: Sequence[str]) -> str:
    before, after = finding.before[finding.member], finding.after[finding.member]
    lanes = f"lanes are dealt evenly again, {_named(unit)} from {before} to {after}"
    return f"all members are about equally fast again: {lanes}"


def _slow(finding: BalanceFinding, unit: Sequence[str]) -> str:
    return f"{_named(unit)} takes {finding.times:.1f} times as long as the others for the same work"


def _keep(state: RunState, finding: BalanceFinding, unit: Sequence[str], units: int) -> None:
    """Say that a slow member keeps its lanes and, once a run, that more lanes would help, if they would."""
    has, whom = finding.before[finding.member], "members" if len(unit) == 1 else "replicas"
    why = f"fewer than its {has} would not make steps shorter" if has > 1 else "it has only one"
    hint = ""
    if finding.wants_smaller_lanes and not state.replacing.is_hinted:
        state.replacing.is_hinted = True
        lanes = state.policy.mesh.slices * sum(finding.before)
        hint = (
            f"; call protect() with more than {lanes} lanes, "
            f"so that they can be shared more finely among {units} {whom}"
        )
    state.outbox.say(f"{_slow(finding, unit)}, but keeps its lanes: {why}{hint}", "trouble")


def _everyone(finding: BalanceFinding) -> str:
    what = "most of it waiting for data" if finding.data > DATA_SHARE else "and not because of data"
    return (
        f"steps take all members {finding.times:.1f} times as long as before, {what}: "
        "no single member is the cause, so no lanes move"
    )


def _give_up(state: RunState, finding: BalanceFinding, unit: Sequence[str]) -> None:
    """Replace the member, unless an earlier process in its seat was as slow."""
    sentence = f"{_named(unit)} takes {finding.times:.1f} times as long as the others for a lane"
    member = state.roster.living(unit[0])
    if member is None:
        return
    if len(unit) > 1:
        state.outbox.say(
            f"{sentence}; it is unknown which of its ranks is slow, so none is replaced", "trouble"
        )
        return
    seat = (member.node, member.slot)
    if seat in state.replacing.slow_seats:
        state.outbox.say(
            f"{sentence}, like the process before it: the node is slow; "
            + replacing.advice(state, member.node),
            "trouble",
        )
        return
    answer = replacing.begin(state, member.name, f"{finding.times:.1f} times as slow as the others")
    if not answer.ok:
        state.outbox.say(f"{sentence}, and is not replaced: {answer.sentence}", "trouble")
