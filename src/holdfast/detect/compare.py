"""Compare a whole frame at once with its own past, and find the stretches that last.

Everything is a few passes over one array of time by series, in single precision: 16,384 series of half an
hour take some milliseconds. Only series with a finding are then examined one by one.
"""

from functools import lru_cache
from itertools import repeat

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.frame import Floats

Rows = NDArray[np.int64]

PAST_SHARE = 1 / 3
"""The first part of a window is the baseline. Up to half of it may be abnormal already: the median holds."""
PAST_ROWS_MIN = 6
PAST_KNOWN_MIN = 3
"""With fewer readings than this there is no reliable baseline."""
PAST_ROWS_MAX = 24
MANY = 4_096
"""With this many series or more, `PAST_ROWS_MAX` rows spread evenly over the past are enough for medians."""
SAMPLE_MAX = 512
"""With more series than this, a sample of this size gives the spread."""
MAD_TO_SIGMA = 1.4826
MEAN_SIGMAS = 5.0
"""For a mean: among the 10^5 means of one look hardly one is this far off by chance, even though readings of
one series scatter together.
"""
BRIDGE_S, BRIDGE_ROWS = 60.0, 3
"""A problem that returns within this time, or within so many rows, never ended: a missed scrape ends nothing,
however far apart scrapes are.
"""
ALONE_ROWS = 10
"""After this many good observations, a few bad ones do not continue the earlier stretch."""
ONSET_SHARE = 0.4
"""Share of the difference that matters. A series beyond this share was already leaving its baseline."""

LEVEL_SHARE = 1e-3
"""A smaller difference, in shares of the mean, is not a change of level."""


class FindingStretch(msgspec.Struct, frozen=True, order=True, gc=False):
    """Rows of one series in which a finding holds. last: inclusive; noticed: where it was long enough."""

    series: int
    first: int
    noticed: int
    last: int
    lasting: bool


def usual(values: Floats, rows: Rows | None = None) -> Floats:
    """By series: the median of its past; NaN without one. rows: the past, if it is not the first third."""
    rows = past_rows(values) if rows is None else rows
    if not len(rows):
        return np.full(values.shape[1], np.nan, np.float32)
    return middle(values[rows])


def past_rows(values: Floats) -> Rows:
    """The rows that count as the past: the first third of those since readings began.

    In a short window these are nearly all rows but the last ones.
    """
    series = values.shape[1]
    known = np.isfinite(values.take(_some(series), axis=1)).sum(axis=1) if series else np.zeros(len(values))
    begun = int(np.argmax(2 * known >= known.max())) if len(known) else 0
    count = len(values) - begun
    past = max(round(count * PAST_SHARE), min(PAST_ROWS_MIN, count - 2))
    if past <= 0:
        return np.empty(0, np.int64)
    taken = min(past, PAST_ROWS_MAX) if series >= MANY else past
    return begun + np.unique(np.linspace(0, past - 1, taken).astype(np.int64))


def middle(values: Floats) -> Floats:
    """By column: the median of the numbers; NaN if there are too few. Sorting puts NaN last."""
    ordered = np.sort(values, axis=0)
    counts = np.isfinite(ordered).sum(axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.maximum(counts - 1, 0) // 2, columns]
    high = ordered[np.minimum(counts // 2, len(values) - 1), columns]
    return np.where(counts >= min(PAST_KNOWN_MIN, len(values)), (low + high) / 2, np.nan)


def spread(values: Floats, middle: Floats, rows: Rows | None = None) -> float:
    """The standard deviation of readings around the usual value of their series, robust against outliers."""
    rows = past_rows(values) if rows is None else rows
    if not len(rows) or values.shape[1] == 0:
        return 0.0
    some = _some(values.shape[1])
    away = np.abs(values[np.ix_(rows, some)] - middle[some])
    away = away[np.isfinite(away)]
    return float(np.median(away)) * MAD_TO_SIGMA if len(away) else 0.0


@lru_cache(maxsize=64)
def _some(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLE_MAX)).astype(np.int64))


def lasting(
    wrong: NDArray[np.bool_],
    known: NDArray[np.bool_],
    times_ns: NDArray[np.int64],
    rows: int,
    bridge_s: float = BRIDGE_S,
) -> list[FindingStretch]:
    """The stretches of at least `rows` consecutive observations in which a series is wrong.

    known: where there is an observation at all; a gap continues the state before it. bridge_s: a problem that
    returns within this time (or `BRIDGE_ROWS` rows, if these take longer) never ended, unless it returns
    briefly after many good observations. If a series was right more often than wrong before the stretch
    counted, the earlier part was chance, and the stretch begins later. One pass over the rows serves all
    series, so the cost does not depend on how many are wrong.
    """
    columns = np.flatnonzero(np.add.reduce(wrong, axis=0, dtype=np.int32) >= rows)
    if not len(columns):
        return []
    # `take` instead of an index keeps the rows contiguous in memory.
    wrong, known = wrong.take(columns, axis=1), known.take(columns, axis=1)
    right = known & ~wrong
    # By series: whether it is in a stretch, and whether the stretch counts yet; rows since it was last wrong;
    # consecutive observations in which it was wrong; how much more often it was wrong than right.
    is_in, counts = np.zeros((2, len(columns)), np.bool_)
    quiet, row_count, more, first, noticed = np.zeros((5, len(columns)), np.int32)
    found: list[FindingStretch] = []
    # By row: a series that has not been wrong for this many rows is over.
    bridge_ns = max(round(bridge_s * 1e9), min(rows, BRIDGE_ROWS) * step_ns(times_ns))
    gone = np.arange(len(times_ns)) - np.searchsorted(times_ns, times_ns - bridge_ns)

    def close(which: NDArray[np.bool_], row: int, at_end: bool) -> None:
        ended = np.flatnonzero(which & counts)
        cells = (columns[ended], first[ended], noticed[ended], row - quiet[ended])
        found.extend(map(FindingStretch, *(cell.tolist() for cell in cells), repeat(at_end)))
        counts[which] = is_in[which] = False
        row_count[which] = 0

    for row in range(int(np.argmax(wrong.any(axis=1))), len(times_ns)):
        now, not_now, is_right = wrong[row], ~wrong[row], right[row]
        if (is_over := is_in & (quiet >= gone[row])).any():
            close(is_over, row - 1, False)
        if (is_first := now & ~is_in).any():
            first[is_first] = row
            more[is_first] = 0
        is_in |= now
        row_count += now
        row_count *= ~is_right
        quiet += 1
        quiet *= not_now | (counts & (quiet > ALONE_ROWS) & (row_count < rows))
        if (is_new := is_in & ~counts & (row_count >= rows)).any():
            noticed[is_new] = row
            counts |= is_new
        more += now
        more -= is_right
        is_in &= counts | (more >= 0)
    close(is_in, len(times_ns) - 1, True)
    return found


def onset(away: Floats, least: float, first: int) -> int:
    """The row at which a series began to leave its baseline, before the difference was large enough to
    matter.

    away: by row, the distance from the baseline in the direction of the change.
    """
    while first > 0 and least > 0 and away[first - 1] > ONSET_SHARE * least:
        first -= 1
    return first


def change(taken: NDArray[np.float64], least: int) -> tuple[int, float]:
    """The row at which the mean changes, and how sure that is, in standard errors.

    least: the minimum number of rows on either side.
    """
    if len(taken) < 2 * least:
        return 0, 0.0
    rows, scores = changes(taken[:, None], least)
    return int(rows[0]), float(scores[0])


def change_near(taken: NDArray[np.float64], length: int) -> tuple[int, float]:
    """The row at which the mean of the `length` rows after it differs most surely from that of the `length`
    rows before it, and how sure that is, in standard errors. There are at least two such parts.
    """
    away = np.concatenate(([0.0], taken - float(taken.mean())))
    sums, squares = np.cumsum(away), np.cumsum(away**2)
    means = (sums[length:] - sums[:-length]) / length
    within = (squares[length:] - squares[:-length]) / length - means**2
    before, after = means[:-length], means[length:]
    floor = max(1e-12, (LEVEL_SHARE * float(taken.mean())) ** 2)
    noise = np.maximum((within[:-length] + within[length:]) * length / (2 * length - 2), floor)
    scores = np.abs(after - before) / np.sqrt(noise * 2 / length)
    best = int(np.argmax(scores))
    return best + length, float(scores[best])


def changes(values: Floats, least: int) -> tuple[Rows, NDArray[np.float64]]:
    """The same for each series, using its known readings."""
    known = np.isfinite(values)
    taken = np.where(known, values, 0.0).astype(np.float64)
    ahead = np.cumsum(known, axis=0) - known
    count = known.sum(axis=0)
    after = count - ahead
    is_cut = known & (ahead >= least) & (after >= least)
    ahead, after = np.maximum(ahead, 1), np.maximum(after, 1)
    sums, total, squares = np.cumsum(taken, axis=0), taken.sum(axis=0), np.square(taken).sum(axis=0)
    left = np.concatenate((np.zeros((1, len(count))), sums[:-1]))
    right = sums[-1:] - left
    within = squares - left**2 / ahead - right**2 / after
    floor = np.maximum(1e-12, (LEVEL_SHARE * total / np.maximum(count, 1)) ** 2)
    noise = np.maximum(within / np.maximum(1, count - 2), floor)
    scores = np.abs(right / after - left / ahead) / np.sqrt(noise * (1 / ahead + 1 / after))
    scores = np.where(is_cut, scores, 0.0)
    best = np.argmax(scores, axis=0)
    return best, scores[best, np.arange(len(count))]


def rows_in(times_ns: NDArray[np.int64], seconds: float) -> int:
    return max(1, round(seconds * 1e9 / (step_ns(times_ns) or 10**10)))


def step_ns(times_ns: NDArray[np.int64]) -> int:
    """How far apart the rows are; 0 if there is only one."""
    return int(np.median(np.diff(times_ns))) if len(times_ns) > 1 else 0


def rolling(values: Floats, rows: int) -> Floats:
    """By row: the mean of the last `rows` known readings; NaN if fewer than half of them are known."""
    known = np.isfinite(values)
    total = np.cumsum(np.where(known, values, 0.0), axis=0, dtype=np.float64)
    count = np.cumsum(known, axis=0, dtype=np.int32)
    total[rows:] -= total[:-rows].copy()
    count[rows:] -= count[:-rows].copy()
    enough = count >= max(1, rows // 2)
    return np.where(enough & known, total / np.maximum(count, 1), np.nan).astype(np.float32)
