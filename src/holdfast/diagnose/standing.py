"""What a flight recorder tells about a hang, in sentences, and as evidence of its incident."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast import wording
from holdfast.detect.standstill import Place, RanksStanding, Standstill
from holdfast.diagnose.incident import Evidence, Incident
from holdfast.signals.flight_dumps import CodeLine
from holdfast.topology.hostlist import fold

METRIC = "flight recorder"
WEIGHT = 1.0
"""In bans: ranks that stand in a collective are not a run that evaluates or saves."""
EARLIER_NS_MAX = 120 * 10**9
"""Ranks may enter the collective this long before the last visible step: scrapes lag, clocks differ."""
RANKS_CHARS_MAX = 60
LINES_SHOWN_MAX = 4


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2-7`; cut if there are too many."""
    told = fold(map(str, ranks)).strip("[]").replace(",", ", ")
    if len(told) > RANKS_CHARS_MAX:
        told = f"{told[:RANKS_CHARS_MAX].rpartition(',')[0]}, … ({len(ranks):,} in all)"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {told}"


def call_text(place: Place) -> str:
    """`all_reduce #5 of group default_pg`."""
    return f"{place.call} #{place.seq} of group {place.group}"


def place_text(place: Place) -> str:
    """Where some ranks are, without the lines of their program."""
    if not place.call:
        return "in no recorded call"
    return f"after {call_text(place)}, its last" if place.is_finished else f"in {call_text(place)}"


def line_text(line: CodeLine) -> str:
    return f"{line.function}, {line.file}:{line.line}"


def sentence(one: Standstill) -> str:
    """Which ranks stand in what, and which are missing, in one sentence."""
    inside, count = one.inside, len(one.inside.ranks)
    who = f"{'All' if count == one.size else f'{count:,} of'} {wording.many(one.size, 'rank')}"
    if one.size == 1:
        who = "The only rank"
    if one.kind == "unknown":
        who = wording.opening(ranks_text(inside.ranks))
    stand = "stands" if count == 1 else "stand"
    since = wording.stamp(one.since_ns) if one.since_ns > 0 else "an unknown time"
    told = f"{who} {stand} in {call_text(inside)}{_sizes(inside)} since {since}"
    if one.timed_out:
        told += ", which has timed out"
    missing = _missing(one)
    return f"{told}; {'; '.join(missing)}." if missing else f"{told}, and it does not end."


def _missing(one: Standstill) -> list[str]:
    other = [place for place in one.others if _is_instead(place, one)]
    parts = [f"{ranks_text(place.ranks)} entered {place.call}{_sizes(place)} instead" for place in other]
    if one.kind == "not-started":
        parts.append(f"the GPU of {ranks_text(one.holding)} has not begun it")
    if one.kind == "unknown":
        parts.append("the dumps do not say which other ranks are in this group")
    if one.absent:
        parts.append(f"{ranks_text(one.absent)} {'has' if len(one.absent) == 1 else 'have'} not entered it")
    return [*parts, *_without(one.undumped, one.unreadable)]


def _without(undumped: Sequence[int], unreadable: Collection[int]) -> list[str]:
    """Clauses on the ranks without a dump and, separately, on those whose file cannot be used."""
    none = [rank for rank in undumped if rank not in unreadable]
    parts = [f"there is no dump of {ranks_text(none)}"] if none else []
    if damaged := [rank for rank in undumped if rank in unreadable]:
        parts.append(f"the {_dumps(damaged)} cannot be used")
    return parts


def _dumps(ranks: Sequence[int]) -> str:
    return f"{'dump' if len(ranks) == 1 else 'dumps'} of {ranks_text(ranks)}"


def _is_instead(place: Place, one: Standstill) -> bool:
    """Whether these ranks are at the group's same number, but in another call or with other sizes."""
    return one.kind == "other" and (place.group, place.seq) == (one.inside.group, one.inside.seq)


def _sizes(place: Place) -> str:
    told = [f"{place.elements:,} elements"] if place.elements else []
    told += [" and ".join(place.types)] if place.types else []
    return f" ({', '.join(told)})" if told else ""


def summary(told: RanksStanding) -> str:
    """The most telling standstill in a sentence; or that no rank stands in one."""
    if told.standstills:
        return sentence(told.standstills[0])
    if told.undumped:
        return (
            f"No rank stands in a collective, and {', and '.join(_without(told.undumped, told.unreadable))}."
        )
    return "No rank stands in a collective: each has finished all that it has entered."


def action(told: RanksStanding) -> str:
    if told.circular:
        return (
            "The ranks wait for each other: compare in which order they call collectives, sends and receives."
        )
    if not told.standstills:
        if told.undumped:
            return _find_out(told.undumped, told.unreadable)
        return "Look at what the ranks do between collectives: their stacks (py-spy dump) tell it."
    one = told.standstills[0]
    who = ranks_text(one.holding)
    match one.kind:
        case "other":
            return f"Find where {who} left the others' path through the program; the lines below are where."
        case "absent" if set(one.holding) == set(one.undumped):
            return _find_out(one.undumped, one.unreadable)
        case "absent":
            return f"Look at {who}: take a stack (py-spy dump) and check the node; the others only wait."
        case "not-started":
            return f"Look at the GPU of {who}: work before this collective does not end there."
        case "everybody":
            return "Look at links, ports and GPUs between these ranks: all are in it, and no data move."
        case "unknown":
            return "Find out which other ranks are in this group, and look at those that are not in the call."


def _find_out(undumped: Sequence[int], unreadable: Collection[int]) -> str:
    """What to do about ranks without any data."""
    none = [rank for rank in undumped if rank not in unreadable]
    parts = [f"Look at {ranks_text(none)}: the process died, or its node cannot be reached."] if none else []
    if damaged := [rank for rank in undumped if rank in unreadable]:
        parts.append(f"Get the {_dumps(damaged)} again, or a stack (py-spy dump), if the process still runs.")
    return " ".join(parts)


def as_json(told: RanksStanding) -> dict[str, object]:
    """All data, and the sentences for people."""
    return {"summary": summary(told), "action": action(told), **msgspec.structs.asdict(told)}


def is_of(incident: Incident, told: RanksStanding, at_ns: int) -> bool:
    """Whether the dumps belong to this hang at this time, and not to an earlier or later one. Dumps without a
    time are believed.
    """
    times_ns = [one.since_ns for one in told.standstills]
    return any(
        since_ns <= 0 or incident.began_ns - EARLIER_NS_MAX <= since_ns <= at_ns for since_ns in times_ns
    )


def is_open_hang(incident: Incident) -> bool:
    return incident.cause.mechanism == "hang" and incident.ended_ns is None


def with_standing(
    incidents: Iterable[Incident], told: RanksStanding | None, at_ns: int
) -> tuple[Incident, ...]:
    """The same incidents, with the flight recorder's evidence on those that are hangs."""
    return tuple(
        _told(one, told) if told is not None and is_open_hang(one) and is_of(one, told, at_ns) else one
        for one in incidents
    )


def _decides(told: RanksStanding) -> str:
    """The stacks that are still to be taken."""
    unknown = [rank for rank in told.holding if rank not in told.stacks]
    return f"A stack (py-spy dump) of {ranks_text(unknown)}." if unknown else ""


def _told(incident: Incident, told: RanksStanding) -> Incident:
    first = told.standstills[0]
    where = [
        f"{ranks_text(place.ranks)}: {place_text(place)}"
        + "".join(f"; {line_text(line)}" for line in place.lines[:1])
        for place in first.others
    ]
    where += [
        f"{ranks_text([rank])} is now at {line_text(lines[0])}, by its stack"
        for rank, lines in told.stacks.items()
    ]
    evidence = [
        Evidence(text=sentence(first).rstrip("."), weight=WEIGHT, metric=METRIC, since_ns=None),
        *(Evidence(text=text, weight=0.0, metric=METRIC) for text in where),
    ]
    odds = 10.0**WEIGHT * incident.confidence / max(1e-9, incident.quality - incident.confidence)
    return msgspec.structs.replace(
        incident,
        evidence=(*incident.evidence, *evidence),
        confidence=incident.quality * odds / (1.0 + odds),
        what=f"{incident.what}; {summary(told).rstrip('.')}",
        action=action(told),
        decides=_decides(told) or incident.decides,
    )
