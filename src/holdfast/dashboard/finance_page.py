"""The finance page: one HTML file that needs nothing else, for the owner of the budget.

First the four numbers, then where the money went and what to do about it, the months against their budgets,
the teams behind target, goodput over time, whether spend rises faster than progress, and the lines to charge
back; every assumption with its source at the end. Owning is compared with renting if that was asked for. The
style is that of a run's page. The numbers are those of `economics.finance`; only positions are computed here.
"""

from functools import cache

from jinja2 import Template

from holdfast import __version__, wording
from holdfast.dashboard import charts, finance_charts
from holdfast.dashboard import finance_wording as said
from holdfast.dashboard.template import template
from holdfast.economics.finance.invoice import CENTS
from holdfast.economics.finance.statement import CauseSpend, Finance
from holdfast.economics.pricing.spending import CAUSES
from holdfast.ledger.categories import Category

RUNS_SHOWN_MAX = 20
"""The rest is counted and summed in one line."""

_COLOURS = {cause.key: cause.categories[0] for cause in CAUSES}
"""A cause has the colour of one of its categories, so that it looks the same on a run's page."""


def render(told: Finance) -> str:
    """The whole page."""
    hidden = told.runs[RUNS_SHOWN_MAX:]
    causes = [cause for cause in told.causes if cause.gpu_ns]
    owned = told.own_or_rent
    spend = told.spend.usd
    has_course = told.spend.usd > 0 and len(told.trend.stretches) > 1
    return _template().render(
        version=__version__,
        told=told,
        amounts=wording.Amounts(told.spend.gpu_ns),
        teams={run.team for run in told.runs if run.team},
        causes=causes,
        cause_max=max((cause.share or 0.0 for cause in causes), default=0.0) or 1.0,
        whole=finance_charts.strip(
            [
                (charts.css_class(Category.USEFUL), told.useful.usd / spend if spend else 0.0),
                *((_colour(cause), cause.share or 0.0) for cause in causes),
                (charts.css_class(Category.UNATTRIBUTED), told.unknown.usd / spend if spend else 0.0),
            ]
        ),
        money=finance_charts.money(told.trend) if has_course else "",
        hourly=finance_charts.hourly(told.trend) if has_course and told.useful.gpu_ns else "",
        goodput=finance_charts.goodput(told.trend, _target(told))
        if has_course and told.useful.gpu_ns
        else "",
        has_unknown=finance_charts.has_unknown(told.trend),
        target=_target(told),
        choice=finance_charts.choice(owned) if owned else "",
        yearly_max=max(part.usd for part in owned.yearly) or 1.0 if owned else 1.0,
        charged_back=_charged_back(told),
        invoice=f"{told.invoice.cents / CENTS:,.2f} {told.invoice.currency}",
        shown=told.runs[:RUNS_SHOWN_MAX],
        hidden=hidden,
        hidden_usd=sum(run.spend.usd for run in hidden),
        assumptions=said.assumptions(told),
    )


def _target(told: Finance) -> float | None:
    return told.prices.goodput_target.value if told.prices.goodput_target else None


def _charged_back(told: Finance) -> list[tuple[str, str, str, str]]:
    """The invoice by month, team and project, in its currency and to the cent; the lines sum to it."""
    cents: dict[tuple[str, str, str], int] = {}
    for line in told.invoice.lines:
        key = line.month, line.team or said.NO_TEAM, line.project or wording.UNKNOWN
        cents[key] = cents.get(key, 0) + line.cents
    return [(*key, f"{part / CENTS:,.2f}") for key, part in sorted(cents.items())]


def _colour(cause: CauseSpend) -> str:
    return charts.css_class(_COLOURS[cause.key])


@cache
def _template() -> Template:
    return template(
        "finance.html",
        styles=("finance.css",),
        has_script=True,
        filters={"bar": finance_charts.bar, "colour": _colour},
        values={"said": said},
    )
