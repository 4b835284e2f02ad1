"""Months against their budgets, and forecasts: to the end of the month, and of runs with planned steps.

A forecast assumes that all goes on as now: a run goes on with the GPUs it holds, at its pace in the window,
until its planned steps are done; in a month at most until that ends. Each hour has its own price.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Literal

import msgspec

from holdfast.economics.pricing.months import Month
from holdfast.economics.pricing.prices import Priced, Prices
from holdfast.economics.pricing.pricing import Charge, Pricing
from holdfast.ledger.report import Report

Scope = Literal["all", "team", "project"]


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """A month's budget and spend. left_usd: budget less the forecast, or less the spend; below 0: over."""

    month: str
    scope: Scope
    name: str
    budget_usd: float
    actual_usd: float
    forecast_usd: float | None
    left_usd: float


class RunForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A run to its planned end. None if it made no step in the window, or has ended."""

    run: str
    run_name: str
    steps: int
    planned_steps: int
    end_ns: int | None
    to_go_usd: float | None


def budget_lines(
    prices: Prices,
    charged: Iterable[tuple[Report, Month, Charge]],
    to_come: Mapping[str, Fraction],
    forecast_month: Month | None,
) -> tuple[BudgetLine, ...]:
    """One for each budget in each month of the window.

    to_come: by run, its cost until the end of `forecast_month`.
    """
    budgets: list[tuple[Scope, str, Priced]] = [
        *((("all", "", prices.budget),) if prices.budget else ()),
        *(("team", name, budget) for name, budget in prices.team_budgets.items()),
        *(("project", name, budget) for name, budget in prices.project_budgets.items()),
    ]
    if not budgets:
        return ()
    spent: defaultdict[tuple[str, Scope, str], Fraction] = defaultdict(Fraction)
    reports: dict[str, Report] = {}
    months: dict[str, None] = {}
    for report, month, charge in charged:
        reports[report.run] = report
        months[month.name] = None
        for scope, name in _scopes(report):
            spent[month.name, scope, name] += charge.usd(charge.gpu_ns)
    lines = []
    for month_name in sorted(months):
        for scope, name, budget in budgets:
            actual = float(spent[month_name, scope, name])
            forecast = None
            if forecast_month is not None and forecast_month.name == month_name:
                coming = [to_come[run] for run, one in reports.items() if (scope, name) in _scopes(one)]
                forecast = actual + float(sum(coming, Fraction()))
            lines.append(
                BudgetLine(
                    month=month_name,
                    scope=scope,
                    name=name,
                    budget_usd=budget.value,
                    actual_usd=actual,
                    forecast_usd=forecast,
                    left_usd=budget.value - (actual if forecast is None else forecast),
                )
            )
    return tuple(lines)


def _scopes(report: Report) -> tuple[tuple[Scope, str], ...]:
    return ("all", ""), ("team", report.team), ("project", report.project)


def run_forecasts(pricing: Iterable[Pricing], now_ns: int) -> tuple[RunForecast, ...]:
    """When the runs with planned steps will be done, and their cost until then."""
    return tuple(
        _run_forecast(one, int(planned.value), now_ns)
        for one in pricing
        if (planned := one.prices.steps_planned(one.report.run, one.report.name)) is not None
    )


def _run_forecast(pricing: Pricing, planned_steps: int, now_ns: int) -> RunForecast:
    """The forecast of one run. Its progress since the last event is unknown, so its steps to go begin now."""
    report, end_ns, to_go_usd = pricing.report, None, None
    steps, known = report.counts.steps, report.split.known_share
    elapsed_ns = report.last_ns - report.first_ns
    if known is not None:
        elapsed_ns = round(elapsed_ns * known)  # in the rest it may have made as many steps, or none
    if report.accrued is not None and steps > 0:
        to_go = max(0, planned_steps - report.steps_kept)
        end_ns = now_ns + to_go * elapsed_ns // steps
        to_go_usd = float(pricing.held(report.accrued.gpus, now_ns, end_ns))
    return RunForecast(
        run=report.run,
        run_name=report.name,
        steps=report.steps_kept,
        planned_steps=planned_steps,
        end_ns=end_ns,
        to_go_usd=to_go_usd,
    )
