"""How the verbs are told numbers: as people write them, and none that is no number."""

import math
from collections.abc import Callable

import click

COUNT_MAX = 10**18
_SCALES = {"m": 1e6, "b": 1e9, "t": 1e12}
"""No k: for a sequence it would mean 1,024."""


def count(text: str) -> int:
    """A whole number as people write it: 512, 8,192, 70e9 or 70b."""
    digits = text.lower().replace(",", "")
    scale = _SCALES.get(digits[-1:], 1.0)
    try:
        number = float(digits[:-1] if scale > 1 else digits) * scale
    except ValueError:
        number = math.nan
    if not 1 <= number <= COUNT_MAX:
        raise click.BadParameter(f"{text!r} is not a count; write 512, 70e9 or 70b.")
    if number != round(number):
        raise click.BadParameter(f"{text!r} is not a whole number; write 12 or 13, not 12.5.")
    return round(number)


def number_between(low: float, high: float) -> Callable[[str], float]:
    """A converter for numbers between these; unlike click's own it lets no `nan` through."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise click.BadParameter(f"{text} is not a number between {low:g} and {high:g}.")
        return value

    return number
