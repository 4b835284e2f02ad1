"""How the verbs are told a window of time, and read a run's report in it: `--from`, `--to`, `--month`,
`--as-of`.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import click

from holdfast import wording
from holdfast.cli.moments import moment_ns
from holdfast.economics.pricing.months import Month, month_of
from holdfast.ledger.report import Report
from holdfast.ledger.runs import AskedWindow
from holdfast.ledger.window import Window
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.record.store import RunSummary

Verb = TypeVar("Verb", bound=Callable[..., Any])

_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
YEAR_MIN, YEAR_MAX = 1970, 2200


def look_at(from_ns: int | None, to_ns: int | None, month: Month | None, as_of_ns: int | None) -> AskedWindow:
    """The look that the options ask for."""
    if month is not None and (from_ns is not None or to_ns is not None):
        raise InputError("`--month` is a window of its own.", hint="Leave `--from` and `--to` out.")
    if month is not None:
        from_ns, to_ns = month.from_ns, month.to_ns
    if from_ns is not None and to_ns is not None and to_ns <= from_ns:
        raise InputError("`--to` is not after `--from`.", hint="Swap them, or leave one out.")
    now_ns = SystemClock().now_ns() if as_of_ns is None else as_of_ns
    return AskedWindow(window=Window(from_ns=from_ns, to_ns=to_ns), now_ns=now_ns, until_ns=as_of_ns)


def window_options(verb: Verb) -> Verb:
    """`--from`, `--to` and `--month` choose the time, `--as-of` the moment from which it is looked at.

    The verb gets them together, as `look`.
    """
    options = (
        click.option(
            "--from", "from_ns", callback=moment_ns, metavar="TIME", help="Only what was from then on."
        ),
        click.option(
            "--to", "to_ns", callback=moment_ns, metavar="TIME", help="Only what was before this time."
        ),
        click.option(
            "--month", "month", callback=month_option, metavar="YYYY-MM", help="Only this month, in UTC."
        ),
        click.option(
            "--as-of",
            "as_of_ns",
            callback=moment_ns,
            metavar="TIME",
            help="As it stood at this time: later events are not read.  [default: now]",
        ),
    )

    @wraps(verb)
    def looking(
        *arguments: Any,
        from_ns: int | None,
        to_ns: int | None,
        month: Month | None,
        as_of_ns: int | None,
        **others: Any,
    ) -> Any:
        return verb(*arguments, look=look_at(from_ns, to_ns, month, as_of_ns), **others)

    asking: Any = looking
    for option in reversed(options):
        asking = option(asking)
    return cast(Verb, asking)


def month_option(context: click.Context, parameter: click.Parameter, text: str | None) -> Month | None:
    if text is None:
        return None
    found = _MONTH.fullmatch(text.strip())
    year, month = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (YEAR_MIN <= year <= YEAR_MAX and 1 <= month <= 12):
        raise InputError(f"{text!r:.40} is not a month.", hint="Write it as in `--month 2026-10`.")
    return month_of(year, month)


def require_time(told: Report) -> None:
    """A run that has nothing in the window is said to have nothing: zeros would look like a result."""
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
