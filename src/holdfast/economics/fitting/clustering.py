"""Intervals that hold although faults come in clusters: bursts, bad weeks, flapping nodes.

The time is cut into blocks of a day, a week and four weeks. How much more the blocks differ than chance would
have them says how many faults tell as much as a single one, whatever the cause. The largest of the three
counts, and never less than one. An interval is that of so many fewer faults.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from holdfast.economics.fitting.verdict import CONFIDENCE, Interval

BLOCK_DAYS, BLOCKS_MIN = (1, 7, 28), 5
"""Days whose faults are counted together, and how many such blocks are needed to estimate their variance."""

UNEVEN_BLOCKS_MIN = 8
"""Blocks with different numbers of values tell less about their variance."""

Array = NDArray[np.float64]


def interval(count: float, clustered: float = 1.0, chosen_of: int = 1) -> Interval:
    """Interval of the expected number of faults, where `clustered` of them tell as much as one.

    Without clusters it is exact for Poisson counts (Garwood 1936). chosen_of: of how many such counts this
    may be one of the largest. The low ends of all of them hold together (Bonferroni), so it does not matter
    which are looked at. A high end needs no such care: to be chosen, a count has to be high and not low.
    """
    tail, independent = (1 - CONFIDENCE) / 2, count / clustered
    low = stats.chi2.ppf(tail / chosen_of, 2 * independent) / 2 if count else 0.0
    high = stats.chi2.ppf(1 - tail, 2 * independent + 2) / 2
    return clustered * float(low), clustered * float(high)


def clustering(times: Array, days: float) -> float:
    """How many of the faults at these times, in days, tell as much as one: at least 1."""
    if times.size < 2:
        return 1.0
    return float(clustering_of_each(times, np.zeros(times.size, dtype=np.int64), days)[0])


def clustering_of_each(times: Array, groups: NDArray[np.int64], days: float) -> Array:
    """The same for each group, given how many faults it has: its own, and no less than that of all together,
    because a small group alone may not show the bursts that it is prone to.
    """
    sizes = np.bincount(groups).astype(np.float64)
    found = np.ones(sizes.size)
    for counts in _blocks(times, groups, days):
        blocks = counts.shape[1]
        squares = ((counts - sizes[:, np.newaxis] / blocks) ** 2).sum(axis=1)
        by_chance = sizes * (1 - 1 / blocks)  # its faults are dealt to the blocks at random
        together = squares.sum() / by_chance.sum() * _widening(sizes.size * (blocks - 1))
        own = squares / by_chance
        found = np.maximum(found, np.maximum(own, together))
    return found


def _blocks(times: Array, groups: NDArray[np.int64], days: float) -> Iterator[NDArray[np.int64]]:
    """The faults of each group in each block."""
    span = max(days, float(times.max()))
    for block_days in BLOCK_DAYS:
        if (blocks := int(days // block_days)) >= BLOCKS_MIN:
            at = np.minimum((times / span * blocks).astype(np.int64), blocks - 1)
            count = (groups.max() + 1) * blocks
            yield np.bincount(groups * blocks + at, minlength=count).reshape(-1, blocks)


def _widening(freedom: float) -> float:
    """How much larger a variance has to be taken that so few numbers tell (Student 1908)."""
    end = (1 + CONFIDENCE) / 2
    return float(stats.t.ppf(end, freedom) / stats.norm.ppf(end)) ** 2


def early_clustering(shares: Array, days: float) -> float:
    """The same for a trend, for which early faults count most. shares: of the time, when each fault came."""
    found = 1.0
    for block_days in BLOCK_DAYS:
        if (blocks := int(days // block_days)) >= UNEVEN_BLOCKS_MIN:
            edges = np.linspace(0, 1, blocks + 1)
            expected = shares.size * np.diff(-special.xlogy(edges, edges))
            at = np.minimum((shares * blocks).astype(np.int64), blocks - 1)
            sums = np.bincount(at, weights=-np.log(shares) - 1, minlength=blocks)
            squares = float(((sums - expected) ** 2).sum())
            found = max(found, squares / shares.size * _widening(blocks - 1))
    return found


def design_effect(values: Array, times: Array) -> float:
    """How many of these values tell as much about their mean as one that is alone: at least 1 (Kish 1965)."""
    errors = values - values.mean()
    if not (own := float((errors**2).sum())):
        return 1.0
    found = 1.0
    for block_days in BLOCK_DAYS:
        _, block_of, sizes = np.unique(times // block_days, return_inverse=True, return_counts=True)
        even = float(values.size**2 / (sizes**2).sum())  # so many blocks of one size would tell as much
        if even >= UNEVEN_BLOCKS_MIN:
            squares = np.bincount(block_of, weights=errors) ** 2
            # A few large blocks tell less about the variance than as many of one size (Satterthwaite 1946).
            freedom = min(even - 1, 3 * float(squares.sum() ** 2 / (squares**2).sum()))
            found = max(found, float(squares.sum()) / own * even / (even - 1) * _widening(freedom))
    return found
