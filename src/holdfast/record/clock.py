"""Time: where nanoseconds come from.

A process reads the wall clock once and from then on adds monotonic time to it, so its own stamps never go
back, even if NTP sets the wall clock. docs/time.md describes the order of events from several clocks.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time, in nanoseconds since the Unix epoch."""

    def now_ns(self) -> int:
        """The time that stamps events. Never goes back."""

    def wall_ns(self) -> int:
        """The machine's clock. Its distance to `now_ns` shows whether it was set meanwhile."""


class SystemClock:
    """The wall clock as it was at construction, carried on by the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._offset_ns + time.monotonic_ns()

    wall_ns = staticmethod(time.time_ns)  # without a wrapper, because it is read for every event


class ManualClock:
    """A clock that moves only when told to: for simulations and tests."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        return self._now_ns

    def advance_ns(self, duration_ns: int) -> None:
        self._now_ns += max(0, duration_ns)
