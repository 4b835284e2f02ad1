"""Spend against progress over time, and whether spend rises faster than progress.

Progress is counted in useful GPU-hours: kept steps at the reference rate of their run, so that runs of
different models can be added. Spend of which it is not known what it brought is left out. The time is cut
into four parts of about equal spend; the last is compared with the best of the others. The effect of chance
is estimated from how much the stretches of time within a part differ from each other. Stretches that one long
step fills do not differ and count as one sample: no part has more samples than its steps were timed.
"""

from collections.abc import Sequence
from math import exp, inf, sqrt
from typing import Literal

import msgspec
from scipy.special import stdtrit

from holdfast.wording.units import DAY_S, HOUR_NS, SECOND_NS

PARTS = 4
STRETCHES_MAX = 96
SAMPLES_PER_PART_MIN = 5
"""With fewer samples, the effect of chance cannot be estimated."""
RISE_MIN = 0.10
"""A rise by a tenth in the cost of a useful GPU-hour deserves attention; ordinary weeks differ by less."""
CONFIDENCE = 0.95

_WIDTHS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
    *(DAY_S * days for days in (1, 2, 7, 14, 28, 91, 364)),
)

Verdict = Literal["yes", "no", "unknown"]


class SpendStretch(msgspec.Struct, frozen=True, kw_only=True):
    """The spend between two moments, and its useful part. timed: as in `Course`.

    paid_gpu_ns: useful, lost and not known. accrued_usd: spend whose result is not known yet; not in
    `paid_gpu_ns`. unknown_usd: spend of which nothing recorded says what it brought.
    """

    from_ns: int
    to_ns: int
    spend_usd: float
    paid_gpu_ns: int
    useful_gpu_ns: int
    useful_usd: float
    timed: int
    accrued_usd: float = 0.0
    unknown_gpu_ns: int = 0
    unknown_usd: float = 0.0

    @property
    def told_usd(self) -> float:
        known_usd = self.spend_usd - self.accrued_usd - self.unknown_usd
        return known_usd if self.known_gpu_ns else 0.0

    @property
    def known_gpu_ns(self) -> int:
        return self.paid_gpu_ns - self.unknown_gpu_ns


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Several stretches together. spend_usd: without accrued and unknown spend."""

    from_ns: int
    to_ns: int
    stretches: int
    spend_usd: float
    useful_gpu_ns: int
    usd_per_useful_gpu_hour: float | None


class Rise(msgspec.Struct, frozen=True, kw_only=True):
    """Whether spend rises faster than progress.

    ratio              cost of a useful GPU-hour now over the cost in the best part before
    ratio_low          the ratio is above this with the given confidence
    rise_min           a smaller rise is not reported
    """

    verdict: Verdict
    reason: str
    latest: Part | None = None
    best: Part | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    rise_min: float = RISE_MIN
    confidence: float = CONFIDENCE


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The stretches in order of time, without gaps, and the verdict on them."""

    stretches: tuple[SpendStretch, ...]
    rise: Rise


def edges_ns(from_ns: int, to_ns: int) -> list[int]:
    """Where the stretches of this time begin and end: at round moments, except the first and the last."""
    span_s = max(1, to_ns - from_ns) / SECOND_NS
    width_s = next((width_s for width_s in _WIDTHS_S if span_s <= width_s * (STRETCHES_MAX - 1)), None)
    width_ns = (width_s or _WIDTHS_S[-1] * (int(span_s / _WIDTHS_S[-1] / STRETCHES_MAX) + 1)) * SECOND_NS
    first = from_ns // width_ns + 1
    last = -(-to_ns // width_ns)
    return [from_ns, *(number * width_ns for number in range(first, last)), to_ns]


def trend(stretches: Sequence[SpendStretch]) -> Trend:
    return Trend(stretches=tuple(stretches), rise=_rise(_cut(stretches)))


def _cut(stretches: Sequence[SpendStretch]) -> list[list[SpendStretch]]:
    """Parts of about equal spend, without stretches in which nothing is known to have been spent."""
    spent = [stretch for stretch in stretches if stretch.told_usd > 0]
    whole, before = sum(stretch.told_usd for stretch in spent), 0.0
    parts: list[list[SpendStretch]] = [[] for _ in range(PARTS)]
    for stretch in spent:
        middle = before + stretch.told_usd / 2
        parts[min(PARTS - 1, int(PARTS * middle / whole))].append(stretch)
        before += stretch.told_usd
    return parts


def _rise(parts: list[list[SpendStretch]]) -> Rise:
    *earlier, latest = parts
    enough = [part for part in earlier if _samples(part) >= SAMPLES_PER_PART_MIN]
    known = [part for part in enough if _usd_per_useful(part) < inf]
    is_fruitless = len(latest) >= SAMPLES_PER_PART_MIN and _usd_per_useful(latest) == inf
    if not known or not (is_fruitless or _samples(latest) >= SAMPLES_PER_PART_MIN):
        needed = f"{SAMPLES_PER_PART_MIN} stretches of time and as many separately timed steps"
        return Rise(verdict="unknown", reason=f"the comparison needs {needed} in each quarter of the spend")
    best = min(known, key=_usd_per_useful)
    if is_fruitless:
        reason = "the latest part of the spend brought no progress at all"
        return Rise(verdict="yes", reason=reason, latest=_part(latest), best=_part(best))
    ratio, ratio_low = _ratio(latest, best, comparisons=len(known))
    if ratio <= 1 + RISE_MIN:
        verdict: Verdict = "no"
        reason = "a useful GPU-hour costs about as much as in the best part"
    elif ratio_low <= 1:
        verdict, reason = "unknown", "it costs more, but the stretches vary so much that it may be chance"
    else:
        verdict, reason = "yes", "a useful GPU-hour costs more than before, and that is not chance"
    return Rise(
        verdict=verdict,
        reason=reason,
        latest=_part(latest),
        best=_part(best),
        ratio=ratio,
        ratio_low=ratio_low,
    )


def _samples(part: list[SpendStretch]) -> int:
    """The number of independent stretches in a part."""
    return min(len(part), sum(stretch.timed for stretch in part))


def _usd_per_useful(part: list[SpendStretch]) -> float:
    useful = sum(stretch.useful_gpu_ns for stretch in part)
    return sum(stretch.told_usd for stretch in part) / (useful / HOUR_NS) if useful else inf


def _ratio(latest: list[SpendStretch], best: list[SpendStretch], *, comparisons: int) -> tuple[float, float]:
    """The ratio of the costs, and its lower bound. Being the best of several takes luck, so each comparison
    must meet a stricter level (Bonferroni).
    """
    ratio = _usd_per_useful(latest) / _usd_per_useful(best)
    error = sqrt(_relative_error(latest) ** 2 + _relative_error(best) ** 2)
    freedom = min(_samples(latest), _samples(best)) - 1
    quantile = float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / comparisons))
    return ratio, ratio * exp(-quantile * error)


def _relative_error(part: list[SpendStretch]) -> float:
    """The relative standard error of a part's cost per useful hour, which is a ratio of two sums.

    With fewer samples than stretches, some stretches repeat others, and their errors do not cancel.
    """
    cost, spend = _usd_per_useful(part), sum(stretch.told_usd for stretch in part)
    off = [stretch.told_usd - cost * stretch.useful_gpu_ns / HOUR_NS for stretch in part]
    return sqrt(len(part) / (_samples(part) - 1) * sum(one * one for one in off)) / spend


def _part(stretches: list[SpendStretch]) -> Part:
    cost = _usd_per_useful(stretches)
    return Part(
        from_ns=stretches[0].from_ns,
        to_ns=stretches[-1].to_ns,
        stretches=len(stretches),
        spend_usd=sum(stretch.told_usd for stretch in stretches),
        useful_gpu_ns=sum(stretch.useful_gpu_ns for stretch in stretches),
        usd_per_useful_gpu_hour=None if cost == inf else cost,
    )
