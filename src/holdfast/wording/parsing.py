"""Parses numbers, durations and rates as people write them. A `ValueError` says what they should write."""

import math
import re

COUNT_MAX = 10**18
_SCALES = {"m": 1e6, "b": 1e9, "t": 1e12}
"""There is no k: for a sequence length it would mean 1,024."""


def count(text: str) -> int:
    """A whole number as people write it: 512, 8,192, 70e9 or 70b."""
    digits = text.lower().replace(",", "")
    scale = _SCALES.get(digits[-1:], 1.0)
    try:
        number = float(digits[:-1] if scale > 1 else digits) * scale
    except ValueError:
        number = math.nan
    if not 1 <= number <= COUNT_MAX:
        raise ValueError(f"{text!r} is not a count; write 512, 70e9 or 70b.")
    if number != round(number):
        raise ValueError(f"{text!r} is not a whole number; write 12 or 13, not 12.5.")
    return round(number)


SECONDS_MIN, SECONDS_MAX = 1e-6, 1e9
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
        raise ValueError(f"{text!r} is not a duration; write 90, 90s, 5m, 3.1h or 2d.")
    return value_s


def some_seconds(text: str) -> float:
    """A time above 0."""
    if (value_s := seconds(text)) == 0:
        raise ValueError(f"{text!r} must be above 0.")
    return value_s


def seconds_with_unit(text: str) -> float:
    """A time above 0 with a unit: people might mean hours as well as seconds."""
    value_s, number = some_seconds(text), text.strip()
    if not number[-1].isalpha():
        raise ValueError(f"{number!r} has no unit: {number}h or {number}s?")
    return value_s


RATE_MIN, RATE_MAX = 1e3, 1e15
_RATE = re.compile(r"([0-9.]+) ?([kmgt]i?)?b/s")
_FACTORS = {"": 1.0, **{unit: 1e3**power for power, unit in enumerate("kmgt", 1)}}
_FACTORS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("kmgt", 1)}


def bytes_per_second(text: str) -> float:
    """A rate as people write it: 500MB/s, 1.5GB/s, 200MiB/s."""
    found = _RATE.fullmatch(text.strip().lower())
    try:
        value = float(found[1]) * _FACTORS[found[2] or ""] if found else math.nan
    except ValueError:
        value = math.nan
    if not RATE_MIN <= value <= RATE_MAX:
        raise ValueError(f"{text!r} is not a rate from 1kB/s on; write 500MB/s or 1.5GB/s.")
    return value
