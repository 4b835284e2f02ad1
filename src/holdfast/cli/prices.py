"""Loads the prices for the verbs: from the named file, else the one at home, else the defaults."""

from contextlib import AbstractContextManager
from pathlib import Path

import click

from holdfast import wording
from holdfast.cli.record import home
from holdfast.economics.pricing.prices import DEFAULTS, Prices, read
from holdfast.record.clock import SystemClock
from holdfast.record.files import is_there, parsed

PRICES_FILE = "prices.toml"

prices_option = click.option(
    "--prices",
    "prices_path",
    type=click.Path(path_type=Path),
    envvar="HOLDFAST_PRICES",
    metavar="FILE",
    help="The prices, as TOML.  [default: $HOLDFAST_PRICES, or prices.toml in $HOLDFAST_HOME; missing prices "
    "are assumed]",
)


def load_planning_prices(path: Path | None) -> Prices:
    """The same for a plan, with the rates that hold now."""
    return load_prices(path).holding(SystemClock().now_ns())


def in_currency(prices: Prices) -> AbstractContextManager[None]:
    """Write amounts in the currency of the prices file while the block lasts."""
    return wording.in_currency(prices.currency.code, prices.currency.usd_per)


def load_prices(path: Path | None) -> Prices:
    """The prices in this file, else those at home, else the defaults, which are all assumed."""
    if path is None:
        path = home() / PRICES_FILE
        if not is_there(path):
            return DEFAULTS
    hint = "`holdfast cost --example-prices > prices.toml` makes a file to begin with."
    return parsed(path, read, what="prices", hint=hint)
