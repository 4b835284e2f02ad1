"""`holdfast finance`: show spend, useful spend and waste of all runs, for the owner of the budget."""

from pathlib import Path

import click
import msgspec

from holdfast import wording
from holdfast.cli.flags import option, shared, takes
from holdfast.cli.pages import STDOUT, html_option, require_one_output, writable, write_page
from holdfast.cli.prices import in_currency, load_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json
from holdfast.cli.windows import reading, window_options
from holdfast.economics.finance.books import read_books
from holdfast.economics.finance.finance import FinanceQuestion, finance
from holdfast.economics.finance.invoice import focus_csv
from holdfast.economics.finance.ownership import Terms, read, template
from holdfast.economics.finance.statement import Finance
from holdfast.economics.pricing.months import months_between
from holdfast.ledger.runs import AskedWindow
from holdfast.record.errors import InputError
from holdfast.record.files import parsed
from holdfast.record.runs import simulated_remark


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[str, ...] = option("--run", "Only this run. May be repeated.", metavar="RUN")
    teams: tuple[str, ...] = option("--team", "Only this team. May be repeated.", metavar="TEAM")
    look: AskedWindow = shared(window_options)
    own_or_rent: bool = option("Compare owning GPUs with renting them, too.")
    own_path: Path | None = option("--own", "The same, on these terms, as TOML; missing terms are assumed.")
    example_own: bool = option("Print a file with every term of owning, and stop.")
    html_path: Path | None = shared(html_option)
    csv_path: Path | None = option(
        "--csv",
        "Write the invoice's lines with the columns of FOCUS 1.2; to stdout if OUT is `-`.",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        callback=writable("invoice"),
        metavar="OUT",
    )
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("finance")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Show what all runs cost, how much of that was useful, and where the rest went.

    By month, cause, team and project; compared with budgets and targets, with a forecast; the five costliest
    wastes and what to do about them. `--month 2026-10` shows one month.
    """
    if given.example_own:
        click.echo(template(), nl=False)
        return
    _require_outputs(given)
    look = given.look
    prices, terms = load_prices(given.prices_path), _terms(given)
    with open_record(given.store_url) as store:
        books = read_books(store, look, prices, reading, runs=given.runs, teams=given.teams)
    told = finance(
        books.reports,
        prices,
        FinanceQuestion(window=look.window, now_ns=look.now_ns, terms=terms, known=books.known),
    )
    if books.on_cpu:
        count, verb = wording.many(books.on_cpu, "run"), "is" if books.on_cpu == 1 else "are"
        left_out = f"{count} of members without a GPU {verb} left out: no price of their hours is given."
        told = msgspec.structs.replace(told, remarks=(*told.remarks, left_out))
    if books.simulated:
        told = msgspec.structs.replace(told, remarks=(*told.remarks, simulated_remark(books.simulated)))
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
