"""Clocks: never back, and the wall's time to begin with."""

import time

from holdfast.record.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_tells_the_time_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    stamps = [clock.now_ns() for _ in range(1_000)]
    assert stamps == sorted(stamps)
    assert abs(stamps[-1] - time.time_ns()) < 10**9


def test_a_manual_clock_moves_when_told_to_and_only_forward() -> None:
    clock = ManualClock(5)
    assert clock.now_ns() == clock.now_ns() == 5
    clock.advance_ns(3)
    clock.advance_ns(-7)
    assert clock.now_ns() == 8
