"""Calendar months in UTC: when they begin, and which ones a stretch of time touches."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from holdfast.wording.units import SECOND_NS


class Month(msgspec.Struct, frozen=True, kw_only=True):
    """A month: its name as in `2026-10`, its first nanosecond, and the first of the next."""

    name: str
    from_ns: int
    to_ns: int


def month_of(year: int, month: int) -> Month:
    later = (year + 1, 1) if month == 12 else (year, month + 1)
    return Month(name=f"{year:04}-{month:02}", from_ns=_begin_ns(year, month), to_ns=_begin_ns(*later))


def month_at(at_ns: int) -> Month:
    moment = datetime.fromtimestamp(at_ns // SECOND_NS, UTC)
    return month_of(moment.year, moment.month)


def months_between(from_ns: int, to_ns: int) -> Iterator[Month]:
    """The months that this time touches, at least one."""
    month = month_at(from_ns)
    yield month
    while month.to_ns < to_ns:
        month = month_at(month.to_ns)
        yield month


def _begin_ns(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * SECOND_NS
