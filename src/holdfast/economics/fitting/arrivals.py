"""Whether faults come independently of each other and at any time, as models with a constant rate assume.

A Poisson process does. Faults may differ from it in three ways: some strike many nodes at once, the rate
drifts, and people take machines out during working hours. Trend and time of day are tested on bursts, each
counted once: a fault that strikes twenty nodes at a time is one event.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from holdfast.economics.fitting.clustering import clustering, early_clustering
from holdfast.economics.fitting.outages import Observation
from holdfast.economics.fitting.verdict import CONFIDENCE, Interval, Verdict, chance, closeness, is_chance
from holdfast.wording.units import DAY_NS, HOURS_PER_DAY

FAULTS_MIN = 20
DAYS_MIN = 14.0
"""Less than two weeks are too few for daily counts."""

MINUTES_PER_DAY = 1_440
SECOND_DAYS = 1 / 86_400
"""The usual resolution of logs."""

SHIFT_HOURS = 8

POISSON = "faults are Poisson"
TREND = "the rate changes"
TIME_OF_DAY = "time of day matters"
QUESTIONS = (POISSON, TREND, TIME_OF_DAY)

Array = NDArray[np.float64]


class Regularity(msgspec.Struct, frozen=True, kw_only=True):
    """How far events are from a Poisson process.

    dispersion     variance over mean of daily counts: 1 for Poisson, more if events come in clusters
    gaps_p_value   how often the gaps of a Poisson process are as far from exponential
    """

    count: int
    dispersion: float
    dispersion_p_value: float
    gaps_p_value: float

    @property
    def is_poisson(self) -> bool:
        return is_chance(self.dispersion_p_value) and is_chance(self.gaps_p_value)


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """When faults begin: all faults, and bursts counted once.

    growth   the number of faults up to a time grows with this power of the time: 1 is steady, below 1 means
             fewer and fewer (infant mortality), above 1 means wear
    """

    faults: Regularity
    bursts: Regularity
    growth: float
    growth_interval: Interval
    verdicts: tuple[Verdict, ...]


def arrivals(seen: Observation, burst_minutes: float, rng: np.random.Generator) -> Arrivals | None:
    """None if there are too few faults or days. A burst ends with a gap longer than `burst_minutes`."""
    times = np.array([(fault.at_ns - seen.from_ns) / DAY_NS for fault in seen.faults])
    is_new = np.diff(times, prepend=-np.inf) > burst_minutes / MINUTES_PER_DAY
    bursts = times[is_new]
    if bursts.size < FAULTS_MIN or seen.days < DAYS_MIN:
        return None
    faults, counted_once = (_regularity(moments, seen.days, rng) for moments in (times, bursts))
    growth, growth_interval, clustered = _growth(bursts, seen.days)
    hours = (bursts + seen.from_ns % DAY_NS / DAY_NS) % 1 * HOURS_PER_DAY
    by_hour = np.bincount(hours.astype(int) % HOURS_PER_DAY, minlength=HOURS_PER_DAY)
    return Arrivals(
        faults=faults,
        bursts=counted_once,
        growth=growth,
        growth_interval=growth_interval,
        verdicts=(
            _judged(faults, counted_once),
            _trend(bursts, seen.days, clustered),
            _time_of_day(hours, by_hour),
        ),
    )


def _regularity(times: Array, days: float, rng: np.random.Generator) -> Regularity:
    daily = np.bincount(times.astype(int), minlength=int(np.ceil(days)))
    dispersion = daily.var(ddof=1) / daily.mean()
    surplus = stats.chi2(daily.size - 1)
    statistic = dispersion * (daily.size - 1)
    return Regularity(
        count=times.size,
        dispersion=float(dispersion),
        dispersion_p_value=float(2 * min(surplus.sf(statistic), surplus.cdf(statistic))),
        gaps_p_value=closeness(stats.expon, np.diff(times), rng, loc=0.0).p_value,
    )


def _judged(faults: Regularity, bursts: Regularity) -> Verdict:
    daily = f"Daily counts vary {faults.dispersion:.1f} times as much as Poisson's"
    once = f"with bursts counted once {bursts.dispersion:.1f} times ({chance(bursts.dispersion_p_value)})"
    return Verdict(
        question=POISSON,
        answer="yes" if faults.is_poisson else "no",
        sentence=f"{daily} ({chance(faults.dispersion_p_value)}), {once}.",
        p_value=min(faults.dispersion_p_value, faults.gaps_p_value),
    )


def _growth(times: Array, days: float) -> tuple[float, Interval, float]:
    """The power law of Crow (1974) by maximum likelihood, with its interval, which is exact without clusters;
    and how many faults tell as much as one, beside the trend.
    """
    growth = times.size / np.log(days / np.maximum(times, SECOND_DAYS)).sum()
    steady = days * (np.maximum(times, SECOND_DAYS) / days) ** growth  # as if the rate had not changed
    clustered = max(clustering(steady, days), early_clustering(steady / days, days))
    freedom, tail = 2 * times.size / clustered, (1 - CONFIDENCE) / 2
    low, high = growth * stats.chi2.ppf([tail, 1 - tail], freedom) / freedom
    return float(growth), (float(low), float(high)), clustered


def _trend(times: Array, days: float, clustered: float) -> Verdict:
    """Laplace's test: under a constant rate faults begin, on average, in the middle of the time."""
    score = (times.mean() / days - 0.5) * np.sqrt(12 * times.size / clustered)
    p_value = float(2 * stats.norm.sf(abs(score)))
    early = int((times < days / 2).sum())
    course = "no clear trend" if is_chance(p_value) else "rising" if score > 0 else "falling"
    return Verdict(
        question=TREND,
        answer="no" if is_chance(p_value) else "yes",
        sentence=f"{early} bursts began in the first half, {times.size - early} in the second: {course}"
        f" ({chance(p_value)}).",
        p_value=p_value,
    )


def _time_of_day(hours: Array, by_hour: NDArray[np.int64]) -> Verdict:
    """Rayleigh's test: whether the hours, taken as directions on a dial, cancel out."""
    count = hours.size
    length = abs(np.exp(2j * np.pi * hours / HOURS_PER_DAY).sum())
    p_value = min(1.0, float(np.exp(np.sqrt(1 + 4 * count + 4 * (count**2 - length**2)) - 1 - 2 * count)))
    shifts = [int(np.roll(by_hour, -hour)[:SHIFT_HOURS].sum()) for hour in range(HOURS_PER_DAY)]
    busiest = int(np.argmax(shifts))
    return Verdict(
        question=TIME_OF_DAY,
        answer="no" if is_chance(p_value) else "yes",
        sentence=f"{100 * shifts[busiest] / count:.0f} % begin in the busiest {SHIFT_HOURS} hours, from"
        f" {busiest}:00 UTC; {100 * SHIFT_HOURS / HOURS_PER_DAY:.0f} % would by chance ({chance(p_value)}).",
        p_value=p_value,
    )
