"""The simulation page: the same failures under several policies, in one HTML file that needs nothing else.

For the person who chooses the policy: first what the best policy saves against the first one, then how sure
that is, where the lost GPU-hours go, every figure, and the assumptions. The style is that of a run's page.
The numbers are those of `twin.sweep`; only the expected spread of the interruptions is computed here.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import msgspec
from jinja2 import Template
from scipy import stats

from holdfast import __version__, wording
from holdfast.dashboard import charts, simulation_charts
from holdfast.dashboard.template import template
from holdfast.economics.pricing.prices import GIVEN
from holdfast.ledger.split import LOSSES
from holdfast.twin.sweep import QUANTILES, Comparison, Spread, Summary
from holdfast.wording.units import HOUR_NS, HOURS_PER_DAY

LOSSES_NAMED_MAX = 3
"""How many of a policy's losses are named under its bar."""
LOSS_SHARE_NAMED_MIN = 0.05
"""A smaller share of a policy's loss is not named there; the table has it."""


MONEY = "money"
"""The unit of amounts in the currency of the page."""


class _Figure(msgspec.Struct, frozen=True):
    """A field of a summary, its label and meaning, and its unit; a count has none."""

    field: str
    label: str
    meaning: str
    unit: str = ""


_FIGURES = (
    _Figure("effective_time", "Effective time", "of the time in the run", "%"),
    _Figure("goodput", "Useful", "of what is known", "%"),
    _Figure("paid_gpu_hours", "Paid", "the job’s nodes and the spares", "GPU-hours"),
    _Figure("useful_gpu_hours", "Useful", "in steps that count", "GPU-hours"),
    _Figure("lost_gpu_hours", "Lost", "known not to be useful", "GPU-hours"),
    _Figure("unknown_gpu_hours", "Not known", "steps that the end cuts off", "GPU-hours"),
    _Figure("cost_usd", "Lost", "what these GPU-hours cost", MONEY),
    _Figure("saved_gpu_hours", "Saved", "against the first policy", "GPU-hours"),
    _Figure("saved_usd", "Saved", "against the first policy", MONEY),
    _Figure("interruptions", "Interruptions", "failures that stopped the run"),
    _Figure("planned", "Planned stops", "maintenance and the like"),
    _Figure("restarts", "Restarts", "of the whole job"),
    _Figure("steps", "Steps", "done and kept"),
)
_LARGE = ((1e9, "billion"), (1e6, "million"))


def render(compared: Comparison) -> str:
    """The whole page."""
    best, expected = _best(compared), _expected_interruptions(compared)
    reported = {figure.name: figure for figure in compared.reported}
    others = [one for one in compared.policies if one.policy != best.policy]
    most_lost = max(one.lost_gpu_hours_mean for one in compared.policies)
    paid_gpu_hours = max(one.paid_gpu_hours.p90 for one in compared.policies)
    return _template().render(
        version=__version__,
        compared=compared,
        expected=expected,
        reported_interruptions=reported.get("interruptions_unexpected"),
        reported_effective_time=reported.get("effective_time"),
        first=compared.policies[0],
        best=best,
        alike=[one for one in others if one.saved_gpu_hours == best.saved_gpu_hours],
        saved_gpus=best.saved_gpu_hours.p50 / (HOURS_PER_DAY * compared.days),
        is_price_assumed=not compared.price_source.startswith(GIVEN),
        amounts=wording.Amounts(round(paid_gpu_hours * HOUR_NS)),
        effective=simulation_charts.axis_of_shares([one.effective_time for one in compared.policies]),
        interrupted=simulation_charts.axis_of_counts(
            [expected, *(one.interruptions for one in compared.policies)]
        ),
        bars=[_bar(one, most_lost) for one in compared.policies],
        rows=[_row(figure, compared.policies) for figure in _FIGURES],
        lost=[c for c in LOSSES if any(one.partition_gpu_hours[c.key] for one in compared.policies)],
        inexact=[one.policy for one in compared.policies if not one.is_exact],
    )


def _best(compared: Comparison) -> Summary:
    """The policy that loses the least: the first, unless another saves something. Of equal ones the last,
    because policies are listed from the plainest on.
    """
    best = max(reversed(compared.policies), key=lambda one: one.saved_gpu_hours.p50)
    return best if best.saved_gpu_hours.p50 > 0 else compared.policies[0]


# -- where the losses go ---------------------------------------------------------------------------------


def _bar(policy: Summary, whole_gpu_hours: float) -> dict[str, object]:
    """The losses of a policy, as the mean of its runs. share: of the paid GPU-hours."""
    lost = policy.lost_gpu_hours_mean
    parts = {category.key: _gpu_ns(policy.partition_gpu_hours[category.key]) for category in LOSSES}
    return {
        "policy": policy,
        "lost_gpu_hours": lost,
        "share": lost / (sum(policy.partition_gpu_hours.values()) or 1.0),
        "largest": _largest(policy, lost),
        "drawn": charts.strip(parts, _gpu_ns(whole_gpu_hours)),
    }


def _largest(policy: Summary, lost_gpu_hours: float) -> str:
    """The largest losses in words: `starting 37.1 %, recomputed 33.9 %`."""
    losses = sorted(LOSSES, key=lambda category: -policy.partition_gpu_hours[category.key])
    shares = [(c.label, policy.partition_gpu_hours[c.key] / (lost_gpu_hours or 1.0)) for c in losses]
    named = [(label, share) for label, share in shares if share >= LOSS_SHARE_NAMED_MIN]
    return ", ".join(f"{label} {wording.percent(share)}" for label, share in named[:LOSSES_NAMED_MAX])


def _gpu_ns(gpu_hours: float) -> int:
    return round(gpu_hours * HOUR_NS)


# -- all figures -----------------------------------------------------------------------------------------


def _row(figure: _Figure, summaries: Sequence[Summary]) -> dict[str, object]:
    """One figure of every policy, all in the unit of the largest, so that they are easy to compare."""
    cells = [(one, getattr(one, figure.field)) for one in summaries]
    unit, words = _written(figure.unit, max(abs(end) for _, one in cells for end in (one.p10, one.p90)))
    label = f"{figure.label}, {unit}" if unit else figure.label
    return {"label": label, "meaning": figure.meaning, "words": words, "cells": cells}


def _written(unit: str, largest: float) -> tuple[str, Callable[[float], str]]:
    """The unit for amounts up to this one, and the function that writes them."""
    if not unit:
        return "", _whole
    if unit == "%":
        return unit, lambda share: wording.percent(share).removesuffix(" %")
    if unit == MONEY:
        unit, words = _written(wording.currency(), wording.converted(largest))
        return unit, lambda usd: words(wording.converted(usd))
    for size, word in _LARGE:
        if largest >= size:
            return f"{word} {unit}", partial(_in_units, size=size)
    return unit, wording.rough


# -- interruptions ---------------------------------------------------------------------------------------


def _expected_interruptions(compared: Comparison) -> Spread:
    """The expected interruptions. Independent failures have a Poisson distribution around their mean."""
    mean = compared.expected_interruptions
    low, _, high = (float(stats.poisson.ppf(quantile / 100, mean)) for quantile in QUANTILES)
    return Spread(p10=low, p50=mean, p90=high)


# -- wording ---------------------------------------------------------------------------------------------


def _whole(value: float) -> str:
    """A count; the median of an even number of runs may lie between two."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def _reach(spread: Spread, words: Callable[[float], str] = wording.rough) -> str:
    """From P10 to P90, with a common unit only once: `1.33 to 1.48 million`."""
    low, high = words(spread.p10), words(spread.p90)
    if low == high:
        return high
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"


def _money(usd: float) -> str:
    return wording.rough(wording.converted(usd))


def _in_units(value: float, size: float) -> str:
    """An amount in units of this size, which is said elsewhere; what is not zero is not written as zero."""
    written = f"{abs(value) / size:,.2f}"
    if written == "0.00":
        return "≈ 0" if value else "0"
    return f"−{written}" if value < 0 else written


@cache
def _template() -> Template:
    return template(
        "simulation.html",
        styles=("simulation.css",),
        filters={
            "css_class": charts.css_class,
            "gpu_ns": _gpu_ns,
            "money": _money,
            "reach": _reach,
            "scale": simulation_charts.scale,
            "whole": _whole,
        },
        values={"money": _money, "whole": _whole, "whisker": simulation_charts.whisker},
    )
