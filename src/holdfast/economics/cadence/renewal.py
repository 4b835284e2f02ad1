"""The best interval between checkpoints: exact for exponential failures, and by simulation for others.

Each time the run comes up, the time to its next failure, a *gap*, is drawn from the same distribution for the
whole run. So its course is a renewal process, and its gain from one failure to the next does not depend on
the past. Intervals are compared on the same drawn gaps (common random numbers), so they differ by the
interval and not by luck.
"""

import math
from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from holdfast import wording
from holdfast.economics.cadence.cadence import Costs, daly_work_s
from holdfast.record.errors import InputError

Kind = Literal["exponential", "weibull", "gamma", "lognormal"]
KINDS: tuple[Kind, ...] = get_args(Kind)

FAILURES_DRAWN = 200_000
"""Gives a standard error of the efficiency of at most about 0.1 points, in half a second."""
SHAPE_MIN, SHAPE_MAX = 0.3, 3.0
"""Beyond these, so few draws dominate the mean that a simulation of this size is meaningless."""
GAPS_MIN = 5
"""With fewer recorded gaps, even the width is not known within a factor of two."""
STALL_SHARE_MIN = 1e-8
"""Of the MTBF. Below it, Lambert's function loses digits near its branch point; Daly's series does not."""
GRID_POINTS = 60
"""The search for the optimum starts from this many intervals, evenly spaced in their logarithm."""

Draws = NDArray[np.float64]
"""Gaps between failures, in seconds."""


class GapDistribution(Protocol):
    """A distribution of the gaps between failures."""

    def draw(self, rng: np.random.Generator, failures: int = FAILURES_DRAWN) -> Draws:
        """The gaps of one simulated history, to compare intervals on."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated efficiency and its standard error."""

    efficiency: float
    stderr: float


class FamilyGaps(msgspec.Struct, frozen=True, kw_only=True):
    """Gaps of a known family, with this mean. shape: Weibull's and gamma's k (below 1: failures come in
    clusters) or the lognormal's sigma; the exponential ignores it.
    """

    kind: Kind
    mtbf_s: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not SHAPE_MIN <= self.shape <= SHAPE_MAX:
            raise InputError(
                f"A {self.kind} distribution of shape {wording.number(self.shape)} cannot be simulated.",
                hint=f"Give one between {SHAPE_MIN:g} and {SHAPE_MAX:g}, such as weibull:0.7.",
            )

    def draw(self, rng: np.random.Generator, failures: int = FAILURES_DRAWN) -> Draws:
        shape = self.shape
        match self.kind:
            case "exponential":
                return rng.exponential(self.mtbf_s, failures)
            case "weibull":
                return self.mtbf_s / math.gamma(1 + 1 / shape) * rng.weibull(shape, failures)
            case "gamma":
                return rng.gamma(shape, self.mtbf_s / shape, failures)
            case "lognormal":
                return rng.lognormal(math.log(self.mtbf_s) - shape**2 / 2, shape, failures)


class RecordedGaps:
    """Observed gaps, blurred: one gap of 20 minutes should not make a checkpoint after 19 seem best.

    A smoothed bootstrap: each draw is an observed gap times a lognormal factor of mean 1, whose width follows
    Silverman's rule for the logarithms of the gaps.
    """

    def __init__(self, gaps_s: Sequence[float]) -> None:
        self._gaps_s = np.asarray([gap_s for gap_s in gaps_s if gap_s > 0], dtype=np.float64)
        if len(self._gaps_s) < GAPS_MIN:
            raise InputError(
                f"{len(self._gaps_s)} times between failures say too little about how they are spread.",
                hint=f"Give {GAPS_MIN} or more that are above 0, or their mean as --mtbf.",
            )
        self._width = float(1.06 * np.std(np.log(self._gaps_s), ddof=1) * len(self._gaps_s) ** -0.2)
        self.mean_s = float(self._gaps_s.mean())

    def draw(self, rng: np.random.Generator, failures: int = FAILURES_DRAWN) -> Draws:
        blur = rng.lognormal(-(self._width**2) / 2, self._width, failures)
        return rng.choice(self._gaps_s, failures) * blur


def optimum_s(costs: Costs, mtbf_s: float) -> float:
    """The best interval if failures are exponential; at least as long as a checkpoint takes to write.

    The derivative of `cadence.efficiency` is zero at e^x (1 + c - x) = 1 with x = T/mu and c = C/mu, so
    x = 1 + c + W(-e^-(1 + c)), W being Lambert's function. It depends on neither restore nor write time.
    """
    stall = costs.stall_s / mtbf_s
    if stall < STALL_SHARE_MIN:
        best_s = daly_work_s(costs.stall_s, mtbf_s) + costs.stall_s
    else:
        best_s = mtbf_s * float(1 + stall + special.lambertw(-math.exp(-1 - stall)).real)
    return max(best_s, costs.interval_s_min)


def simulate_efficiency(interval_s: float, costs: Costs, drawn: Draws) -> Estimate:
    """The share of time that a run keeps if these failures strike one after the other.

    After each failure the run restores, then saves a checkpoint at each interval, which is usable once it is
    written; the next failure undoes the work after the last usable one. A gap too short for one yields
    nothing.
    """
    stepping_s = drawn - (costs.restore_s + costs.write_s)
    kept_s = np.maximum(0, stepping_s // interval_s) * max(0.0, interval_s - costs.stall_s)
    spent_s = drawn + costs.downtime_s
    efficiency = kept_s.sum() / spent_s.sum()
    # Both sums are random; the error is that of their ratio, in which most of the noise cancels.
    stderr = np.sqrt(np.square(kept_s - efficiency * spent_s).sum()) / spent_s.sum()
    return Estimate(efficiency=float(efficiency), stderr=float(stderr))


def simulated_optimum_s(costs: Costs, drawn: Draws) -> float:
    """The interval that would have been the best for these failures."""

    def lost(log_interval: float) -> float:
        return 1 - simulate_efficiency(math.exp(log_interval), costs, drawn).efficiency

    shortest_s = costs.interval_s_min
    longest_s = max(shortest_s, float(drawn.max()))
    grid = [float(point) for point in np.linspace(math.log(shortest_s), math.log(longest_s), GRID_POINTS)]
    best = min(range(GRID_POINTS), key=lambda point: lost(grid[point]))
    around = grid[max(0, best - 1)], grid[min(GRID_POINTS - 1, best + 1)]
    found = float(optimize.minimize_scalar(lost, bounds=around, method="bounded").x)
    return math.exp(min(found, grid[best], key=lost))
