"""Comparing a whole frame at once: with its own past, with its peers, with a limit; and what lasts.

Everything is a few passes over one array of time by series, in single precision: 16,384 series of half an
hour take some milliseconds. Only series in which something was found are looked at one by one.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.frame import Floats

Rows = NDArray[np.int64]

PAST_SHARE = 1 / 3
"""The first part of a window is what was usual. Half of that may be abnormal already: the median holds."""
PAST_ROWS_MIN = 6
PAST_KNOWN_MIN = 3
"""From fewer readings nobody knows what is usual."""
PAST_ROWS_MAX = 24
MANY = 4_096
"""Of so many series or more, so many rows spread evenly over the past are enough for their medians."""
SAMPLE_MAX = 512
"""Of many series so many tell the spread, and what peers do."""
MAD_TO_SIGMA = 1.4826
MEAN_SIGMAS = 5.0
"""Of a mean: among the 10^5 of a look hardly one is so far off by chance, and readings scatter as one."""
BRIDGE_S = 60.0
NEVER_NS = 2**63 - 1
ONSET_SHARE = 0.4
"""Of the difference that matters: from there on it was on its way."""


class FindingStretch(msgspec.Struct, frozen=True, order=True, gc=False):
    """Rows of one series in which a finding holds. last: inclusive; noticed: the row at which it counted."""

    series: int
    first: int
    noticed: int
    last: int
    lasting: bool


def usual(values: Floats, rows: Rows | None = None) -> Floats:
    """By series: the median of its past; NaN where there is none. rows: those, where not the first third."""
    rows = past_rows(values) if rows is None else rows
    if not len(rows):
        return np.full(values.shape[1], np.nan, np.float32)
    return _middle(values[rows])


def past_rows(values: Floats) -> Rows:
    """The rows that count as the past: of those since there are any readings, the first third.

    Of a short time it is nearly all but the last ones.
    """
    series = values.shape[1]
    known = np.isfinite(values[:, _some(series)]).sum(axis=1) if series else np.zeros(len(values))
    begun = int(np.argmax(2 * known >= known.max())) if len(known) else 0
    count = len(values) - begun
    past = max(round(count * PAST_SHARE), min(PAST_ROWS_MIN, count - 2))
    if past <= 0:
        return np.empty(0, np.int64)
    taken = min(past, PAST_ROWS_MAX) if series >= MANY else past
    return begun + np.unique(np.linspace(0, past - 1, taken).astype(np.int64))


def _middle(values: Floats) -> Floats:
    """By column: the median of what is a number, where there is enough of it. Sorting puts NaN last."""
    ordered = np.sort(values, axis=0)
    counts = np.isfinite(ordered).sum(axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.maximum(counts - 1, 0) // 2, columns]
    high = ordered[np.minimum(counts // 2, len(values) - 1), columns]
    return np.where(counts >= min(PAST_KNOWN_MIN, len(values)), (low + high) / 2, np.nan)


def spread(values: Floats, middle: Floats, rows: Rows | None = None) -> float:
    """The standard deviation of a series around what is usual for it, as most of them have it."""
    rows = past_rows(values) if rows is None else rows
    if not len(rows) or values.shape[1] == 0:
        return 0.0
    some = _some(values.shape[1])
    away = np.abs(values[np.ix_(rows, some)] - middle[some])
    away = away[np.isfinite(away)]
    return float(np.median(away)) * MAD_TO_SIGMA if len(away) else 0.0


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

    known: where there is an observation at all; without one, what was before goes on. bridge_s: what comes
    back within so much time had not gone; but what was right more often than wrong before it counted was by
    chance, and is not when it began. One pass over the rows for all series together, so it does not matter
    how many are wrong at once.
    """
    columns = np.flatnonzero(wrong.sum(axis=0) >= rows)
    if not len(columns):
        return []
    wrong, known = wrong[:, columns], known[:, columns]
    right = known & ~wrong
    count, first, noticed, last, more = np.zeros((5, len(columns)), np.int32)
    noticed[:] = last[:] = -1
    # By series: until when what was last seen to be wrong may be missing, and is not over.
    until_ns = np.full(len(columns), NEVER_NS)
    found: list[FindingStretch] = []
    bridge_ns = round(bridge_s * 1e9)

    # Over is what has been seen to be right again for a while, however long it was not looked at.
    seen = len(times_ns) - 1 - np.argmax(known[::-1], axis=0)

    def close(which: NDArray[np.bool_], at_end: bool) -> None:
        ended = np.flatnonzero(which & (noticed >= 0))
        is_lasting = at_end & (times_ns[seen[ended]] - times_ns[last[ended]] <= bridge_ns)
        cells = (columns[ended], first[ended], noticed[ended], last[ended], is_lasting)
        found.extend(map(FindingStretch, *(cell.tolist() for cell in cells)))
        noticed[which] = last[which] = -1
        until_ns[which] = NEVER_NS
        count[which] = 0

    for row, at_ns in enumerate(times_ns.tolist()):
        is_over = until_ns < at_ns
        if is_over.any():
            close(is_over, False)
        now = wrong[row]
        is_first = now & (last < 0)
        np.copyto(first, row, where=is_first)
        np.copyto(more, 0, where=is_first)
        np.copyto(last, row, where=now)
        np.copyto(until_ns, at_ns + bridge_ns, where=now)
        count += now
        np.copyto(count, 0, where=right[row])
        np.copyto(noticed, row, where=(noticed < 0) & (count >= rows))
        more += now
        more -= right[row]
        is_stray = (noticed < 0) & (more < 0)
        np.copyto(last, -1, where=is_stray)
        np.copyto(until_ns, NEVER_NS, where=is_stray)
    close(last >= 0, True)
    return found


def onset(away: Floats, least: float, first: int) -> int:
    """The row at which a series began to leave what is usual, before it was as far away as to matter.

    away: by row, how far in the direction in which it went.
    """
    while first > 0 and least > 0 and away[first - 1] > ONSET_SHARE * least:
        first -= 1
    return first


def change(taken: NDArray[np.float64], least: int) -> tuple[int, float]:
    """The row from which on the mean is another one, and how sure that is, in standard errors.

    least: so many rows there must be on either side.
    """
    count = len(taken)
    if count < 2 * least:
        return 0, 0.0
    ahead = np.arange(least, count - least + 1)
    sums, squares = np.cumsum(taken), np.cumsum(taken**2)
    left, right = sums[ahead - 1], sums[-1] - sums[ahead - 1]
    apart = right / (count - ahead) - left / ahead
    within = squares[-1] - left**2 / ahead - right**2 / (count - ahead)
    # What hardly differs is told apart by thousandths: below that nothing is another level.
    noise = np.maximum(within / max(1, count - 2), max(1e-12, (1e-3 * float(taken.mean())) ** 2))
    scores = np.abs(apart) / np.sqrt(noise * (1 / ahead + 1 / (count - ahead)))
    best = int(np.argmax(scores))
    return int(ahead[best]), float(scores[best])


def rows_in(times_ns: NDArray[np.int64], seconds: float) -> int:
    step_ns = float(np.median(np.diff(times_ns))) if len(times_ns) > 1 else 1e10
    return max(1, round(seconds * 1e9 / step_ns))


def rolling(values: Floats, rows: int) -> Floats:
    """By row: the mean of what is known of it and those before; NaN where hardly anything is."""
    known = np.isfinite(values)
    total = np.cumsum(np.where(known, values, 0.0), axis=0, dtype=np.float64)
    count = np.cumsum(known, axis=0, dtype=np.int32)
    total[rows:] -= total[:-rows].copy()
    count[rows:] -= count[:-rows].copy()
    enough = count >= max(1, rows // 2)
    return np.where(enough & known, total / np.maximum(count, 1), np.nan).astype(np.float32)
