"""`holdfast finance`: spend, useful spend and waste of all runs, for the owner of the budget."""

from pathlib import Path

import click
import msgspec

from holdfast import wording
from holdfast.cli.flags import option, shared, takes
from holdfast.cli.pages import STDOUT, html_option, require_one_output, write_page
from holdfast.cli.prices import in_currency, load_prices, prices_option
from holdfast.cli.record import json_option, left_out, open_record, store_option
from holdfast.cli.terminal import print_json, printable
from holdfast.cli.windows import reading, window_options
from holdfast.economics.finance.finance import FinanceQuestion, cuts_ns, finance
from holdfast.economics.finance.invoice import focus_csv
from holdfast.economics.finance.ownership import Terms, read, template
from holdfast.economics.finance.statement import Finance
from holdfast.economics.pricing.months import months_between
from holdfast.economics.pricing.prices import Prices
from holdfast.ledger.opinions import compared
from holdfast.ledger.report import Report
from holdfast.ledger.runs import AskedWindow, read_run
from holdfast.ledger.window import SILENT_NS_MAX, fell_silent
from holdfast.record.errors import InputError
from holdfast.record.events import ReferenceDeclared, RunStarted, RunSubmitted
from holdfast.record.files import parsed
from holdfast.record.runs import find_run, simulated_runs
from holdfast.record.store import RunSummary, Selection, Store

SILENT_NAMED_MAX = 5


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[str, ...] = option(
        "--run", "Only this run; may be given again.", multiple=True, metavar="RUN"
    )
    teams: tuple[str, ...] = option(
        "--team", "Only this team; may be given again.", multiple=True, metavar="TEAM"
    )
    look: AskedWindow = shared(window_options)
    own_or_rent: bool = option("Compare owning GPUs with renting them, too.", is_flag=True)
    own_path: Path | None = option(
        "--own",
        "The same, on these terms, as TOML; what it does not say is assumed.",
        type=click.Path(path_type=Path),
        metavar="FILE",
    )
    example_own: bool = option("Print a file with every term of owning, and stop.", is_flag=True)
    html_path: Path | None = shared(html_option)
    csv_path: Path | None = option(
        "--csv",
        "Write the invoice's lines with the columns of FOCUS 1.2; to stdout if OUT is `-`.",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        metavar="OUT",
    )
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("finance")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Show what all runs cost, what of that was useful, and what the rest went to.

    By month, cause, team and project; against budgets and targets, with a forecast; the five costliest
    wastes and what to do about them. `--month 2026-10` is one month of it.
    """
    if given.example_own:
        click.echo(template(), nl=False)
        return
    _require_outputs(given)
    look = given.look
    prices, terms = load_prices(given.prices_path), _terms(given)
    with open_record(given.store_url) as store:
        summaries, simulated = _summaries(store, given, look)
        reports = compared(store, _reports(store, summaries, look, prices))
        known = None if given.runs or given.teams else _names(store)
    chosen = _of_teams(reports, given)
    within = [report for report in chosen if _has_time(report, look)]
    if look.window.is_bounded and not any(_is_there(report) for report in within):
        raise _nothing(chosen, within)
    told = finance(
        within, prices, FinanceQuestion(window=look.window, now_ns=look.now_ns, terms=terms, known=known)
    )
    if simulated:
        told = msgspec.structs.replace(told, remarks=(*told.remarks, left_out(simulated)))
    with in_currency(told.prices):
        _show(told, given)


def _require_outputs(given: _Flags) -> None:
    require_one_output(given.html_path, given.as_json)
    on_stdout = [given.html_path == STDOUT, given.csv_path == STDOUT, given.as_json]
    if sum(on_stdout) > 1:
        raise InputError(
            "Only one of `--html -`, `--csv -` and `--json` can have stdout.", hint="Name a file."
        )


def _terms(given: _Flags) -> Terms | None:
    """The terms of owning; None unless owning or renting is asked for."""
    path = given.own_path
    if path is None:
        return Terms() if given.own_or_rent else None
    hint = "`holdfast finance --example-own > own.toml` makes a file to begin with."
    return parsed(path, read, what="terms", hint=hint)


# -- the books -------------------------------------------------------------------------------------------


def _summaries(store: Store, given: _Flags, look: AskedWindow) -> tuple[list[RunSummary], int]:
    """The runs that are wanted, at least one; and how many are left out because they were simulated."""
    wanted = {find_run(store, run) for run in given.runs}
    if not wanted:
        find_run(store, None)  # complains where there is none
    until_ns = min(edge for edge in (look.window.to_ns, look.until_ns, 2**63) if edge is not None)
    within = [
        summary
        for summary in store.runs()
        if (not wanted or summary.run in wanted) and summary.events > 0 and summary.first_ns < until_ns
    ]
    if not within:
        raise InputError(
            "No run has an event in that time.", hint="`holdfast runs` shows when the runs were."
        )
    simulated = frozenset() if wanted else simulated_runs(store)
    real = [summary for summary in within if summary.run not in simulated]
    if not real:
        raise InputError(
            "The store has only simulated runs, which cost nothing.", hint="Name one with --run."
        )
    return real, len(within) - len(real)


def _reports(store: Store, summaries: list[RunSummary], look: AskedWindow, prices: Prices) -> list[Report]:
    window = look.window
    last_ns = min(max(summary.last_ns for summary in summaries), look.until_ns or 2**63)
    if look.now_ns - last_ns <= SILENT_NS_MAX:
        last_ns = max(last_ns, look.now_ns)  # some run may go on until then
    first_ns, last_ns = window.clipped(min(summary.first_ns for summary in summaries), last_ns)
    cuts = cuts_ns(first_ns, last_ns, prices)
    with reading(summaries) as shown:
        return [read_run(store, summary.run, look, cuts) for summary in shown]


def _of_teams(reports: list[Report], given: _Flags) -> list[Report]:
    """The reports of these teams; of all where none is named."""
    if not given.teams:
        return reports
    teams = {report.team for report in reports}
    for team in given.teams:
        if team in teams:
            continue
        if given.runs:
            own = ", ".join(f"{report.run} is of {report.team!r}" for report in reports if report.team)
            raise InputError(
                f"None of the runs given with --run is of the team {team!r}.",
                hint=f"{own or 'They name no team'}; leave out --run or --team.",
            )
        known = ", ".join(sorted(repr(name) for name in teams if name)) or "none"
        raise InputError(f"No run names the team {team!r}.", hint=f"Named are: {known}.")
    return [report for report in reports if report.team in given.teams]


def _has_time(report: Report, look: AskedWindow) -> bool:
    """Whether a run has a part in the window, or may have: one that fell silent may go on, until now."""
    begin_ns, end_ns = look.window.clipped(report.known_ns, look.now_ns)
    is_silent = fell_silent(report, look.now_ns) and begin_ns < end_ns
    return _is_there(report) or is_silent or not look.window.is_bounded


def _is_there(report: Report) -> bool:
    """Whether it has more than a moment of the window."""
    return report.last_ns > report.first_ns or report.paid_gpu_ns > 0 or report.accrued is not None


def _nothing(reports: list[Report], silent: list[Report]) -> InputError:
    """silent: those that have not ended, and of which nothing was heard in that time."""
    latest = max((report.known_ns for report in reports), default=0)
    hint = f"The last event is of {wording.stamp(latest)}; `holdfast runs` shows when the runs were."
    if silent:
        names = ", ".join(printable(wording.short(report.run, 60)) for report in silent[:SILENT_NAMED_MAX])
        more = ", ..." if len(silent) > SILENT_NAMED_MAX else ""
        hint += f" Not known to have ended, and perhaps holding GPUs still: {names}{more}."
    return InputError(
        "No run is known to have held GPUs in that time." if silent else "No run held GPUs in that time.",
        hint=hint,
    )


def _names(store: Store) -> dict[str, list[str]]:
    """Every name that the runs in the store go by, by kind."""
    names: dict[str, set[str]] = {kind: set() for kind in ("run", "team", "project", "cluster", "chip")}
    kinds = ("run.submitted", "run.started", "reference.declared")
    for event in store.select(Selection(kinds=kinds)):
        names["run"].add(event.run)
        if isinstance(event, RunSubmitted | RunStarted):
            for kind in ("team", "project", "cluster"):
                names[kind].add(getattr(event, kind))
        elif isinstance(event, ReferenceDeclared) and event.chip:
            names["chip"].add(event.chip)
    names["run"].update(summary.run for summary in store.runs())
    return {kind: sorted(found - {""}) for kind, found in names.items()}


# -- what is shown ---------------------------------------------------------------------------------------


def _show(told: Finance, given: _Flags) -> None:
    if given.html_path is not None:
        from holdfast.dashboard.finance_page import render

        write_page(render(told), given.html_path)
    if given.csv_path is not None:
        months = months_between(told.first_ns, told.last_ns)
        write_page(focus_csv(told.invoice, months), given.csv_path, what="invoice")
    if given.as_json:
        print_json(told)
    elif given.html_path is None and given.csv_path is None:
        from holdfast.cli.finance_text import show

        show(told)
