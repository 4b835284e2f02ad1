"""`holdfast finance`: spend, useful spend and waste of all runs, for whoever answers for the budget."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.files import parsed
from holdfast.cli.moments import moment_ns
from holdfast.cli.pages import html_option, require_one_output, write_page
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import find_run, json_option, left_out, open_record, simulated_runs, store_option
from holdfast.cli.terminal import print_json
from holdfast.economics.finance import Books, Finance, finance
from holdfast.economics.ownership import Terms, read, template
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import report
from holdfast.record.errors import InputError
from holdfast.record.events import Correction
from holdfast.record.store import RunSummary, Selection, Store


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, typed; None for what was not given."""

    runs: tuple[str, ...]
    teams: tuple[str, ...]
    since_ns: int | None
    until_ns: int | None
    own_path: Path | None
    example_own: bool
    html_path: Path | None
    prices_path: Path | None
    store_url: str | None
    as_json: bool


@click.command("finance")
@click.option("--run", "runs", multiple=True, metavar="RUN", help="Only this run; may be given again.")
@click.option("--team", "teams", multiple=True, metavar="TEAM", help="Only this team; may be given again.")
@click.option(
    "--since", "since_ns", callback=moment_ns, metavar="TIME", help="Only what was spent from then on."
)
@click.option("--until", "until_ns", callback=moment_ns, metavar="TIME", help="As it was known at this time.")
@click.option(
    "--own",
    "own_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="On what terms GPUs are owned and rented, as TOML; what it does not say is assumed.",
)
@click.option("--example-own", is_flag=True, help="Print such a file with every term, and stop.")
@html_option
@prices_option
@store_option
@json_option
def command(**flags: Any) -> None:
    """Show what all runs cost, what of that was useful, and what the rest went to.

    By cause, by team against its target, over time against progress; with retries and data movement, and
    whether to own or to rent.
    """
    given = _Flags(**flags)
    if given.example_own:
        click.echo(template(), nl=False)
        return
    require_one_output(given.html_path, given.as_json)
    if given.since_ns is not None and given.until_ns is not None and given.until_ns <= given.since_ns:
        raise InputError("`--until` is not after `--since`.", hint="Swap them, or leave one out.")
    prices, terms = load_prices(given.prices_path), _terms(given.own_path)
    with open_record(given.store_url) as store:
        summaries, simulated = _summaries(store, given)
        books = _all_books(store, summaries, given)
    told = finance(books, prices, terms, given.since_ns)
    if simulated:
        told = msgspec.structs.replace(told, remarks=(*told.remarks, left_out(simulated)))
    _show(told, given)


def _terms(path: Path | None) -> Terms:
    if path is None:
        return Terms()
    hint = "`holdfast finance --example-own > own.toml` makes a file to begin with."
    return parsed(path, read, what="terms", hint=hint)


# -- the books -------------------------------------------------------------------------------------------


def _summaries(store: Store, given: _Flags) -> tuple[list[RunSummary], int]:
    """The runs that are wanted, at least one; and how many are left out because they were simulated."""
    wanted = {find_run(store, run) for run in given.runs}
    if not wanted:
        find_run(store, None)  # complains where there is none
    within = [
        summary
        for summary in store.runs()
        if (not wanted or summary.run in wanted) and _is_within(summary, given)
    ]
    if not within:
        raise InputError(
            "No run has an event in that time.", hint="`holdfast runs` shows when the runs were."
        )
    simulated = frozenset() if wanted else simulated_runs(store)
    real = [summary for summary in within if summary.run not in simulated]
    if not real:
        raise InputError("Only simulated runs are there, which cost nothing.", hint="Name one with --run.")
    return real, len(within) - len(real)


def _all_books(store: Store, summaries: list[RunSummary], given: _Flags) -> list[Books]:
    """Those of the teams that are wanted."""
    with _progress(summaries) as shown:
        books = [_books(store, summary, given) for summary in shown]
    if not given.teams:
        return books
    teams = {book.report.team for book in books}
    for team in given.teams:
        if team not in teams:
            known = ", ".join(sorted(repr(name) for name in teams if name)) or "none"
            raise InputError(f"No run names the team {team!r}.", hint=f"Named are: {known}.")
    return [book for book in books if book.report.team in given.teams]


def _is_within(summary: RunSummary, given: _Flags) -> bool:
    begins_in_time = summary.events > 0 and (given.until_ns is None or summary.first_ns < given.until_ns)
    return begins_in_time and (given.since_ns is None or summary.last_ns >= given.since_ns)


def _books(store: Store, summary: RunSummary, given: _Flags) -> Books:
    """The run up to the end of the window, and up to its beginning: what lies between is the window's."""
    run, since_ns = summary.run, given.since_ns
    corrections = store.select(Selection(run=run, kinds=("correction",)))
    ledger = Ledger(event for event in corrections if isinstance(event, Correction))
    earlier = None
    if since_ns is not None and summary.first_ns < since_ns:
        ledger.add(store.select(Selection(run=run, until_ns=since_ns)))
        earlier = report(run, ledger.fold)
    ledger.add(store.select(Selection(run=run, since_ns=since_ns, until_ns=given.until_ns)))
    return Books(report=report(run, ledger.fold), earlier=earlier)


@contextmanager
def _progress(summaries: list[RunSummary]) -> Iterator[Iterable[RunSummary]]:
    """The runs, with a bar on the terminal of whoever waits for them."""
    if not sys.stderr.isatty():
        yield summaries
        return
    with click.progressbar(summaries, label="Reading runs", file=sys.stderr) as bar:
        yield bar


# -- what is shown ---------------------------------------------------------------------------------------


def _show(told: Finance, given: _Flags) -> None:
    if given.html_path is not None:
        from holdfast.dashboard.finance_page import render

        write_page(render(told), given.html_path)
    if given.as_json:
        print_json(told)
    elif given.html_path is None:
        from holdfast.cli.finance_text import show

        show(told)
