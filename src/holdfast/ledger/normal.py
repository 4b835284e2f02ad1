"""Estimate the normal duration of a run's steps from the steps themselves, if none was declared.

The steps of a stage are cut into plateaus: stretches in which steps take about the same time. The level of a
plateau is the mean of the middle half of its steps, which neither jitter nor a few slow steps move. A plateau
is healthy at its own level unless the run got faster later: then it was slow, and the faster level is its
reference. Steps that grew longer for good look like a stage of their own (a larger batch, longer sequences):
their times cannot show more. What it would cost if they were a slowdown is reported as a doubt.

Around the level lies a band of jitter, as wide as the run's own steps spread. A step within the band is not
slow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from math import exp, inf, log, sqrt
from statistics import median
from typing import NamedTuple

from holdfast.ledger.categories import Category
from holdfast.ledger.tally import Measured, Tally, measured, work_bin
from holdfast.ledger.timeline import Timeline

PIECES_MAX = 64
"""Into how many pieces, in order of time, the steps of a stage are divided at most."""
PIECE_STEPS_MIN = 4
LEVEL_TOLERANCE = 0.04
"""Stretches whose levels differ by less, or by less than chance explains, are one plateau."""
SLOW_RATIO_MIN = 1.05
"""A plateau above a later one by less than this ratio is not called slow."""
BAND_MIN = 0.08
"""The least width of the band of jitter: the bins of work are 3 % wide each."""
BAND_SIGMAS = 3.0
CHANCE_SIGMAS = 4.0
HEALTHY_SHARE_MIN = 0.05
"""A plateau with this share of the stage's steps can be the reference for those before it."""
HEALTHY_STEPS_MIN = 8
LASTING_SHARE_MIN = 0.1
"""Longer steps at the end of a run count as a slowdown until they are this share of its steps,"""
RAMP_RATIO_MAX = 1.25
"""... unless steps were growing before, and these grew by less than this ratio at once."""
WARM_UP_SHARE_MAX = 0.05
"""Slower steps at the very beginning, up to this share, are part of getting started."""
MIXED_RATIO_MAX = 3.0
MIXED_SHARE_MIN = 0.02
MIXED_STEPS_MIN = 20
MIXED_PIECES_MIN = 8
MIXED_DISPERSION_MAX = 2.5
"""Long steps that are spread as evenly as by chance over the whole run belong to the work, such as longer
sequences: slowness comes in stretches. 1 is chance; a stretch of 16 steps is about 16."""
UNCERTAINTY_MIN = 0.001
_SPREAD_MIN = 0.01
_FEW_STEPS = 16
_SPREAD_OF_FEW = 0.03
_SPREAD_OF_TOO_FEW = 0.2
"""Fewer than HEALTHY_STEPS_MIN steps do not show their spread; in healthy runs it is up to 20 %."""
_MIDMEAN_SIGMAS = 1.2
"""The middle half's mean varies by about this many standard deviations over the root of the count."""
_IQR_SIGMAS = 1.35
_MAD_SIGMAS = 1.48
_NEIGHBOURS_MIN = 8
_MOST = 0.8
_MOST_SIGMAS = 1.28
"""Within this many standard deviations lie 80 % of a normal distribution."""
_WORK = (Category.USEFUL, Category.RECOMPUTED)


class Plateau(NamedTuple):
    """A stretch of a stage in which steps take about the same time: its buckets of the timeline, and its
    GPU-ns a step.

    level        what steps take
    reference    what steps should take
    ceiling      the upper edge of the band of jitter; 0 if the reference was declared
    regular      bins of steps that are longer at regular intervals, as for an evaluation or a save
    excess       the category of time beyond the reference; None: slowdown
    uncertainty  of the reference, as a share of it
    doubt_gpu_ns the slowdown there would be if the steps were not meant to be longer than those before
    was          the level before, if there is such a doubt
    mixed        the share of longer steps that belong to the work
    beyond_gpu_ns  total of the steps above the ceiling
    is_loud      jitter is wider than the narrowest band: single slow steps cannot be told apart
    """

    stage: int
    first: int
    end: int
    steps: float
    gpu_ns: int
    level: int
    reference: Fraction
    ceiling: int
    regular: frozenset[int] = frozenset()
    excess: Category | None = None
    uncertainty: float | None = None
    doubt_gpu_ns: int = 0
    was: int = 0
    mixed: float = 0.0
    beyond_gpu_ns: int = 0
    is_loud: bool = True

    def split(self, key: Measured, gpu_ns: int, steps: Fraction) -> tuple[tuple[Category, int], ...]:
        """Split time measured in this stretch into its normal part and the excess."""
        normal = min(gpu_ns, round(steps * self.reference))
        is_told_apart = not self.is_loud and self.reference < self.level
        if self.ceiling and not key.is_own and not is_told_apart and key.excess != Category.STARTING:
            if gpu_ns * self.ceiling < steps * self.level**2:
                # Far below the level: healthy steps at the edge of a slow stretch.
                if gpu_ns * self.level <= self.ceiling * steps * self.reference:
                    normal = gpu_ns
            elif gpu_ns <= self.ceiling * steps:
                normal = round(gpu_ns * self.reference / self.level)
        normal = min(gpu_ns, normal)
        return (key.normal, normal), (self._excess(key), gpu_ns - normal)

    def _excess(self, key: Measured) -> Category:
        if key.excess != Category.SLOWDOWN:
            return key.excess
        return Category.CHECKS if key.bin in self.regular else self.excess or key.excess


def declared_plateau(stage: int, reference: Fraction, buckets: int) -> Plateau:
    """A stage with a declared reference: any time beyond it is slow."""
    return Plateau(stage, 0, buckets, 0.0, 0, max(1, int(reference)), reference, 0)


class _Histogram:
    """Steps by bin of work: how many, and their GPU-ns."""

    __slots__ = ("gpu_ns_by_bin", "steps", "steps_by_bin")

    def __init__(self) -> None:
        self.steps_by_bin: dict[int, float] = {}
        self.gpu_ns_by_bin: dict[int, float] = {}
        self.steps = 0.0

    def add(self, bin_: int, steps: float, gpu_ns: float) -> None:
        self.steps_by_bin[bin_] = self.steps_by_bin.get(bin_, 0.0) + steps
        self.gpu_ns_by_bin[bin_] = self.gpu_ns_by_bin.get(bin_, 0.0) + gpu_ns
        self.steps += steps

    def merged(self, other: "_Histogram") -> "_Histogram":
        twin = _Histogram()
        twin.steps_by_bin, twin.gpu_ns_by_bin = self.steps_by_bin.copy(), self.gpu_ns_by_bin.copy()
        twin.steps = self.steps
        for bin_, steps in other.steps_by_bin.items():
            twin.add(bin_, steps, other.gpu_ns_by_bin[bin_])
        return twin

    def bins(self) -> Iterator[tuple[float, float]]:
        """Steps and GPU-ns of each bin, quickest steps first."""
        for bin_ in sorted(self.steps_by_bin):
            yield self.steps_by_bin[bin_], self.gpu_ns_by_bin[bin_]

    def midmean(self, first: float = 0.25, last: float = 0.75) -> float:
        """The mean of the middle half of the steps, or of another part, by how long they take."""
        low, high = first * self.steps, last * self.steps
        before = weight = total = 0.0
        for steps, gpu_ns in self.bins():
            part = min(before + steps, high) - max(before, low)
            if part > 0:
                weight += part
                total += part * gpu_ns / steps
            before += steps
        return total / weight

    def quantile(self, share: float) -> float:
        remaining = share * self.steps
        work = 1.0
        for steps, gpu_ns in self.bins():
            work = gpu_ns / steps
            remaining -= steps
            if remaining <= 0:
                break
        return max(1.0, work)

    def spread(self) -> float:
        """The standard deviation as a share, estimated from the middle half."""
        return log(self.quantile(0.75) / self.quantile(0.25)) / _IQR_SIGMAS

    def gpu_ns(self) -> float:
        return sum(self.gpu_ns_by_bin.values())

    def above(self, ceiling: float) -> list[tuple[float, float]]:
        """Steps and GPU-ns of the bins above the ceiling."""
        return [(steps, gpu_ns) for steps, gpu_ns in self.bins() if gpu_ns > ceiling * steps]


class _Segment:
    """Consecutive pieces that belong together."""

    __slots__ = ("compared", "end", "first", "histogram", "level", "pieces")

    def __init__(self, first: int, end: int, histogram: _Histogram, pieces: list[_Histogram]) -> None:
        self.first, self.end = first, end
        self.histogram = histogram
        self.pieces = pieces
        self.level = max(1.0, histogram.midmean())
        # If long steps are mixed in, a few more or less of them move the middle, but hardly this.
        self.compared = max(1.0, histogram.midmean(0.1, 0.6))

    @property
    def steps(self) -> float:
        return self.histogram.steps

    def merged(self, other: "_Segment") -> "_Segment":
        both = self.histogram.merged(other.histogram)
        return _Segment(self.first, other.end, both, self.pieces + other.pieces)


class StageCourse(NamedTuple):
    """The data that one stage's reference is estimated from.

    slow     stretches of the timeline, as buckets, in which the run is known to be slow: from, to
    faults   where the run survived a fault, as buckets: slowness from there on is due to the fault
    entries  the GPU-ns of the run's steps in order, to find longer steps at regular intervals
    within   the range of entries that belongs to the stage: from, to
    """

    stage: int
    tally: Tally
    timeline: Timeline
    slow: Sequence[tuple[float, float]] = ()
    faults: Sequence[float] = ()
    entries: Sequence[int] = ()
    within: tuple[int, int] = (0, 0)


def plateaus(course: StageCourse) -> list[Plateau]:
    """The plateaus of a stage in order of time; none if it has no steps."""
    pieces = _pieces(course)
    if not pieces:
        return []
    spread = max(_SPREAD_MIN, median(piece.histogram.spread() for piece in pieces))
    segments = _joined(pieces, max(spread, _spread_by_neighbours(pieces)))
    near = max(piece.end - piece.first for piece in pieces)
    is_slow = [
        _overlaps(segment, course.slow) or any(abs(segment.first - fault) <= near for fault in course.faults)
        for segment in segments
    ]
    references = _references(segments, is_slow)
    mixed = _mixed(
        [
            (segment, _ceiling(segment, spread, is_healthy=True))
            for segment, reference in zip(segments, references, strict=True)
            if reference == segment.level
        ]
    )
    found = [
        _plateau(course, segment, reference, spread, mixed)
        for segment, reference in zip(segments, references, strict=True)
    ]
    found = _with_doubts(_warmed_up(found))
    return _with_regular(found, course)


def quick_step(tally: Tally, stage: int) -> Fraction | None:
    """The lower quartile of a step's GPU-ns in this stage; None if the tally has no such steps."""
    found = _Histogram()
    for key, steps in tally.steps.items():
        told = measured(key)
        if told.stage == stage:
            found.add(told.bin, steps, tally.gpu_ns[key])
    return Fraction(round(found.quantile(0.25))) if found.steps else None


# -- pieces, and plateaus of them ----------------------------------------------------------------------------


def _pieces(course: StageCourse) -> list[_Segment]:
    """The stage in pieces with about the same number of steps. The first step after a start is always slow,
    so it counts only if the stage has no other steps.
    """
    tally = course.tally
    bins = _bins(course, Category.SLOWDOWN) or _bins(course, Category.STARTING)
    rates = {key: tally.steps[key] / tally.gpu_ns[key] for key in bins}
    wanted = max(PIECE_STEPS_MIN, sum(tally.steps[key] for key in bins) / PIECES_MAX)
    pieces: list[_Segment] = []
    first, end, held = None, 0, _Histogram()
    for number, bucket in enumerate(course.timeline.buckets):
        for key, gpu_ns in bucket.items():
            if gpu_ns > 0 and key in bins:
                held.add(bins[key], gpu_ns * rates[key], gpu_ns)
                end = number + 1
        if end <= number:
            continue
        first = number if first is None else first
        if held.steps >= wanted - 0.5:
            pieces.append(_Segment(first, end, held, [held]))
            first, held = None, _Histogram()
    if first is not None:
        rest = _Segment(first, end, held, [held])
        if pieces and rest.steps < wanted / 2:
            last = pieces.pop()
            both = last.histogram.merged(held)
            rest = _Segment(last.first, rest.end, both, [both])
        pieces.append(rest)
    return pieces


def _bins(course: StageCourse, excess: Category) -> dict[int, int]:
    """The keys with this excess that steps of this stage are tallied under, with their bins."""
    tally, bins = course.tally, {}
    for key, steps in tally.steps.items():
        told = measured(key)
        is_wanted = told.stage == course.stage and told.excess == excess and told.normal in _WORK
        if is_wanted and not told.is_own and steps > 0 and tally.gpu_ns[key] > 0:
            bins[key] = told.bin
    return bins


def _spread_by_neighbours(pieces: list[_Segment]) -> float:
    """The spread of steps, from how much neighbouring pieces differ. It does not depend on the distribution
    of the steps, and a few changes of level do not affect it.
    """
    differences = sorted(abs(log(left.compared / right.compared)) for left, right in pairwise(pieces))
    if len(differences) < _NEIGHBOURS_MIN:
        return 0.0
    most = differences[int(_MOST * len(differences))]
    steps = median(piece.steps for piece in pieces)
    return most / _MOST_SIGMAS / sqrt(2) * sqrt(steps) / _MIDMEAN_SIGMAS


def _joined(pieces: list[_Segment], spread: float) -> list[_Segment]:
    """Merge neighbours that differ no more than by chance, the most alike first."""
    segments = list(pieces)
    apart = [_apart(left, right, spread) for left, right in pairwise(segments)]
    while apart and min(apart) < 1:
        at = apart.index(min(apart))
        segments[at : at + 2] = [segments[at].merged(segments[at + 1])]
        del apart[at]
        for near in (at - 1, at):
            if 0 <= near < len(apart):
                apart[near] = _apart(segments[near], segments[near + 1], spread)
    return segments


def _apart(left: _Segment, right: _Segment, spread: float) -> float:
    """How far two levels are apart; a value below 1 is not significant."""
    chance = CHANCE_SIGMAS * _MIDMEAN_SIGMAS * spread * sqrt(1 / left.steps + 1 / right.steps)
    return abs(log(left.compared / right.compared)) / max(LEVEL_TOLERANCE, chance)


# -- references ------------------------------------------------------------------------------------------


def _references(segments: list[_Segment], is_slow: list[bool]) -> list[float]:
    """What a step of each segment should have taken: no more than in any healthy stretch after it."""
    total = sum(segment.steps for segment in segments)
    least = max(min(HEALTHY_STEPS_MIN, total / 4), HEALTHY_SHARE_MIN * total)
    healthy = [segment.steps >= least and not slow for segment, slow in zip(segments, is_slow, strict=True)]
    if not any(healthy):
        longest = max(range(len(segments)), key=lambda index: segments[index].steps)
        healthy[longest] = True
    tail = _tail(segments, total)
    references = []
    for index, segment in enumerate(segments):
        known = [other.level for other, good in list(zip(segments, healthy, strict=True))[index:] if good]
        if index >= tail or is_slow[index]:
            before = [other.level for other, good in zip(segments[:tail], healthy, strict=False) if good]
            # If steps have been growing longer, the last ones may continue to.
            is_ramp = len(before) > 1 and before[-1] > SLOW_RATIO_MIN * before[-2]
            is_next = is_ramp and segment.level < before[-1] * RAMP_RATIO_MAX
            if is_slow[index] or not is_next:
                known += before if is_slow[index] else before[-1:]
        reference = min([segment.level, *known])
        references.append(segment.level if segment.level < SLOW_RATIO_MIN * reference else reference)
    return references


def _tail(segments: list[_Segment], total: float) -> int:
    """The first of the last segments that are too short to show whether their steps are longer for good."""
    tail, steps = len(segments), 0.0
    while tail > 1 and steps + segments[tail - 1].steps < LASTING_SHARE_MIN * total:
        tail -= 1
        steps += segments[tail].steps
    return tail


def _overlaps(segment: _Segment, slow: Iterable[tuple[float, float]]) -> bool:
    covered = sum(max(0.0, min(segment.end, end) - max(segment.first, first)) for first, end in slow)
    return covered > (segment.end - segment.first) / 2


def _plateau(
    course: StageCourse, segment: _Segment, reference: float, spread: float, mixed: float
) -> Plateau:
    histogram, level = segment.histogram, segment.level
    is_healthy = reference == level
    ceiling = _ceiling(segment, spread, is_healthy=is_healthy)
    if mixed and is_healthy:
        works = [gpu_ns / steps for steps, gpu_ns in histogram.bins() if _near(level, gpu_ns, steps)]
        ceiling = max(ceiling, *works)
    level_gpu_ns = max(1, round(level))
    return Plateau(
        stage=course.stage,
        first=segment.first,
        end=segment.end,
        steps=segment.steps,
        gpu_ns=round(histogram.gpu_ns()),
        level=level_gpu_ns,
        reference=Fraction(level_gpu_ns if is_healthy else max(1, round(reference))),
        ceiling=int(ceiling) + 1,
        uncertainty=_uncertainty(segment, spread),
        mixed=mixed if is_healthy else 0.0,
        is_loud=BAND_SIGMAS * spread > BAND_MIN,
        beyond_gpu_ns=round(sum(gpu_ns for _, gpu_ns in histogram.above(ceiling))),
    )


def _ceiling(segment: _Segment, spread: float, *, is_healthy: bool) -> float:
    """The upper edge of the band. Only a healthy segment shows its own jitter; slowness would add to it."""
    own = spread
    if is_healthy and segment.steps >= _FEW_STEPS:
        own = log(segment.histogram.quantile(0.84) / segment.histogram.quantile(0.5))
    return segment.level * exp(max(BAND_MIN, BAND_SIGMAS * max(own, spread)))


def _near(level: float, gpu_ns: float, steps: float) -> bool:
    return gpu_ns <= MIXED_RATIO_MAX * level * steps


def _mixed(healthy: list[tuple[_Segment, float]]) -> float:
    """The share of steps above the ceiling if they are spread as evenly as by chance; else 0."""
    counts = [
        sum(steps for steps, gpu_ns in piece.above(ceiling) if _near(segment.level, gpu_ns, steps))
        for segment, ceiling in healthy
        for piece in segment.pieces
    ]
    above, total = sum(counts), sum(segment.steps for segment, _ in healthy)
    if above < MIXED_STEPS_MIN or above < MIXED_SHARE_MIN * total or len(counts) < MIXED_PIECES_MIN:
        return 0.0
    mean = above / len(counts)
    dispersion = sum((count - mean) ** 2 for count in counts) / (len(counts) - 1) / mean
    return above / total if dispersion <= MIXED_DISPERSION_MAX else 0.0


def _uncertainty(segment: _Segment, spread: float) -> float:
    """Two standard errors of the level: by the spread of its steps, and by how its pieces differ."""
    own = max(spread, _SPREAD_OF_FEW) if segment.steps < _FEW_STEPS else spread
    own = max(own, _SPREAD_OF_TOO_FEW) if segment.steps < HEALTHY_STEPS_MIN else own
    by_steps = _MIDMEAN_SIGMAS * own / sqrt(max(1.0, segment.steps))
    levels = [log(max(1.0, piece.midmean())) for piece in segment.pieces]
    middle = median(levels)
    between = _MAD_SIGMAS * median(abs(one - middle) for one in levels) / sqrt(len(levels))
    return max(UNCERTAINTY_MIN, 2 * max(by_steps, between))


# -- warm-up, doubts and regular steps -----------------------------------------------------------------------


def _warmed_up(found: list[Plateau]) -> list[Plateau]:
    """Count slow steps at the very beginning as starting."""
    total, done = sum(one.steps for one in found), 0.0
    warm = []
    for one in found:
        done += one.steps
        if one.stage or one.reference >= one.level or done > WARM_UP_SHARE_MAX * total:
            break
        warm.append(one._replace(excess=Category.STARTING))
    return warm + found[len(warm) :]


def _with_doubts(found: list[Plateau]) -> list[Plateau]:
    """Note a doubt where steps became longer for good and nothing recorded says why."""
    least, told = inf, []
    total = sum(one.steps for one in found)
    for one in found:
        if one.reference == one.level and one.level > SLOW_RATIO_MIN * least:
            doubt = round(one.gpu_ns * (1 - least / one.level))
            one = one._replace(doubt_gpu_ns=doubt, was=round(least))
        if one.steps >= HEALTHY_SHARE_MIN * total:
            least = min(least, float(one.reference))
        told.append(one)
    return told


REGULAR_STEPS_MIN = 3
REGULAR_SHARE_MIN = 0.7
REGULAR_EVERY_MIN = 4
INTERVALS_TRIED = 5
REGULAR_TIMES = (1.3, 2.0)
REGULAR_COST_MIN = 0.002
"""Steps beyond the band that take less than this share of the time are not worth a search."""
ENTRIES_MAX = 16_384
"""How many of the latest steps are searched for longer steps at regular intervals."""


def _with_regular(found: list[Plateau], course: StageCourse) -> list[Plateau]:
    """Find steps that are longer at regular intervals: an evaluation, a save, a log."""
    begin, end = course.within
    total = sum(one.steps for one in found)
    if begin >= end or not total:
        return found
    told, done = [], 0.0
    for one in found:
        from_entry = begin + int(done * (end - begin) / total)
        done += one.steps
        to_entry = begin + int(done * (end - begin) / total)
        first = max(from_entry, to_entry - ENTRIES_MAX)
        if one.beyond_gpu_ns > REGULAR_COST_MIN * one.gpu_ns:
            one = one._replace(regular=_regular(one, course.entries[first:to_entry]))
        told.append(one)
    return told


def _regular(one: Plateau, entries: Sequence[int]) -> frozenset[int]:
    """The bins of regular long steps. Jitter leaves the band now and then too, so try higher ceilings."""
    late = [at for at, work in enumerate(entries) if work > one.ceiling]
    for ceiling in (one.ceiling, *(round(one.level * times) for times in REGULAR_TIMES)):
        if bins := _regular_bins([at for at in late if entries[at] > ceiling], entries):
            return bins
    return frozenset()


def _regular_bins(late: list[int], entries: Sequence[int]) -> frozenset[int]:
    """The bins of work in which nearly all steps come at the most common interval."""
    if len(late) < REGULAR_STEPS_MIN:
        return frozenset()
    between = Counter(after - before for before, after in pairwise(late))
    for every, _ in sorted(between.most_common(INTERVALS_TRIED), reverse=True):
        usual, fitting = Counter(at % every for at in late).most_common(1)[0]
        if every >= REGULAR_EVERY_MIN and fitting >= REGULAR_SHARE_MIN * len(late):
            by_bin: dict[int, list[bool]] = {}
            for at in late:
                by_bin.setdefault(work_bin(entries[at]), []).append(at % every == usual)
            return frozenset(
                bin_ for bin_, fits in by_bin.items() if sum(fits) >= REGULAR_SHARE_MIN * len(fits)
            )
    return frozenset()
