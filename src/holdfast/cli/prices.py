"""How the verbs get their prices: from the file that was named, or the one at home, or the defaults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.files import is_there, parsed
from holdfast.cli.record import home
from holdfast.economics.prices import DEFAULTS, Prices, read

Verb = TypeVar("Verb", bound=Callable[..., Any])

PRICES_FILE = "prices.toml"


def prices_option(verb: Verb) -> Verb:
    return click.option(
        "--prices",
        "prices_path",
        type=click.Path(path_type=Path),
        envvar="HOLDFAST_PRICES",
        metavar="FILE",
        help="What things cost, as TOML.  [default: $HOLDFAST_PRICES, or prices.toml in $HOLDFAST_HOME if it "
        "is there; what no file says is assumed]",
    )(verb)


def load_prices(path: Path | None) -> Prices:
    """The prices in this file; without one, those at home; else the defaults, which are all assumed."""
    if path is None:
        path = home() / PRICES_FILE
        if not is_there(path):
            return DEFAULTS
    hint = "`holdfast cost --example-prices > prices.toml` makes a file to begin with."
    return parsed(path, read, what="prices", hint=hint)
