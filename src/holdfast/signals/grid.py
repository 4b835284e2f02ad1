"""Place samples with their true times on a grid of times, as a frame.

Each exporter is scraped at its own moment within the interval, a little late or early each time. With fixed
cells, an exporter whose moment lies near a border would have two samples in one cell and none in the next; so
the cells of each series lie around its own moment.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.catalogue import Metric
from holdfast.signals.frame import Floats, Frame, Labels, Word
from holdfast.wording.units import SECOND_NS

COARSE_FACTOR = 1.25
"""Times the requested step: metrics scraped less often than this get a grid as coarse as their scrapes."""
CELLS_MAX = 100_000
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


def on_grid(
    metric: Metric,
    samples: Samples,
    *,
    window_ns: tuple[int, int],
    step_ns: int,
    name: Callable[[Labels], str | None],
) -> Frame | None:
    """A frame whose last cell ends with the window. If a cell has several samples, the last one counts.

    Series without a name are left out: nothing could be said about them.
    """
    names = [name(labels) for labels in samples.labels]
    kept = [index for index, subject in enumerate(names) if subject]
    if not kept:
        return None
    column = np.full(len(names), LEFT_OUT)
    column[kept] = np.arange(len(kept))
    step_ns = step_of(samples.series, samples.times_ns, step_ns)
    rows = min(CELLS_MAX, -(-(window_ns[1] - window_ns[0]) // step_ns))
    times_ns = window_ns[1] + np.arange(-rows, 0, dtype=np.int64) * step_ns
    cells, columns = _cells(samples, times_ns, step_ns), column[samples.series]
    inside = (cells >= 0) & (columns >= 0)
    values = np.full((len(times_ns), len(kept)), np.nan)
    values[cells[inside], columns[inside]] = samples.values[inside]
    return Frame(
        metric=metric.name,
        kind=metric.kind,
        meaning=metric.meaning,
        subjects=tuple(subject for subject in names if subject),
        labels=tuple(samples.labels[index] for index in kept),
        times_ns=times_ns,
        values=values,
        words=tuple(
            Word(time=int(cells[at]), series=int(columns[at]), text=text)
            for at, text in samples.words
            if inside[at]
        ),
    )


def step_of(series: NDArray[np.int64], times_ns: NDArray[np.int64], step_ns: int) -> int:
    """The step, or the usual time between samples in whole seconds if that is longer."""
    gaps_ns = np.diff(times_ns)[np.diff(series) == 0]
    interval_ns = float(np.median(gaps_ns)) if len(gaps_ns) else 0.0
    if interval_ns <= COARSE_FACTOR * step_ns:
        return step_ns
    return max(SECOND_NS, round(interval_ns / SECOND_NS) * SECOND_NS)


def _cells(samples: Samples, times_ns: NDArray[np.int64], step_ns: int) -> NDArray[np.int64]:
    """The cell of each sample, counted back from the window's end so that the newest is never lost."""
    steps_ago = (times_ns[-1] + step_ns - samples.times_ns) / step_ns
    moments = moments_of(samples.series, steps_ago, len(samples.labels))
    ago = np.maximum(0, np.rint(steps_ago - moments[samples.series])).astype(np.int64)
    return np.asarray(len(times_ns) - 1 - ago, np.int64)


def moments_of(series: NDArray[np.int64], steps: Floats, count: int) -> Floats:
    """The mean position of each series' samples within a step, averaged as phases on a circle."""
    angles = 2 * np.pi * steps
    sines = np.bincount(series, np.sin(angles), count)
    cosines = np.bincount(series, np.cos(angles), count)
    return np.asarray(np.arctan2(sines, cosines) / (2 * np.pi) % 1.0)
