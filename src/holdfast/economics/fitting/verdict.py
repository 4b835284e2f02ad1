"""A question about a record, answered yes, no or unknown, with its p-value and a sentence."""

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from holdfast import wording

Answer = Literal["yes", "no", "unknown"]

Interval = tuple[float, float]

CONFIDENCE = 0.95
"""Of every interval of a fit."""
DRAWS, DRAWS_MIN = 999, 99
NUMBERS_MAX = 20_000_000
"""How many numbers a test may draw; with a large sample it makes fewer draws."""
NUMBERS_AT_ONCE_MAX = 1_000_000
CHANCE_MAX = 0.01
"""A result with a smaller p-value is not called chance. The limit is low because a fit asks ten questions."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """p_value: how often chance alone would look at least like this; None without a test."""

    question: str
    answer: Answer
    sentence: str
    p_value: float | None = None


def unknown(question: str, sentence: str) -> Verdict:
    return Verdict(question=question, answer="unknown", sentence=sentence)


def is_chance(p_value: float) -> bool:
    return p_value >= CHANCE_MAX


def chance(p_value: float) -> str:
    """`p = 0.23`, or `p ≤ 0.001`: more digits would be useless, and simulations do not give them."""
    return "p ≤ 0.001" if p_value <= 0.001 else f"p = {wording.number(p_value, 2)}"


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """distance: the largest gap between the two cumulative curves, 0 to 1 (Kolmogorov and Smirnov)."""

    distance: float
    p_value: float


def closeness(
    distribution: Any, sample: NDArray[np.float64], rng: np.random.Generator, **known: float
) -> Closeness:
    """How well a sample fits a scipy distribution whose parameters, except the known ones, are fitted to it:
    compare its distance with that of samples from the distribution (Lilliefors 1967, 1969).
    """
    draws = max(DRAWS_MIN, min(DRAWS, NUMBERS_MAX // sample.size))
    at_once = max(1, NUMBERS_AT_ONCE_MAX // sample.size)  # scipy keeps all draws in memory
    distance, further = 0.0, 0
    for first in range(0, draws, at_once):
        found = stats.goodness_of_fit(
            distribution,
            sample,
            known_params=known,
            statistic="ks",
            n_mc_samples=min(at_once, draws - first),
            random_state=rng,
        )
        distance = float(found.statistic)
        further += int((found.null_distribution >= distance).sum())
    return Closeness(distance=distance, p_value=(further + 1) / (draws + 1))
