"""A played scenario as a source of signals: what monitoring would have had at any moment of it."""

import numpy as np

from holdfast.drills.telemetry import Telemetry
from holdfast.signals.frame import Frame


class Replay:
    """A `Source`. Each metric is made once and kept, so that many moments can be looked at."""

    def __init__(self, telemetry: Telemetry, hidden: tuple[str, ...] = ()) -> None:
        """hidden: metrics whose names begin like this are not there."""
        self._telemetry = telemetry
        self._kept: dict[str, Frame] = {}
        self._metrics = tuple(name for name in telemetry.metrics if not name.startswith(hidden or ("\0",)))

    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        if metric not in self._metrics:
            return None
        if metric not in self._kept:
            self._kept[metric] = self._telemetry.sample(metric)
        whole = self._kept[metric]
        first, end = np.searchsorted(whole.times_ns, window_ns).tolist()
        return None if first == end else whole.rows(first, end)
