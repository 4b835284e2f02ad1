"""Parses windows and moments for the verbs, as people or machines write them."""

import re
from contextlib import suppress

import click

from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.record.importers.intake import time_ns
from holdfast.wording.parsing import some_seconds

AHEAD_NS_MAX = 60 * 10**9
"""How far another clock may be ahead of ours; a later moment is in the future."""
_AGO = re.compile(r"[0-9.]+ *[a-z]+", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def window_seconds(text: str) -> float:
    """How far an assessment looks back; bounded, because all its samples are in memory at once."""
    from holdfast.diagnose.answering import WINDOW_S_MAX

    value_s = some_seconds(text)
    if value_s > WINDOW_S_MAX:
        raise InputError(
            f"A window of {text} is too long: {WINDOW_S_MAX / 3_600:.0f}h is the most.",
            hint="Look at an earlier time with --at.",
        )
    return value_s


def moment_ns(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """The callback of an option that takes a moment: ISO 8601, a number since 1970, or how long ago (1h).

    A day means its midnight in UTC.
    """
    if text is None:
        return None
    if _AGO.fullmatch(text.strip()):
        with suppress(ValueError):
            return SystemClock().now_ns() - round(some_seconds(text) * 1e9)
    try:
        return time_ns(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except ValueError as error:
        raise InputError(
            f"{parameter.opts[0]}: {error}.",
            hint="Write it as 2026-01-31, as 2026-01-31T12:00:00Z, or as 1h for an hour ago.",
        ) from None


def past_moment_ns(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """The callback of an option that takes a moment that is not in the future."""
    at_ns = moment_ns(context, parameter, text)
    if at_ns is not None and at_ns > SystemClock().now_ns() + AHEAD_NS_MAX:
        raise InputError(
            f"{parameter.opts[0]}: {text} is in the future.", hint="Leave it out to look at now."
        )
    return at_ns
