"""The window of time of a verb (`--from`, `--to`, `--month`, `--as-of`), and reports in it."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click
import msgspec

from holdfast import wording
from holdfast.cli.flags import option, together
from holdfast.cli.values import moment_ns
from holdfast.economics.pricing.months import Month, month_of
from holdfast.ledger.report import Report
from holdfast.ledger.runs import AskedWindow
from holdfast.ledger.window import Window
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.record.store import RunSummary

_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
YEAR_MIN, YEAR_MAX = 1970, 2200


def _month(context: click.Context, parameter: click.Parameter, text: str | None) -> Month | None:
    if text is None:
        return None
    found = _MONTH.fullmatch(text.strip())
    year, month = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (YEAR_MIN <= year <= YEAR_MAX and 1 <= month <= 12):
        raise InputError(f"{text!r:.40} is not a month.", hint="Write it as in `--month 2026-10`.")
    return month_of(year, month)


class _Window(msgspec.Struct, frozen=True, kw_only=True):
    """The flags for the window, and for the moment from which it is seen."""

    from_ns: int | None = option("--from", "Only from this time on.", callback=moment_ns, metavar="TIME")
    to_ns: int | None = option("--to", "Only before this time.", callback=moment_ns, metavar="TIME")
    month: Month | None = option("Only this month, in UTC.", callback=_month, metavar="YYYY-MM")
    as_of_ns: int | None = option(
        "--as-of",
        "As it stood at this time: later events are not read.  [default: now]",
        callback=moment_ns,
        metavar="TIME",
    )


def _look_at(asked: _Window) -> AskedWindow:
    from_ns, to_ns, month, as_of_ns = asked.from_ns, asked.to_ns, asked.month, asked.as_of_ns
    if month is not None and (from_ns is not None or to_ns is not None):
        raise InputError("`--month` is a window of its own.", hint="Leave `--from` and `--to` out.")
    if month is not None:
        from_ns, to_ns = month.from_ns, month.to_ns
    if from_ns is not None and to_ns is not None and to_ns <= from_ns:
        raise InputError("`--to` is not after `--from`.", hint="Swap them, or leave one out.")
    now_ns = SystemClock().now_ns() if as_of_ns is None else as_of_ns
    return AskedWindow(window=Window(from_ns=from_ns, to_ns=to_ns), now_ns=now_ns, until_ns=as_of_ns)


window_options = together(_Window, "look", _look_at)


def require_time(told: Report) -> None:
    """Raise `InputError` if the run has nothing in the window: zeros would look like a result."""
    if told.window == (None, None) or told.paid_gpu_ns or told.accrued or told.last_ns > told.first_ns:
        return
    raise InputError(
        f"Run {told.run!r} has nothing in that time.",
        hint=f"Its last event is of {wording.stamp(told.known_ns)}; `holdfast runs` shows all of them.",
    )


@contextmanager
def reading(summaries: list[RunSummary]) -> Iterator[Iterable[RunSummary]]:
    """The runs, with a progress bar on a terminal."""
    if not sys.stderr.isatty() or len(summaries) < 2:
        yield summaries
        return
    with click.progressbar(summaries, label="Reading runs", file=sys.stderr) as bar:
        yield bar
