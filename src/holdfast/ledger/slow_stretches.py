"""Stretches of slow steps as incidents of their own, and their losses in the segments of a report."""

import msgspec

from holdfast.ledger.categories import Category
from holdfast.ledger.report import IncidentReport, Segment


def with_slow_stretches(segments: list[Segment], slow: list[IncidentReport]) -> tuple[Segment, ...]:
    """The segments with the losses of slow stretches in each.

    A stretch's loss is spread evenly over its time, but no segment gets more than its own slowdown. The rest
    goes to other segments that the stretch touches, and then to any.
    """
    key = Category.SLOWDOWN.key
    room = [
        max(0, one.partition.get(key, 0) - sum(lost.get(key, 0) for lost in one.incidents.values()))
        for one in segments
    ]
    charged: list[dict[str, dict[str, int]]] = [{} for _ in segments]
    for stretch in slow:
        even = [_share_of(stretch, one.from_ns, one.to_ns).get(key, 0) for one in segments]
        parts = [min(share, left) for share, left in zip(even, room, strict=True)]
        beyond = sum(even) - sum(parts)
        for index in sorted(range(len(segments)), key=lambda index: not even[index]) if beyond else ():
            more = min(beyond, room[index] - parts[index])
            parts[index] += more
            beyond -= more
        for index, part in enumerate(parts):
            room[index] -= part
            if part:
                charged[index][stretch.name] = {key: part}
    return tuple(
        msgspec.structs.replace(one, incidents=one.incidents | more) if more else one
        for one, more in zip(segments, charged, strict=True)
    )


def _share_of(stretch: IncidentReport, from_ns: int, to_ns: int) -> dict[str, int]:
    """The losses of a stretch between these moments, spread evenly over its time."""
    lasted_ns = (stretch.recovered_ns or stretch.began_ns) - stretch.began_ns
    begin, end = (min(max(0, at_ns - stretch.began_ns), lasted_ns) for at_ns in (from_ns, to_ns))
    lost = {
        key: part * end // lasted_ns - part * begin // lasted_ns
        for key, part in stretch.losses.items()
        if lasted_ns
    }
    return {key: part for key, part in lost.items() if part}


def slow_stretch(
    name: str, span_ns: tuple[int, int], lost_gpu_ns: int, slowest: str, basis: str, *, stood_still: bool
) -> IncidentReport:
    """slowest: the member that all others waited for, if one is known. stood_still: no step ended in it."""
    began_ns, ended_ns = span_ns
    why = "all waited for one member" if slowest else "nothing recorded says why"
    return IncidentReport(
        name=name,
        what=f"{'no step made' if stood_still else 'slow steps'}, {why}",
        subject=slowest,
        severity="degraded",
        began_ns=began_ns,
        noticed_ns=began_ns,
        recovered_ns=ended_ns,
        restarts=0,
        members_lost=0,
        steps_rolled_back=0,
        lost_gpu_ns=lost_gpu_ns,
        losses={Category.SLOWDOWN.key: lost_gpu_ns},
        evidence=(),
        basis=basis,
        spent_ns=(began_ns, ended_ns),
    )
