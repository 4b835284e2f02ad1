"""The books: the runs of a store that a statement covers, and their reports."""

from collections.abc import Sequence

import msgspec

from holdfast import wording
from holdfast.economics.finance.finance import cuts_ns
from holdfast.economics.pricing.prices import Prices
from holdfast.economics.pricing.pricing import Pricing
from holdfast.ledger.opinions import compared
from holdfast.ledger.report import Report
from holdfast.ledger.runs import AskedWindow, Progress, read_run
from holdfast.ledger.window import SILENT_NS_MAX, fell_silent
from holdfast.record.errors import InputError
from holdfast.record.events import ReferenceDeclared, RunStarted, RunSubmitted
from holdfast.record.runs import find_run, simulated_runs
from holdfast.record.store import RunSummary, Selection, Store
from holdfast.record.untrusted import printable

SILENT_NAMED_MAX = 5


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """The reports of the selected runs.

    known      all names in the store by kind (run, team, ...); None if runs or teams were selected
    simulated  how many simulated runs are left out
    on_cpu     how many runs of members without a GPU, whose hours have no price, are left out
    """

    reports: tuple[Report, ...]
    known: dict[str, list[str]] | None
    simulated: int
    on_cpu: int


def read_books(
    store: Store,
    look: AskedWindow,
    prices: Prices,
    reading: Progress,
    *,
    runs: Sequence[str] = (),
    teams: Sequence[str] = (),
) -> Books:
    """The books of these runs and teams, or of all. There is at least one report."""
    summaries, simulated = _summaries(store, runs, look)
    reports = _of_teams(compared(store, _reports(store, summaries, look, prices, reading)), runs, teams)
    timed = tuple(report for report in reports if _has_time(report, look))
    within = tuple(report for report in timed if Pricing(report, prices).is_priced)
    if timed and not within:
        Pricing(timed[0], prices).require()
    if look.window.is_bounded and not any(_is_there(report) for report in within):
        raise _nothing(reports, within)
    return Books(
        reports=within,
        known=None if runs or teams else _names(store),
        simulated=simulated,
        on_cpu=len(timed) - len(within),
    )


def _summaries(store: Store, runs: Sequence[str], look: AskedWindow) -> tuple[list[RunSummary], int]:
    """The selected runs, at least one, and how many simulated runs are left out."""
    wanted = {find_run(store, run) for run in runs}
    if not wanted:
        find_run(store, None)  # raises if the store has no runs
    until_ns = min(edge for edge in (look.window.to_ns, look.until_ns, 2**63) if edge is not None)
    within = [
        summary
        for summary in store.runs()
        if (not wanted or summary.run in wanted) and summary.events > 0 and summary.first_ns < until_ns
    ]
    if not within:
        raise InputError(
            "No run has an event in that time.", hint="`holdfast runs` shows the times of the runs."
        )
    simulated = frozenset() if wanted else simulated_runs(store)
    real = [summary for summary in within if summary.run not in simulated]
    if not real:
        raise InputError(
            "The store has only simulated runs, which cost nothing.", hint="Name one with --run."
        )
    return real, len(within) - len(real)


def _reports(
    store: Store, summaries: list[RunSummary], look: AskedWindow, prices: Prices, reading: Progress
) -> list[Report]:
    window = look.window
    last_ns = min(max(summary.last_ns for summary in summaries), look.until_ns or 2**63)
    if look.now_ns - last_ns <= SILENT_NS_MAX:
        last_ns = max(last_ns, look.now_ns)  # a run may still be going on
    begins_ns = [one.first_ns for one in summaries if one.last_ns] or [0]  # a log without times is all at 0
    first_ns, last_ns = window.clipped(min(begins_ns), last_ns)
    cuts = cuts_ns(first_ns, last_ns, prices)
    with reading(summaries) as shown:
        return [read_run(store, summary.run, look, cuts) for summary in shown]


def _of_teams(reports: list[Report], runs: Sequence[str], wanted: Sequence[str]) -> list[Report]:
    if not wanted:
        return reports
    teams = {report.team for report in reports}
    for team in wanted:
        if team in teams:
            continue
        if runs:
            own = ", ".join(f"{report.run} is of {report.team!r}" for report in reports if report.team)
            raise InputError(
                f"None of the runs given with --run is of the team {team!r}.",
                hint=f"{own or 'They name no team'}; leave out --run or --team.",
            )
        known = ", ".join(sorted(repr(name) for name in teams if name)) or "none"
        raise InputError(f"No run names the team {team!r}.", hint=f"Named are: {known}.")
    return [report for report in reports if report.team in wanted]


def _has_time(report: Report, look: AskedWindow) -> bool:
    """Whether a run has, or may have, a part in the window: a silent run may go on until now."""
    begin_ns, end_ns = look.window.clipped(report.known_ns, look.now_ns)
    is_silent = fell_silent(report, look.now_ns) and begin_ns < end_ns
    return _is_there(report) or is_silent or not look.window.is_bounded


def _is_there(report: Report) -> bool:
    """Whether the run has more than a moment in the window."""
    return report.last_ns > report.first_ns or report.paid_gpu_ns > 0 or report.accrued is not None


def _nothing(reports: Sequence[Report], silent: Sequence[Report]) -> InputError:
    """The error for an empty window. silent: runs that have not ended and have no event in that time."""
    latest = max((report.known_ns for report in reports), default=0)
    hint = f"The last event is of {wording.stamp(latest)}; `holdfast runs` shows the times of the runs."
    if silent:
        names = ", ".join(printable(report.label) for report in silent[:SILENT_NAMED_MAX])
        more = ", ..." if len(silent) > SILENT_NAMED_MAX else ""
        hint += f" Perhaps still running and holding GPUs: {names}{more}."
    return InputError(
        "No run is known to have held GPUs in that time." if silent else "No run held GPUs in that time.",
        hint=hint,
    )


def _names(store: Store) -> dict[str, list[str]]:
    """All names of runs, teams, projects, clusters and chips in the store, by kind."""
    names: dict[str, set[str]] = {kind: set() for kind in ("run", "team", "project", "cluster", "chip")}
    kinds = ("run.submitted", "run.started", "reference.declared")
    for event in store.select(Selection(kinds=kinds)):
        names["run"].add(event.run)
        if isinstance(event, RunSubmitted | RunStarted):
            names["run"].add(event.name)
            for kind in ("team", "project", "cluster"):
                names[kind].add(getattr(event, kind))
        elif isinstance(event, ReferenceDeclared) and event.chip:
            names["chip"].add(event.chip)
    names["run"].update(summary.run for summary in store.runs())
    return {kind: sorted(found - {""}) for kind, found in names.items()}
