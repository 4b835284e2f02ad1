"""Where frames come from: anything that can show one metric over a window of time."""

from typing import Protocol

from holdfast.record.errors import HoldfastError
from holdfast.signals.frame import Frame

STEP_S, STEP_S_MIN = 10.0, 1.0
"""About how far apart the rows of a frame are, if a source's readings are not farther apart."""
WINDOW_ROWS = 180
"""The least rows of a window: a short one shows readings that are closer together."""


def fine_step_s(window_s: float) -> float:
    """About how far apart rows should be in windows of this length."""
    return min(STEP_S, max(STEP_S_MIN, window_s / WINDOW_ROWS))


class SourceError(HoldfastError):
    """A source that cannot be reached, or whose answer cannot be used."""


class Source(Protocol):
    """What the detectors read."""

    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics, in order."""

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        """One metric from a time until before another; None if it has no series then."""


KEPT_BYTES_MAX = 512 * 2**20
"""For kept frames; the oldest go first. One metric of 16,384 GPUs over half an hour has 24 MB."""

Asked = tuple[str, tuple[int, int]]


class OnceSource:
    """Another source, with each frame read once for one evaluation: its detectors want the same frames.
    Missing metrics are remembered too.
    """

    def __init__(self, source: Source, *, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._source = source
        self._kept_bytes_max = kept_bytes_max
        self._metrics: tuple[str, ...] | None = None
        self._frames: dict[Asked, Frame | None] = {}
        self._kept_bytes = 0

    def metrics(self) -> tuple[str, ...]:
        if self._metrics is None:
            self._metrics = self._source.metrics()
        return self._metrics

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        asked = (metric, window_ns)
        if asked not in self._frames:
            self._keep(asked, self._source.frame(metric, window_ns))
        return self._frames[asked]

    def _keep(self, asked: Asked, frame: Frame | None) -> None:
        """Keep a frame even if it is larger than the limit: the caller has it in memory anyway."""
        size_bytes = _size_bytes(frame)
        while self._frames and self._kept_bytes + size_bytes > self._kept_bytes_max:
            self._kept_bytes -= _size_bytes(self._frames.pop(next(iter(self._frames))))
        self._frames[asked] = frame
        self._kept_bytes += size_bytes


def _size_bytes(frame: Frame | None) -> int:
    return 0 if frame is None else frame.values.nbytes
