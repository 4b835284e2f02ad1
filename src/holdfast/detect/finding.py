"""A finding: something wrong at one subject, since some moment."""

from typing import Literal

import msgspec

from holdfast.detect.signs import Sign

Method = Literal["peers", "past", "physics", "limit", "reference", "event", "trend"]
"""The comparison behind a finding: with others doing the same work, its own past, a law of nature or the
rated value, a limit in force, the declared reference, none (an event happened), or where it is heading.
"""


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One problem at one subject.

    sign        the kind of problem
    subject     where, by its name in the topology
    since_ns    when it began; until_ns: when it ended, None while it lasts
    noticed_ns  when there were enough observations to report it
    confidence  between 0 and 1, reduced for flaws in the telemetry
    value       the observed value; `usual` the expected one, both in `unit`
    effect_s    what it adds to a step, if known
    limit_s     for a trend: how long until it reaches its limit
    note        a short clause for people
    grave       a hardware fault by itself, whether or not any run feels it yet
    """

    sign: Sign
    subject: str
    metric: str
    method: Method
    since_ns: int
    until_ns: int | None = None
    noticed_ns: int
    confidence: float
    value: float
    usual: float = 0.0
    unit: str = ""
    effect_s: float | None = None
    limit_s: float | None = None
    note: str = ""
    grave: bool = False
