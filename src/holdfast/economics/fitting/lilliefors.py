"""Whether a sample could be normal or exponential, where its parameters are estimated from the sample itself.

Its distance from the distribution fitted to it is compared with that of samples which do come from one
(Lilliefors 1967, 1969). Tables for known parameters would find nearly every sample close enough.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

DRAWS = 999
NUMBERS_MAX = 20_000_000
"""How many numbers a test may draw; for a large sample it makes do with fewer draws."""

DRAWS_MIN = 99


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """distance: the largest gap between the two cumulative curves, 0 to 1 (Kolmogorov and Smirnov)."""

    distance: float
    p_value: float


def normal(sample: Array, rng: np.random.Generator) -> Closeness:
    return _compared(sample, rng.standard_normal, _normal_distance)


def exponential(sample: Array, rng: np.random.Generator) -> Closeness:
    return _compared(sample, rng.standard_exponential, _exponential_distance)


def _compared(
    sample: Array, draw: Callable[[int], Array], distance_of: Callable[[Array], float]
) -> Closeness:
    observed = distance_of(sample)
    draws = max(DRAWS_MIN, min(DRAWS, NUMBERS_MAX // sample.size))
    further = sum(distance_of(draw(sample.size)) >= observed for _ in range(draws))
    return Closeness(distance=observed, p_value=(further + 1) / (draws + 1))


def _normal_distance(sample: Array) -> float:
    return _distance(special.ndtr((np.sort(sample) - sample.mean()) / sample.std()))


def _exponential_distance(sample: Array) -> float:
    return _distance(-np.expm1(-np.sort(sample) / sample.mean()))


def _distance(levels: Array) -> float:
    """Between the sorted levels of a fitted distribution and the steps that the sample takes."""
    steps = np.arange(levels.size + 1) / levels.size
    return float(max((steps[1:] - levels).max(), (levels - steps[:-1]).max()))
