"""Trends: temperatures on their way to the point at which clocks fall, and how soon they get there."""

from collections.abc import Iterator

import numpy as np

from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.rules import SIGNS

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
LIMIT_C = 87.0
"""The temperature at which an H100's clock begins to fall."""
OVER_S = 120.0
"""The time over which a slope is measured."""
ROWS_MIN = 6
RISE_MIN_K = 3.0
"""Above the usual temperature: a slope from below is a machine that has begun to work."""
SOON_S = 900.0
SLOPE_MIN = 1 / 60
"""Kelvin per second."""
CONFIDENCE = 0.8


def _heating(look: Look) -> Iterator[Finding]:
    """GPUs that will reach the limit soon if the slope persists, as of the last reading only."""
    panel = look.panels.value(TEMPERATURE)
    if panel is None:
        return
    since = int(np.searchsorted(panel.times_ns, panel.times_ns[-1] - OVER_S * 1e9))
    recent = panel.values[since:]
    if len(recent) < ROWS_MIN:
        return
    at_s = (panel.times_ns[since:] - panel.times_ns[since]) / 1e9
    centred = (at_s - at_s.mean()).astype(np.float32)
    slope = centred @ (recent - recent[0]) / float(centred @ centred)
    usual = panel.usual
    with np.errstate(invalid="ignore", divide="ignore"):
        now_c = recent[-1]
        left_s = (LIMIT_C - now_c) / slope
        soon = (slope > SLOPE_MIN) & (left_s > 0) & (left_s < SOON_S) & (now_c - usual > RISE_MIN_K)
    for series in np.flatnonzero(soon).tolist():
        yield Finding(
            sign="heating",
            subject=panel.subjects[series],
            metric=panel.metric,
            method="trend",
            since_ns=int(panel.times_ns[since]),
            noticed_ns=int(panel.times_ns[-1]),
            confidence=CONFIDENCE * float(panel.trust[series]),
            value=float(now_c[series]),
            usual=float(usual[series]),
            unit="C",
            limit_s=float(left_s[series]),
            note=SIGNS["heating"],
        )


HEATING = FunctionDetector((Sense("heating", (TEMPERATURE,)),), _heating)
