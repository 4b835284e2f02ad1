"""Where frames come from: anything that has series and can show one metric of them over a window of time."""

from typing import Protocol

from holdfast.record.errors import HoldfastError
from holdfast.signals.frame import Frame

STEP_S = 10.0
"""How far apart a source's readings are by default."""


class SourceError(HoldfastError):
    """A source that cannot be reached, or answers in a way that cannot be used."""


class Source(Protocol):
    """What the detectors read."""

    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics there are, in order."""

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        """One metric from a time until before another; None where it has no series then."""
