"""A window of a run's accounts, cut to the nanosecond: the same report, for a part of its time.

A report has its sums in segments, which begin and end at the moments that its fold was asked to cut at.
`within` puts the segments of a window together. Events after the window still affect the time in it: a step
of October that was rolled back in November is not useful work. So windows that tile the time sum to the
whole report, to the nanosecond, by category and by incident.
"""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.ledger.categories import Category
from holdfast.ledger.counts import Gap, MovedBytes, MovedFor
from holdfast.ledger.dangers import Danger
from holdfast.ledger.division import summed
from holdfast.ledger.fold import Fold
from holdfast.ledger.remarks import gap_remarks, incident_remarks, unknown_remarks
from holdfast.ledger.report import Accrued, Counted, Course, Ettr, IncidentReport, Report, Segment
from holdfast.ledger.reporting import (
    OUTSIDE,
    counted,
    dangers_of,
    goodput_of,
    recorded_price_of,
    useful_work_of,
)
from holdfast.ledger.split import Split

SILENT_NS_MAX = 24 * 3_600 * 10**9
"""A run that has not ended is assumed to hold its GPUs if its last event is at most a day old."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """From one moment until just before another; None: no bound on that side."""

    from_ns: int | None = None
    to_ns: int | None = None

    @property
    def is_bounded(self) -> bool:
        return self.from_ns is not None or self.to_ns is not None

    @property
    def edges_ns(self) -> tuple[int, ...]:
        return tuple(edge for edge in (self.from_ns, self.to_ns) if edge is not None)

    def clipped(self, from_ns: int, to_ns: int) -> tuple[int, int]:
        """The part of this stretch in the window; it may be empty."""
        begin = from_ns if self.from_ns is None else max(from_ns, self.from_ns)
        end = to_ns if self.to_ns is None else min(to_ns, self.to_ns)
        return begin, max(begin, end)

    def has(self, at_ns: int) -> bool:
        return (self.from_ns is None or at_ns >= self.from_ns) and (self.to_ns is None or at_ns < self.to_ns)


class WindowStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A run's counts at some moment, and what had endangered it by then."""

    counts: Counted
    dangers: tuple[Danger, ...]
    moved: dict[MovedFor, MovedBytes]


def standing(fold: Fold) -> WindowStanding:
    return WindowStanding(counts=counted(fold), dangers=dangers_of(fold), moved=fold.moved.copy())


def accruing(report: Report, now_ns: int) -> Report:
    """The report with its GPU-time since the last event, if the run still holds its GPUs.

    Nothing recorded says yet what the GPUs did in that time, so it is neither useful nor lost and has no
    category.
    """
    since_ns = report.known_ns
    if not report.held_gpus or not 0 < now_ns - since_ns <= SILENT_NS_MAX:
        return report
    accrued = Accrued(
        from_ns=since_ns,
        to_ns=now_ns,
        gpus=report.held_gpus,
        gpu_ns=(now_ns - since_ns) * report.held_gpus,
    )
    return msgspec.structs.replace(report, accrued=accrued)


def fell_silent(report: Report, now_ns: int) -> bool:
    """Whether the run has not ended, but its last event is too old to assume that it goes on."""
    return report.held_gpus > 0 and now_ns - report.known_ns > SILENT_NS_MAX


def within(
    report: Report, window: Window, begin: WindowStanding | None, end: WindowStanding | None
) -> Report:
    """The report of this window. The fold must have been cut at the window's bounds.

    begin, end: the run's counts there; None: zero at the begin, the final counts at the end.
    """
    if not window.is_bounded:
        return report
    segments = tuple(one for one in report.segments if window.has(one.from_ns))
    partition = _partition(segments)
    split = Split.of(partition, summed(part for one in segments for part in one.unknown.items()))
    first_ns, last_ns = window.clipped(report.first_ns, report.last_ns)
    counts, moved = _between(report, begin, end)
    ended = report.ended if report.ended is not None and window.has(report.ended.ended_ns) else None
    mean_price = recorded_price_of(segments)
    goodput = msgspec.structs.replace(
        goodput_of(split, report.goodput.basis, is_told=report.goodput.total is not None),
        program=report.goodput.program,
    )
    told = msgspec.structs.replace(
        report,
        window=(window.from_ns, window.to_ns),
        ended=ended,
        first_ns=first_ns,
        last_ns=last_ns,
        elapsed_s=(last_ns - first_ns) / 1e9,
        paid_gpu_ns=split.paid_gpu_ns,
        usd_per_gpu_hour=report.usd_per_gpu_hour if mean_price is None else mean_price,
        partition=partition,
        split=split,
        goodput=goodput,
        ettr=_ettr(report, segments, partition),
        counts=counts,
        dangers=_dangers(report, window, end),
        moved=moved,
        useful_work=useful_work_of(goodput, split.known_gpu_ns, counts.steps, report.tokens_per_step),
        useful_parts=None,
        incidents=_incidents(report, window, segments),
        course=_course(report.course, window, report.last_ns),
        segments=segments,
        accrued=_accrued(report.accrued, window),
        gaps=_gaps(report.gaps, window),
    )
    return msgspec.structs.replace(told, remarks=_remarks(report, told))


def _partition(segments: Iterable[Segment]) -> dict[str, int]:
    sums = dict.fromkeys((category.key for category in Category), 0)
    for segment in segments:
        for key, gpu_ns in segment.partition.items():
            sums[key] += gpu_ns
    return sums


def _between(
    report: Report, begin: WindowStanding | None, end: WindowStanding | None
) -> tuple[Counted, dict[MovedFor, MovedBytes]]:
    """The counts between the two moments."""
    counts, moved = (report.counts, report.moved) if end is None else (end.counts, end.moved)
    if begin is None:
        return counts, moved
    less = {
        name: getattr(counts, name) - getattr(begin.counts, name) for name in type(counts).__struct_fields__
    }
    gone = {use: now.plus(begin.moved.get(use, MovedBytes()), sign=-1) for use, now in moved.items()}
    return Counted(**less), {use: one for use, one in gone.items() if one.times}


def _dangers(report: Report, window: Window, end: WindowStanding | None) -> tuple[Danger, ...]:
    """What failed in the window, as it was known at its end."""
    known = report.dangers if end is None else end.dangers
    return tuple(one for one in known if window.from_ns is None or one.to_ns >= window.from_ns)


def _ettr(report: Report, segments: Iterable[Segment], partition: Mapping[str, int]) -> Ettr:
    outside = (*OUTSIDE, Category.UNATTRIBUTED)
    in_run = sum(partition.values()) - sum(partition[category.key] for category in outside)
    told = report.ettr.cumulative is not None
    return Ettr(
        cumulative=sum(one.kept_gpu_ns for one in segments) / in_run if told and in_run else None,
        sliding=None,
        sliding_min=None,
        sliding_window_ns=report.ettr.sliding_window_ns,
    )


def _incidents(report: Report, window: Window, segments: tuple[Segment, ...]) -> tuple[IncidentReport, ...]:
    """Incidents that cost something in the window or were noticed in it, with their cost there."""
    found = []
    by_name = _losses(segments)
    for incident in report.incidents:
        lost_of = by_name.get(incident.name, {})
        losses = {key: lost_of[key] for key in incident.losses if lost_of.get(key)}
        if losses or window.has(incident.noticed_ns):
            lost = sum(losses.values())
            spent = window.clipped(*incident.spent_ns) if incident.spent_ns and losses else None
            found.append(msgspec.structs.replace(incident, losses=losses, lost_gpu_ns=lost, spent_ns=spent))
    return tuple(sorted(found, key=lambda incident: (-incident.lost_gpu_ns, incident.began_ns)))


def _losses(segments: Iterable[Segment]) -> dict[str, dict[str, int]]:
    """The losses of each incident, by its name and category."""
    found: dict[str, dict[str, int]] = {}
    for segment in segments:
        for name, losses in segment.incidents.items():
            sums = found.setdefault(name, {})
            for key, gpu_ns in losses.items():
                sums[key] = sums.get(key, 0) + gpu_ns
    return found


def _course(course: Course, window: Window, last_ns: int) -> Course:
    """The buckets in the window, for a chart; one that the window cuts is divided evenly.

    last_ns: where the content of the last bucket ends.
    """
    kept, timed, start_ns = [], [], None
    for number, bucket in enumerate(course.buckets):
        from_ns = course.start_ns + number * course.bucket_ns
        to_ns = min(from_ns + course.bucket_ns, max(from_ns + 1, last_ns))
        begin, end = window.clipped(from_ns, to_ns)
        if begin >= end:
            continue
        start_ns = from_ns if start_ns is None else start_ns
        place = begin - from_ns, end - from_ns, to_ns - from_ns
        kept.append({key: part_between(amount, *place) for key, amount in bucket.items()})
        timed.append(part_between(course.timed[number], *place))
    return Course(
        start_ns=course.start_ns if start_ns is None else start_ns,
        bucket_ns=course.bucket_ns,
        buckets=tuple(kept),
        timed=tuple(timed),
    )


def part_between(amount: int, begin: int, end: int, whole: int) -> int:
    """The part of an amount between two moments of its time, rounded so that adjacent parts sum to it."""
    return amount * end // whole - amount * begin // whole


def _gaps(gaps: Iterable[Gap], window: Window) -> tuple[Gap, ...]:
    found = []
    for gap in gaps:
        from_ns, to_ns = window.clipped(gap.from_ns, gap.to_ns)
        if from_ns < to_ns:
            found.append(msgspec.structs.replace(gap, from_ns=from_ns, to_ns=to_ns))
    return tuple(found)


def _accrued(accrued: Accrued | None, window: Window) -> Accrued | None:
    if accrued is None:
        return None
    from_ns, to_ns = window.clipped(accrued.from_ns, accrued.to_ns)
    if from_ns >= to_ns:
        return None
    return Accrued(from_ns=from_ns, to_ns=to_ns, gpus=accrued.gpus, gpu_ns=(to_ns - from_ns) * accrued.gpus)


def _remarks(whole: Report, part: Report) -> tuple[str, ...]:
    """The remarks of the whole report that also hold for the part, and those on the window."""
    own = ["The reference, MFU and bandwidth are those of the whole run."]
    to_ns = part.window[1]
    if to_ns is not None and part.known_ns > to_ns:
        own.append("The run went on after this window.")
    others = {*unknown_remarks(whole), *gap_remarks(whole), *incident_remarks(whole)}
    kept = [
        remark
        for remark in whole.remarks
        if remark not in others and not remark.startswith("Counting saved steps")
    ]
    return (*own, *unknown_remarks(part), *kept, *gap_remarks(part), *incident_remarks(part))
