"""How the verbs get their prices: from the file that was named, or the one at home, or the defaults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.record import home
from holdfast.economics.prices import DEFAULTS, Prices, read
from holdfast.record.errors import HoldfastError, InputError

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
        if not path.exists():
            return DEFAULTS
    try:
        return read(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from None
    except OSError as error:
        raise InputError(
            f"The prices cannot be read from {path}: {error.strerror}.",
            hint="`holdfast cost --example-prices > prices.toml` makes a file to begin with.",
        ) from None
    except HoldfastError as error:
        raise InputError(f"{path}: {error.sentence}", hint=error.hint) from None
