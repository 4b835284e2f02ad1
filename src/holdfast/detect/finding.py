"""A finding: something that is not as it should be, at one subject, since some moment."""

from typing import Literal

import msgspec

Method = Literal["peers", "past", "physics", "limit", "reference", "event", "trend"]
"""Against what it was held: others doing the same work, its own past, a law of nature or what it is built
for, a limit in force, the declared reference, nothing at all (it happened), or where it is going."""

Sign = Literal[
    "alloc-retries",
    "bus-replays",
    "busy-disk",
    "busy-mount",
    "changed",
    "clock-off",
    "collecting",
    "cpu-pressure",
    "creeping",
    "damaged-packets",
    "failed-supply",
    "frequent-checkpoints",
    "full-buffer",
    "full-cache",
    "full-disk",
    "full-table",
    "heating",
    "hot-gpu",
    "hung-tasks",
    "io-pressure",
    "killed",
    "late-compute",
    "late-data",
    "late-exchange",
    "leak",
    "link-down",
    "link-recoveries",
    "lost-rows",
    "low-clock",
    "low-flow",
    "low-limit",
    "low-memory",
    "low-power",
    "memory-errors",
    "memory-pressure",
    "memory-xid",
    "narrow-bus",
    "no-step",
    "nvlink-errors",
    "nvlink-xid",
    "port-waits",
    "power-throttle",
    "pump-strained",
    "remapped-rows",
    "resent-calls",
    "resent-packets",
    "resent-rpcs",
    "slow-checkpoint",
    "slow-disk",
    "slow-fan",
    "slow-first-token",
    "slow-link",
    "slow-lustre",
    "slow-names",
    "slow-nvlink",
    "slow-reads",
    "slow-step",
    "slow-transfer",
    "slow-writes",
    "stopped-first",
    "swapping",
    "symbol-errors",
    "thermal-throttle",
    "thrashing",
    "uncorrected-errors",
    "uplink-waits",
    "wandering",
    "warm-inlet",
    "warm-supply",
    "xid",
]
"""Every kind of thing that can be wrong, in the order of the alphabet; `rules.SIGNS` says what each means."""


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
    until_ns: int | None
    noticed_ns: int
    confidence: float
    value: float
    usual: float
    unit: str
    effect_s: float | None = None
    limit_s: float | None = None
    note: str = ""
    grave: bool = False
