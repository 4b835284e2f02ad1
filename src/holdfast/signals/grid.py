"""Place samples with their true times on a grid of times, as a frame.

The grid follows the samples: its cells are as long as the time between them, or hold the same number of them
each. Each exporter is scraped at its own moment within the interval, a little late or early each time. With
fixed cells, an exporter whose moment lies near a border would have two samples in one cell and none in the
next; so the cells of each series lie around its own moments, and what a frame shows does not depend on when
it is asked for.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.catalogue import CATALOGUE, Metric
from holdfast.signals.frame import Frame, Labels, Word
from holdfast.wording.units import SECOND_NS

CELLS_MAX = 100_000
RECENT_GAPS = 16
"""The newest gaps of a series tell its interval: an operator may have changed it."""
EVEN_SHARE, PART_NS = 0.02, SECOND_NS // 10
EVEN_NS = (5 * SECOND_NS, SECOND_NS, SECOND_NS // 2)
"""An interval this close to a multiple of one of these is meant so; the first that fits counts. Any other is
rounded to tenths.
"""
LEFT_OUT = -1


class Samples(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Some series as they were scraped, one after the other, each in order of time and none empty.

    series: of each sample, the index of its labels. words: texts by the index of the sample, whose value is
    NaN.
    """

    labels: tuple[Labels, ...]
    series: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]
    words: tuple[tuple[int, str], ...] = ()


class Comb(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Where the samples of some series lie. Cells are `step_ns` long and counted from the epoch.

    per: by series, how many samples a cell has; phases: where these lie, as a share of their interval
    """

    step_ns: int
    per: NDArray[np.int64]
    phases: NDArray[np.float64]

    def cells(self, series: NDArray[np.int64], times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cell of each sample."""
        per = self.per[series]
        return times_ns // self.step_ns + self._slots(series, times_ns) // per

    def are_last(self, series: NDArray[np.int64], times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each sample is the last one that its cell should have."""
        per = self.per[series]
        return np.asarray(self._slots(series, times_ns) % per == per - 1)

    def strays(self, series: NDArray[np.int64], times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """How far each sample lies from where one is expected, in intervals of its series."""
        places = self._places(times_ns) * self.per[series] - self.phases[series]
        return np.abs(places - np.rint(places))

    def newest(self, at_ns: int) -> NDArray[np.int64]:
        """By series: the last cell that is complete at this moment."""
        place = (at_ns % self.step_ns) / self.step_ns
        slots = np.floor(place * self.per - self.phases).astype(np.int64)
        return at_ns // self.step_ns + (slots + 1) // self.per - 1

    def rows(self, window_ns: tuple[int, int]) -> int:
        return min(CELLS_MAX, -(-(window_ns[1] - window_ns[0]) // self.step_ns))

    def times_ns(self, window_ns: tuple[int, int], rows: int) -> NDArray[np.int64]:
        return window_ns[1] + np.arange(-rows, 0, dtype=np.int64) * self.step_ns

    def _slots(self, series: NDArray[np.int64], times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.rint(self._places(times_ns) * self.per[series] - self.phases[series]).astype(np.int64)

    def _places(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray((times_ns % self.step_ns) / self.step_ns, np.float64)


def comb_of(
    series: NDArray[np.int64],
    times_ns: NDArray[np.int64],
    count: int,
    wanted_ns: int,
    step_ns: int | None = None,
) -> Comb:
    """The comb of these samples, with as many of them in a cell as make about `wanted_ns`.

    step_ns: the length of the cells, if it is known already.
    """
    intervals_ns = _intervals_ns(series, times_ns, count)
    step_ns = _step_ns(intervals_ns, wanted_ns) if step_ns is None else step_ns
    usual_ns = _usual_ns(intervals_ns) or step_ns
    per = np.rint(step_ns / np.where(np.isfinite(intervals_ns), intervals_ns, usual_ns))
    per = np.maximum(1, per).astype(np.int64)
    # The mean of phases on a circle, which is one interval of the series long.
    angles = 2 * np.pi * per[series] * (times_ns % step_ns) / step_ns
    sines, cosines = (np.bincount(series, part(angles), count) for part in (np.sin, np.cos))
    return Comb(step_ns=step_ns, per=per, phases=np.arctan2(sines, cosines) / (2 * np.pi) % 1.0)


def may_grow(metric: Metric) -> bool:
    """Whether it is a counter; what the catalogue does not know may be one under any name."""
    return metric.kind == "counter" or metric.name not in CATALOGUE


def step_of(series: NDArray[np.int64], times_ns: NDArray[np.int64], count: int, wanted_ns: int) -> int:
    """The length of the cells that fits these samples."""
    return _step_ns(_intervals_ns(series, times_ns, count), wanted_ns)


def _step_ns(intervals_ns: NDArray[np.float64], wanted_ns: int) -> int:
    """As many of the usual intervals as make about the wanted time, and at least one."""
    usual_ns = _usual_ns(intervals_ns)
    return max(1, round(wanted_ns / usual_ns)) * usual_ns if usual_ns else wanted_ns


def _usual_ns(intervals_ns: NDArray[np.float64]) -> int:
    """The interval of most series; 0 if none is known."""
    known = np.sort(intervals_ns[np.isfinite(intervals_ns)])
    if not len(known):
        return 0
    usual_ns = float(known[(len(known) - 1) // 2])
    for part_ns in EVEN_NS:
        even_ns = round(usual_ns / part_ns) * part_ns
        if abs(usual_ns - even_ns) <= EVEN_SHARE * usual_ns:
            return even_ns
    return max(1, round(usual_ns / PART_NS)) * PART_NS


def _intervals_ns(series: NDArray[np.int64], times_ns: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """By series, the time between its newest samples; NaN if it has only one. A missed scrape is a gap of
    several intervals.
    """
    gaps_ns = np.diff(times_ns)
    own = np.flatnonzero((np.diff(series) == 0) & (gaps_ns > 0))
    gaps_ns, owners = gaps_ns[own], series[1:][own]
    ends = np.cumsum(np.bincount(owners, minlength=count))
    recent = ends[owners] - np.arange(len(owners)) <= RECENT_GAPS
    gaps_ns, owners = gaps_ns[recent], owners[recent]
    gaps_ns = gaps_ns[np.lexsort((gaps_ns, owners))]
    counts = np.bincount(owners, minlength=count)
    found = np.full(count, np.nan)
    known = counts > 0
    middles = np.cumsum(counts)[known] - counts[known] + (counts[known] - 1) // 2
    found[known] = gaps_ns[middles]
    scrapes = np.rint(gaps_ns / found[owners])
    spans_ns = np.bincount(owners, np.where(scrapes > 0, gaps_ns, 0), count)
    found[known] = spans_ns[known] / np.bincount(owners, scrapes, count)[known]
    return found


def on_grid(
    metric: Metric,
    samples: Samples,
    *,
    window_ns: tuple[int, int],
    step_ns: int,
    name: Callable[[Labels], str | None],
) -> Frame | None:
    """A frame whose last row has the newest cell of each series. If a cell has several samples, the last one
    counts. The newest value of what grows is left out if the last scrape of its cell was missed: it would
    seem to grow more slowly until the next one.

    step_ns: about how long a cell should be. Series without a name are left out: nothing could be said about
    them.
    """
    names = [name(labels) for labels in samples.labels]
    kept = [index for index, subject in enumerate(names) if subject]
    if not kept:
        return None
    column = np.full(len(names), LEFT_OUT)
    column[kept] = np.arange(len(kept))
    comb = comb_of(samples.series, samples.times_ns, len(names), step_ns)
    rows = comb.rows(window_ns)
    ago = comb.newest(window_ns[1] - 1)[samples.series] - comb.cells(samples.series, samples.times_ns)
    cells, columns = rows - 1 - ago, column[samples.series]
    inside = (cells >= 0) & (cells < rows) & (columns >= 0)
    values = np.full((rows, len(kept)), np.nan)
    values[cells[inside], columns[inside]] = samples.values[inside]
    if may_grow(metric):
        ended = (cells == rows - 1) & comb.are_last(samples.series, samples.times_ns) & inside
        values[-1, np.setdiff1d(np.arange(len(kept)), columns[ended])] = np.nan
    return Frame(
        metric=metric.name,
        kind=metric.kind,
        meaning=metric.meaning,
        subjects=tuple(subject for subject in names if subject),
        labels=tuple(samples.labels[index] for index in kept),
        times_ns=comb.times_ns(window_ns, rows),
        values=values,
        words=tuple(
            Word(time=int(cells[at]), series=int(columns[at]), text=text)
            for at, text in samples.words
            if inside[at]
        ),
    )
