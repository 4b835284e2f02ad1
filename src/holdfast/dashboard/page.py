"""The page of one run's report: one HTML file that needs nothing else, neither network nor script.

Written for the person who pays: first the useful share and the largest losses, then more and more of the
ledger, down to the exact sums. The numbers are the report's; only sums, shares and positions are computed
here. Its content security policy forbids all loading, and all scripts but the page's own.
"""

from functools import cache

import msgspec
from jinja2 import Template

from holdfast import __version__, wording
from holdfast.dashboard import charts
from holdfast.dashboard.template import template
from holdfast.economics.pricing.cost import LEDGER, run_cost
from holdfast.economics.pricing.layers import RunCost
from holdfast.economics.pricing.prices import DEFAULTS, Prices
from holdfast.ledger.categories import Category
from holdfast.ledger.report import Report
from holdfast.ledger.split import LOSSES

LARGEST_LOSSES = 3
INCIDENTS_SHOWN_MAX = 20
"""The rest is counted and summed in one line."""
STACKS_SHOWN_MAX = 5
"""How many incidents have their cost drawn; `holdfast cost` has the rest."""

GROUPS: tuple[tuple[str, tuple[Category, ...]], ...] = (
    ("Stepping", tuple(c for c in Category if Category.USEFUL <= c < Category.UNATTRIBUTED)),
    ("In a run, not stepping", tuple(c for c in Category if Category.QUEUED <= c < Category.USEFUL)),
    ("Not in a run", tuple(c for c in Category if c < Category.QUEUED)),
    ("Not known", (Category.UNATTRIBUTED,)),
)
"""The ledger's groups, the useful one first; see "The ledger's identity" in docs/architecture.md."""

_BANDWIDTH_WANTED = "Not known. Record how long collectives take (collective.timed events) to get it."


class _Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The headline number and its sentence. known: whether it is the useful share. amounts: useful, lost and
    not known.
    """

    number: str
    sentence: str
    amounts: str = ""
    more: str = ""
    known: bool = False


def render(report: Report, prices: Prices = DEFAULTS) -> str:
    """The whole page, with losses at these prices."""
    amounts = report.amounts
    shown = report.incidents[:INCIDENTS_SHOWN_MAX]
    hidden = report.incidents[INCIDENTS_SHOWN_MAX:]
    return _template().render(
        version=__version__,
        report=report,
        amounts=amounts,
        headline=_headline(report, amounts),
        largest=_losses(report)[:LARGEST_LOSSES],
        numbers=(
            ("Model FLOPs utilisation (MFU)", report.mfu, f"Not known: {report.mfu_unknown}."),
            (_bandwidth_title(report), report.bandwidth, _BANDWIDTH_WANTED),
        ),
        falls=_waterfall(report),
        cost=_cost(run_cost(report, prices)),
        zeros=[c for c in Category if c != Category.USEFUL and not _part(report, c)],
        course=charts.course(report, shown) if report.paid_gpu_ns else "",
        legend=[c for c in charts.STACK if any(c.key in bucket for bucket in report.course.buckets)],
        shown=shown,
        hidden=hidden,
        incidents_gpu_ns=sum(incident.lost_gpu_ns for incident in report.incidents),
        hidden_gpu_ns=sum(incident.lost_gpu_ns for incident in hidden),
        groups=GROUPS,
        sum_gpu_ns=sum(report.partition.values()),
    )


def _bandwidth_title(report: Report) -> str:
    within = report.bandwidth is not None and report.bandwidth.reach == "nvlink"
    return "Bandwidth within a node" if within else "Inter-node bandwidth"


def _part(report: Report, category: Category) -> int:
    return report.partition.get(category.key, 0)


def _losses(report: Report) -> list[Category]:
    """The categories of losses, the largest first."""
    lost = [category for category in LOSSES if _part(report, category)]
    return sorted(lost, key=lambda category: -_part(report, category))


def _headline(report: Report, amounts: wording.Amounts) -> _Headline:
    paid, useful = report.paid_gpu_ns, _part(report, Category.USEFUL)
    split, bounds = report.split, report.goodput.bounds
    if not paid:
        return _Headline(
            number=wording.UNKNOWN, sentence="No GPU time was paid for, so there is nothing to share out."
        )
    three = amounts.three(split.useful_gpu_ns, split.lost_gpu_ns, split.unknown_gpu_ns)
    if report.goodput.total is None:
        return _Headline(
            number="Unknown",
            sentence=f"Nothing recorded says how the {amounts.hours(paid)} {report.counted}-hours paid for "
            "were used.",
            amounts=three,
            more="The run reported neither steps nor checkpoints, only that it had the GPUs.",
        )
    whole, more = f"the {report.counted} time paid for", ""
    if split.is_partly_known and bounds is not None:
        whole = f"the {report.counted} time that is known"
        unknown = amounts.share(split.unknown_gpu_ns)
        useful_of_all = wording.between(bounds)
        more = f"{unknown} of what was paid for is not known; of all of it, {useful_of_all} was useful."
    if report.goodput.total_min is not None:
        least = wording.percent(report.goodput.total_min)
        more = f"{more} If the steps that grew longer are a slowdown, {least} was useful.".strip()
    rests = f", {report.goodput.basis}" if report.goodput.basis else ""
    return _Headline(
        number=wording.percent(report.goodput.total),
        sentence=f"of {whole} was useful: "
        f"{amounts.hours(useful)} of {amounts.hours(split.known_gpu_ns)} {report.counted}-hours{rests}.",
        amounts=three,
        more=more,
        known=True,
    )


def _waterfall(report: Report) -> list[dict[str, object]]:
    """The bars from the paid time (without a category), less what is not known, loss by loss, the largest
    first, to the useful time.
    """
    paid = report.paid_gpu_ns
    if not paid:
        return []
    whole = charts.fall("mark paid", 0.0, 100.0, first=True, last=False)
    falls: list[dict[str, object]] = [{"category": None, "label": "Paid for", "gpu_ns": paid, "bar": whole}]
    remaining = paid
    unknown = (Category.UNATTRIBUTED,) if _part(report, Category.UNATTRIBUTED) else ()
    for category in (*unknown, *_losses(report), Category.USEFUL):
        part = _part(report, category)
        remaining -= part
        bar = charts.fall(
            charts.mark(category),
            100 * remaining / paid,
            100 * part / paid,
            first=False,
            last=category == Category.USEFUL,
        )
        label = wording.opening(category.label)
        falls.append({"category": category, "label": label, "gpu_ns": part, "bar": bar})
    return falls


def _cost(cost: RunCost) -> dict[str, object]:
    """The drawn parts of a run's cost: its stack, those of its costliest incidents, and every input once.

    set_back: the loss as progress. whole_usd, incident_usd: the length of the bars, all layers side by side
    """
    total, shown = cost.total, cost.incidents[:STACKS_SHOWN_MAX]
    progress = total.progress
    amounts = [layer.usd or 0.0 for layer in total.layers]
    inputs = {one.name: one for layer in total.layers for one in layer.inputs if one.source != LEDGER}
    hours = progress.run_hours
    return {
        "run": cost,
        "set_back": wording.set_back(hours, progress.steps, progress.tokens) if hours else "",
        "largest_usd": max(amounts),
        "layers_usd": {layer.key: layer.usd for layer in total.layers},
        "whole_usd": sum(amounts),
        "incidents": shown,
        "incident_usd": max((sum(usd or 0.0 for usd in line.usd.values()) for line in shown), default=0.0),
        "inputs": tuple(inputs.values()),
    }


@cache
def _template() -> Template:
    shown = (charts.css_class, charts.gauge, charts.stack, charts.strip)
    return template(
        "page.html",
        has_script=True,
        filters={one.__name__: one for one in shown},
    )
