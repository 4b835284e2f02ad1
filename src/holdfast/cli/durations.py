"""How the verbs are told for how long: as people write a time."""

import math
import re

import click

from holdfast.record.errors import InputError

SECONDS_MIN, SECONDS_MAX = 1e-6, 1e9
WINDOW_S_MAX = 6 * 3_600.0
_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(rf"([0-9.]+(?:e-?[0-9]+)?) ?({'|'.join(_UNITS_S)})")


def seconds(text: str) -> float:
    """A time as people write it: 90, 90s, 5m, 3.1h, 2d, 250ms."""
    found = _DURATION.fullmatch(text.strip().lower())
    try:
        value_s = float(found[1]) * _UNITS_S[found[2]] if found else math.nan
    except ValueError:
        value_s = math.nan
    if value_s != 0 and not SECONDS_MIN <= value_s <= SECONDS_MAX:
        raise click.BadParameter(f"{text!r} is not a duration; write 90, 90s, 5m, 3.1h or 2d.")
    return value_s


def some_seconds(text: str) -> float:
    """A time above 0."""
    if (value_s := seconds(text)) == 0:
        raise click.BadParameter(f"{text!r} must be above 0.")
    return value_s


def window_seconds(text: str) -> float:
    """How far an assessment looks back: all it reads of that time is in memory at once."""
    value_s = some_seconds(text)
    if value_s > WINDOW_S_MAX:
        raise InputError(
            f"A window of {text} is too long: {WINDOW_S_MAX / 3_600:.0f}h is the most.",
            hint="Look at an earlier time with --at.",
        )
    return value_s


def seconds_with_unit(text: str) -> float:
    """A time above 0 that people would count in hours as soon as in seconds, so that they must say which."""
    value_s, number = some_seconds(text), text.strip()
    if not number[-1].isalpha():
        raise click.BadParameter(f"{number!r} has no unit: {number}h or {number}s?")
    return value_s
