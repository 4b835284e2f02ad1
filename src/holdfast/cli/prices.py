"""How the verbs get their prices: from the file that was named, or the one at home, or the defaults."""

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
    help="What things cost, as TOML.  [default: $HOLDFAST_PRICES, or prices.toml in $HOLDFAST_HOME if it "
    "is there; what no file says is assumed]",
)


def load_planning_prices(path: Path | None) -> Prices:
    """The same for a plan: of the rates, those that hold now."""
    return load_prices(path).holding(SystemClock().now_ns())


def in_currency(prices: Prices) -> AbstractContextManager[None]:
    """Amounts that are written meanwhile are in the currency of the prices file."""
    return wording.in_currency(prices.currency.code, prices.currency.usd_per)


def load_prices(path: Path | None) -> Prices:
    """The prices in this file; without one, those at home; else the defaults, which are all assumed."""
    if path is None:
        path = home() / PRICES_FILE
        if not is_there(path):
            return DEFAULTS
    hint = "`holdfast cost --example-prices > prices.toml` makes a file to begin with."
    return parsed(path, read, what="prices", hint=hint)
