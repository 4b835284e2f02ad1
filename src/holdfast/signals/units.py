"""Detect units that contradict a metric's name, from physics, from the wall clock and from peers.

Pure arithmetic over the values of each series; `quality` corrects them with the answers. If both readings of
a number are equally possible, nothing is changed.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.catalogue import Metric
from holdfast.signals.frame import Floats

Flags = NDArray[np.bool_]

PEERS_MIN = 3
"""This many others must agree before a number that might be true is called wrong."""
NEAR_K, FAR_K = 4.0, 8.0
"""A coolant within the first distance is as warm as its peers'; beyond the second it is not."""
PEER_SPREAD_K = 12.0
"""How far a loop in trouble may be from its peers."""
W_PER_KW = 1_000.0
WATTS_FACTOR_MIN, WATTS_SPREAD = 100.0, 5.0
NS_FROM_US = 1_000.0
US_PER_S_MAX = 1.5e6
"""A counter of microseconds cannot grow faster per second, allowing for late scrapes."""
US_PER_S_MIN = 2e5
"""A slower counter may count microseconds of a throttle of some percent, or nanoseconds of a negligible one.
Only from a fifth of the time on is the first far more likely.
"""


class Clocked(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """By series: whether it certainly counts microseconds, and whether that cannot be decided."""

    in_us: Flags
    unclear: Flags


def in_fahrenheit(metric: Metric, levels: Floats) -> Flags:
    """Which series, by their usual level, are in Fahrenheit. Coolants only: they have peers and a range."""
    low, high = _bounds(metric)
    celsius = (levels - 32) / 1.8
    is_possible = (low <= celsius) & (celsius <= high)
    plausible = (low <= levels) & (levels <= high)
    usual = np.median(levels[plausible]) if plausible.any() else np.nan
    beyond = (levels > high) & is_possible & ~(np.abs(celsius - usual) > PEER_SPREAD_K)
    odd = (levels - usual > FAR_K) & (np.abs(celsius - usual) < NEAR_K)
    return _flags(beyond | (odd & is_possible & (plausible.sum() > PEERS_MIN)))


def in_watts(metric: Metric, levels: Floats) -> Flags:
    """Which series, by their usual level, are in W although the name says kW."""
    _, high = _bounds(metric)
    plausible = levels <= high
    usual = np.median(levels[plausible]) if plausible.any() else np.nan
    if not usual > 0:
        return _flags(levels > high)
    share = levels / W_PER_KW / usual
    odd = (levels > WATTS_FACTOR_MIN * usual) & (share > 1 / WATTS_SPREAD) & (share < WATTS_SPREAD)
    return _flags((levels > high) | (odd & (plausible.sum() > PEERS_MIN)))


def clocked(hosts: tuple[str, ...], peaks: Floats) -> Clocked:
    """Which series of a time in ns are really in us. peaks: the fastest growth of each per second.

    An exporter has one unit for all its GPUs, so the fastest GPU of a host decides for all of them.
    """
    _, host = np.unique(np.array(hosts, dtype=object).astype(str), return_inverse=True)
    fastest = np.zeros(host.max(initial=-1) + 1)
    np.maximum.at(fastest, host, np.nan_to_num(peaks))
    rate = fastest[host]
    return Clocked(
        in_us=_flags((rate >= US_PER_S_MIN) & (rate <= US_PER_S_MAX)),
        unclear=_flags((rate > 0) & (rate < US_PER_S_MIN)),
    )


def _bounds(metric: Metric) -> tuple[float, float]:
    return (
        -np.inf if metric.low is None else metric.low,
        np.inf if metric.high is None else metric.high,
    )


def _flags(flags: Any) -> Flags:
    return np.asarray(flags, np.bool_)
