"""`holdfast report`: where every GPU-second of a run went, for a person, a program or a manager."""

from pathlib import Path

import click

from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import find_run, fold_run, json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable
from holdfast.economics.prices import Prices
from holdfast.ledger.report import Report, report
from holdfast.record.errors import InputError

STDOUT = Path("-")


@click.command("report")
@click.argument("run", required=False)
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="OUT",
    help="Write the report as one self-contained web page; to stdout if OUT is `-`.",
)
@prices_option
@store_option
@json_option
def command(
    run: str | None, html_path: Path | None, prices_path: Path | None, store_url: str | None, as_json: bool
) -> None:
    """Show where every GPU-second of RUN went (the run with the newest event if left out).

    The page also says what the losses cost, at the prices of --prices.
    """
    if html_path == STDOUT and as_json:
        raise InputError("`--html -` and `--json` would both print to stdout.", hint="Leave one of them out.")
    with open_record(store_url) as store:
        name = find_run(store, run)
        told = report(name, fold_run(store, name))
    if html_path is not None:
        _write_page(told, load_prices(prices_path), html_path)
    if as_json:
        print_json(told)
    elif html_path is None:
        from holdfast.cli.report_text import show

        show(told)


def _write_page(told: Report, prices: Prices, path: Path) -> None:
    from holdfast.dashboard.page import render

    page = render(told, prices).encode()
    if path == STDOUT:
        click.echo(page, nl=False)
        return
    try:
        path.write_bytes(page)
    except OSError as error:
        raise InputError(
            f"The page cannot be written to {path}: {error.strerror}.",
            hint="Name a file in a directory that exists and that you may write to.",
        ) from None
    click.echo(f"The page is in {printable(str(path))}", err=True)
