"""A finding: something that is not as it should be, at one subject, since some moment."""

from typing import Literal

import msgspec

from holdfast.detect.signs import Sign

Method = Literal["peers", "past", "physics", "limit", "reference", "event", "trend"]
"""Against what it was held: others doing the same work, its own past, a law of nature or what it is built
for, a limit in force, the declared reference, nothing at all (it happened), or where it is going."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was found.

    sign        what kind of thing is wrong
    subject     where, by its name in the topology
    since_ns    from when on; until_ns: when it was over, None while it lasts
    noticed_ns  when there had been enough observations to say so
    confidence  between 0 and 1: how sure, after the quality of the telemetry was taken into account
    value       what is seen, and `usual` what was to be expected, in `unit`
    effect_s    what it adds to a step, where that can be said
    limit_s     of a trend: how long until it reaches its limit
    note        a short clause for people
    grave       a fault of hardware by itself, whether or not any run feels it yet
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
