"""A rule: a metric, what it is held against, and from which difference on it matters."""

from typing import Literal

import msgspec

from holdfast.detect.finding import Method
from holdfast.detect.signs import Sign

SIGMAS = 6.0
"""Among a million readings of half an hour, nobody may be so far off by chance."""

View = Literal["value", "rate"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to look for.

    view         the reading itself, or its growth per second
    scale        from the metric's unit to `unit`
    against      past: what the series itself showed before; limit: `limit`
    falls        it is wrong when it gets less
    named        only series one of whose labels has one of these words in it
    grave        a fault of hardware by itself, whether or not any run feels it
    """

    sign: Sign
    metric: str
    unit: str
    note: str
    view: View = "value"
    scale: float = 1.0
    against: Method = "past"
    limit: float = 0.0
    least: float = 0.0
    least_share: float = 0.0
    falls: bool = False
    scrapes: int = 3
    named: tuple[str, ...] = ()
    grave: bool = False
