"""`holdfast cost`: the cost of an incident or a run, in five layers and in progress."""

from pathlib import Path

import click

from holdfast.cli.prices import in_currency, load_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json
from holdfast.cli.windows import require_time, window_options
from holdfast.economics.pricing.cost import incident_cost, run_cost
from holdfast.economics.pricing.prices import template
from holdfast.economics.pricing.pricing import Pricing
from holdfast.economics.pricing.rates import edges_ns
from holdfast.ledger.opinions import consulted
from holdfast.ledger.runs import AskedWindow, read_run
from holdfast.record.runs import find_run, known_run
from holdfast.record.store import Store


@click.command("cost")
@click.argument("subject", required=False, metavar="[RUN|RUN/INCIDENT]")
@click.option("--example-prices", is_flag=True, help="Print a prices file with every key, and stop.")
@window_options
@prices_option
@store_option
@json_option
def command(
    subject: str | None,
    example_prices: bool,
    look: AskedWindow,
    prices_path: Path | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Price a run, or one incident of it: five layers side by side, each with its formula and inputs.

    An incident is named RUN/N, as `holdfast report` numbers it.  [default: the run with the newest event]
    """
    if example_prices:
        click.echo(template(), nl=False)
        return
    prices = load_prices(prices_path)
    with open_record(store_url) as store:
        run, incident = _named(store, subject)
        told = consulted(store, read_run(store, run, look, edges_ns(prices.rates)))
    require_time(told)
    Pricing(told, prices).require()
    cost = run_cost(told, prices) if incident is None else incident_cost(told, incident, prices)
    if as_json:
        print_json(cost)
        return
    from holdfast.cli.cost_text import show

    with in_currency(prices):
        show(cost)


def _named(store: Store, subject: str | None) -> tuple[str, str | None]:
    """The run and, if one is named, the incident. A run's own name may have slashes in it."""
    run, slash, incident = (subject or "").rpartition("/")
    is_whole = not slash or known_run(store, subject or "") is not None
    if is_whole or not (incident.isdigit() or known_run(store, run) is not None):
        return find_run(store, subject), None
    return find_run(store, run), incident
