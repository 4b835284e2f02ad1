"""Counters to growth per second, whatever happened to the counter or to the scrapes.

Row by row in time: a row of 16,384 series stays in the processor's cache, the whole window would not.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.frame import Frame
from holdfast.wording.units import SECOND_NS


def per_second(frame: Frame) -> Frame:
    """The growth of each series since the value before it, by the time that lies between the two.

    A fall is a reset: the counter began again at zero, so all that it shows is growth. NaN in the first row
    and where a scrape is missing; the next value's growth is over the longer time.
    """
    rates = np.full(frame.values.shape, np.nan, np.float32)
    if len(frame.times_ns) > 1:
        _fill(rates, frame)
    return msgspec.structs.replace(frame, kind="gauge", values=rates, words=())


def _fill(rates: NDArray[np.float32], frame: Frame) -> None:
    values, seconds = frame.values, (frame.times_ns - frame.times_ns[0]) / SECOND_NS
    # What was last known, and when, of whoever was absent at the scrape before: few, as a rule.
    last, last_s = np.full(values.shape[1], np.nan), np.zeros(values.shape[1])
    absent = np.flatnonzero(np.isnan(values[0]))
    growth = np.empty(values.shape[1])
    for time in range(1, len(seconds)):
        now, before = values[time], values[time - 1]
        np.subtract(now, before, out=growth, dtype=np.float64)
        growth[absent] = now[absent] - last[absent]
        fell = growth < 0
        if fell.any():
            np.copyto(growth, now, where=fell)
        elapsed_s = seconds[time] - seconds[time - 1]
        # Whoever was absent at the last scrape has grown for longer than that.
        growth[absent] *= elapsed_s / (seconds[time] - last_s[absent])
        np.divide(growth, elapsed_s, out=rates[time], casting="same_kind")
        absent = np.flatnonzero(np.isnan(now))
        gone = absent[~np.isnan(before[absent])]
        last[gone], last_s[gone] = before[gone], seconds[time - 1]
