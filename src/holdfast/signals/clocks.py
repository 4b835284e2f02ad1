"""Hosts whose clocks are wrong: no cause of slowness, but times that they tell are off by as much."""

from collections.abc import Iterator

import numpy as np

from holdfast.signals.quality import Flaw
from holdfast.signals.source import Source

OFFSETS = ("node_timex_offset_seconds", "chrony_tracking_last_offset_seconds")
OFFSET_S_MAX = 0.1
"""A clock that NTP holds is off by some milliseconds; a step of a run takes longer than this."""
WITHIN_NS = 300 * 10**9


def skewed(source: Source, now_ns: int) -> Iterator[Flaw]:
    """One for each host, by the first metric that tells."""
    there, told = set(source.metrics()), set()
    for metric in OFFSETS:
        frame = source.frame(metric, (now_ns - WITHIN_NS, now_ns + 1)) if metric in there else None
        if frame is None or not len(frame.times_ns):
            continue
        known = np.flatnonzero(np.isfinite(frame.values).any(axis=0))
        offsets_s = np.nanmedian(frame.values[:, known], axis=0)
        for column, offset_s in zip(known.tolist(), offsets_s.tolist(), strict=True):
            host = frame.subjects[column]
            if abs(offset_s) > OFFSET_S_MAX and host not in told:
                told.add(host)
                text = f"The clock of {host} is off by {abs(offset_s):.3g} s: the times it records are wrong."
                yield Flaw(kind="clock", subject=host, metric=metric, since_ns=None, text=text)
