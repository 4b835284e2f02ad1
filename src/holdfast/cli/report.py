"""`holdfast report`: where every GPU-second of a run went, for a person, a program or a manager."""

from pathlib import Path

import click

from holdfast.cli.pages import html_option, require_one_output, write_page
from holdfast.cli.prices import in_currency, load_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json
from holdfast.cli.windows import require_time, window_options
from holdfast.economics.pricing.asked import priced
from holdfast.economics.pricing.rates import edges_ns
from holdfast.ledger.opinions import consulted
from holdfast.ledger.runs import AskedWindow, read_run
from holdfast.record.runs import find_run


@click.command("report")
@click.argument("run", required=False)
@window_options
@html_option
@prices_option
@store_option
@json_option
def command(
    run: str | None,
    look: AskedWindow,
    html_path: Path | None,
    prices_path: Path | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Show where every GPU-second of RUN went (default: the run with the newest event).

    Its hours are priced as recorded in the run, or by --prices. The page also shows what the losses cost.
    """
    require_one_output(html_path, as_json)
    prices = load_prices(prices_path)
    with open_record(store_url) as store:
        name = find_run(store, run)
        told = consulted(store, read_run(store, name, look, edges_ns(prices.rates)))
    require_time(told)
    told = priced(told, prices)
    if html_path is not None:
        from holdfast.dashboard.page import render

        with in_currency(prices):
            write_page(render(told, prices), html_path)
    if as_json:
        print_json(told)
    elif html_path is None:
        from holdfast.cli.report_text import show

        with in_currency(prices):
            show(told)
