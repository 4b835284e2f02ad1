"""How long nodes are away: quantiles, and the best lognormal and Weibull distributions.

Outages that are not over count for as long as they have lasted: quantiles are the product-limit estimate
(Kaplan and Meier 1958), and likelihoods are censored. Leaving them out would make repairs look short.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from holdfast.economics.fitting.clustering import design_effect
from holdfast.economics.fitting.outages import Fault
from holdfast.economics.fitting.verdict import (
    CONFIDENCE,
    Interval,
    Verdict,
    chance,
    closeness,
    is_chance,
    unknown,
)
from holdfast.wording.units import DAY_NS, HOUR_NS

SHORTEST_H = 1 / 60
"""Shorter outages are fitted as a minute: the logarithm of almost 0 would outweigh all the rest."""

OUTAGES_MIN = 20
"""With fewer outages, distributions cannot be told apart."""

SHAPE_MIN, SHAPE_MAX = 0.02, 50.0
"""Bounds of the search for a Weibull shape; measured ones lie between 0.3 and 3."""

QUESTION = "repair times lognormal"

Array = NDArray[np.float64]


class Lognormal(msgspec.Struct, frozen=True, kw_only=True):
    """Half of the outages are over by `median_h`; sigma is that of the logarithm."""

    median_h: float
    sigma: float
    aic: float


class Weibull(msgspec.Struct, frozen=True, kw_only=True):
    """shape below 1: the longer an outage lasts, the less likely it ends soon. The interval holds 95 %."""

    shape: float
    shape_interval: Interval
    scale: float
    aic: float


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """Outages in hours; None if too many are not over. open: how many are not over."""

    outages: int
    open: int
    mean_h: float
    median_h: float | None
    median_interval_h: Interval | None
    p90_h: float | None
    lognormal: Lognormal | None = None
    weibull: Weibull | None = None
    nearest: Literal["lognormal", "weibull"] | None = None
    verdict: Verdict


class Durations:
    """Durations, and which of them were not over when last seen."""

    def __init__(
        self, lengths: Array, is_open: NDArray[np.bool_] | None = None, days: Array | None = None
    ) -> None:
        """days: when each began; if that is not known, each tells as much as any other."""
        self.lengths = lengths
        self.is_open = np.zeros(lengths.size, dtype=bool) if is_open is None else is_open
        self.days = np.zeros(lengths.size) if days is None else days

    def censored(self) -> Any:
        """The durations in scipy's form."""
        return stats.CensoredData(uncensored=self.lengths[~self.is_open], right=self.lengths[self.is_open])

    def at_least(self, shortest: float) -> "Durations":
        return Durations(np.maximum(self.lengths, shortest), self.is_open, self.days)

    def clustering(self, values: Array) -> float:
        """How many of these values, one for each duration, tell as much as one that began alone."""
        return design_effect(values, self.days)


def outages(faults: Sequence[Fault]) -> Durations:
    """The outages of these faults in hours, as far as they are known."""
    known = [
        (fault.outage_ns / HOUR_NS, fault.is_open, fault.at_ns / DAY_NS)
        for fault in faults
        if fault.outage_ns is not None
    ]
    hours, is_open, days = zip(*known, strict=True) if known else ((), (), ())
    return Durations(np.array(hours, dtype=float), np.array(is_open, dtype=bool), np.array(days, dtype=float))


class Usual(msgspec.Struct, frozen=True, kw_only=True):
    """The lognormal distribution with the outages' own median and mean, on which downtime depends.

    The maximum-likelihood one fits their logarithms, and its mean can be several times theirs.
    """

    median_h: float
    sigma: float


def usual(faults: Sequence[Fault]) -> Usual | None:
    """None if the median is unknown."""
    seen = outages(faults)
    if seen.is_open.all():
        return None
    curve = stats.ecdf(seen.censored()).sf
    median_h, mean_h = _quantile(curve, 0.5), _mean(curve)
    if median_h is None:
        return None
    at_least = max(median_h, SHORTEST_H)
    return Usual(median_h=at_least, sigma=math.sqrt(2 * math.log(max(1.0, mean_h / at_least))))


def repairs(faults: Sequence[Fault], rng: np.random.Generator) -> Repairs | None:
    """None if no outage is known to be over."""
    seen = outages(faults)
    if seen.is_open.all():
        return None
    estimate = stats.ecdf(seen.censored())
    median_h = _quantile(estimate.sf, 0.5)
    low, high = _band(
        estimate, 1.0 if median_h is None else seen.clustering((seen.lengths > median_h).astype(float))
    )
    told = Repairs(
        outages=len(seen.lengths),
        open=int(seen.is_open.sum()),
        mean_h=_mean(estimate.sf),
        median_h=median_h,
        median_interval_h=None if low is None or high is None else (low, high),
        p90_h=_quantile(estimate.sf, 0.9),
        verdict=unknown(QUESTION, f"{len(seen.lengths)} outages are too few to tell a distribution."),
    )
    return _fitted(told, seen, rng) if len(seen.lengths) >= OUTAGES_MIN else told


def _fitted(told: Repairs, seen: Durations, rng: np.random.Generator) -> Repairs:
    floored = seen.at_least(SHORTEST_H)
    lognormal, weibull = fit_lognormal(floored), fit_weibull(floored)
    if lognormal is None or weibull is None:
        return told
    nearest: Literal["lognormal", "weibull"] = "lognormal" if lognormal.aic <= weibull.aic else "weibull"
    verdict = _judged(floored, nearest, rng)
    return msgspec.structs.replace(
        told, lognormal=lognormal, weibull=weibull, nearest=nearest, verdict=verdict
    )


def _quantile(sf: Any, share: float) -> float | None:
    """When this share of outages is over; None if that was never reached."""
    reached = np.flatnonzero(sf.probabilities <= 1 - share)
    return float(sf.quantiles[reached[0]]) if reached.size else None


def _mean(sf: Any) -> float:
    """The area below the observed part of the curve."""
    steps = np.diff(sf.quantiles, prepend=0.0)
    return float(np.sum(steps * np.concatenate(([1.0], sf.probabilities[:-1]))))


def _band(estimate: Any, clustered: float) -> tuple[float | None, float | None]:
    """The interval of the median. clustered: how many outages tell as much as one."""
    errors = stats.norm.ppf((1 + CONFIDENCE) / 2) * math.sqrt(clustered)
    confidence = 2 * stats.norm.cdf(errors) - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # at zero the curve has no band
        band = estimate.sf.confidence_interval(confidence_level=confidence)
    return _quantile(band.low, 0.5), _quantile(band.high, 0.5)


def fit_lognormal(seen: Durations) -> Lognormal | None:
    """By maximum likelihood; None if all outages have the same length."""
    logs = Durations(np.log(seen.lengths), seen.is_open)
    over = logs.lengths[~logs.is_open]
    if np.ptp(over) == 0:
        return None
    mean, sigma = stats.norm.fit(logs.censored()) if logs.is_open.any() else (over.mean(), over.std())
    ended = stats.norm.logpdf(over, mean, sigma) - over  # density of the length, not of its logarithm
    likelihood = ended.sum() + stats.norm.logsf(logs.lengths[logs.is_open], mean, sigma).sum()
    return Lognormal(
        median_h=float(np.exp(mean)),
        sigma=float(sigma),
        aic=float(4 - 2 * likelihood),
    )


def fit_weibull(seen: Durations) -> Weibull | None:
    """By maximum likelihood, the shape with its profile interval; None if all have the same length."""
    over = seen.lengths[~seen.is_open]
    if over.size < 2 or np.ptp(over) == 0:
        return None
    unit = float(seen.lengths.max())  # powers of numbers up to 1 do not overflow
    scaled, logs = seen.lengths / unit, np.log(over / unit).sum()

    def loss(shape: float) -> float:
        scale_power = np.power(scaled, shape).sum() / over.size
        return float(-over.size * (np.log(shape) - np.log(scale_power) - 1) - (shape - 1) * logs)

    best = optimize.minimize_scalar(loss, bounds=(SHAPE_MIN, SHAPE_MAX), method="bounded")
    limit = best.fun + seen.clustering(np.log(seen.lengths)) * stats.chi2.ppf(CONFIDENCE, 1) / 2
    bounds = [_crossing(loss, limit, float(best.x), end) for end in (SHAPE_MIN, SHAPE_MAX)]
    scale = unit * (np.power(scaled, best.x).sum() / over.size) ** (1 / best.x)
    return Weibull(
        shape=float(best.x),
        shape_interval=(bounds[0], bounds[1]),
        scale=float(scale),
        aic=float(4 + 2 * (best.fun + over.size * np.log(unit))),
    )


def _crossing(loss: Any, limit: float, inside: float, end: float) -> float:
    """Where the loss crosses the limit between `inside` and `end`; `end` if it does not."""
    if loss(end) <= limit:
        return end
    return float(optimize.brentq(lambda shape: loss(shape) - limit, min(inside, end), max(inside, end)))


def _judged(seen: Durations, nearest: str, rng: np.random.Generator) -> Verdict:
    if seen.is_open.any():
        return unknown(QUESTION, f"{int(seen.is_open.sum())} outages are not over, and may end at any time.")
    fit = closeness(stats.norm, np.log(seen.lengths), rng)
    gap = f"The lognormal curve is off by {100 * fit.distance:.0f} points at most ({chance(fit.p_value)})"
    return Verdict(
        question=QUESTION,
        answer="yes" if is_chance(fit.p_value) else "no",
        sentence=f"{gap}; of lognormal and Weibull, {nearest.capitalize()} is nearer.",
        p_value=fit.p_value,
    )
