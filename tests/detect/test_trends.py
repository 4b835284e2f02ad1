"""Temperatures on their way to the limit, and how long that will take."""

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.finding import Finding
from holdfast.detect.trends import LIMIT_C, SOON_S, TEMPERATURE
from holdfast.signals.frame import Floats, Frame

ROWS, SCRAPE_S = 120, 10.0
GPUS = tuple(f"n00000.{number}" for number in range(8))

Looked = Callable[[Floats], list[Finding]]


@pytest.fixture
def heating(framed: Callable[..., Frame], looked: Callable[..., Detected]) -> Looked:
    def look(values: Floats) -> list[Finding]:
        found = looked(framed(TEMPERATURE, values, GPUS, every_s=SCRAPE_S)).machines
        return [one for one in found if one.sign == "heating"]

    return look


def temperatures(kelvin_per_s: float, rising_rows: int = 20, level_c: float = 62.0) -> Floats:
    values = level_c + 0.1 * np.random.default_rng(6).standard_normal((ROWS, len(GPUS)))
    values[-rising_rows:, 3] += kelvin_per_s * SCRAPE_S * np.arange(1, rising_rows + 1)
    return values


def test_the_time_to_the_limit_is_what_is_left_over_how_fast(heating: Looked) -> None:
    (found,) = heating(temperatures(0.05))
    now_c = 62.0 + 0.05 * SCRAPE_S * 20
    assert (found.subject, found.method, found.until_ns) == (GPUS[3], "trend", None)
    assert found.value == pytest.approx(now_c, abs=0.5)
    assert found.limit_s == pytest.approx((LIMIT_C - now_c) / 0.05, rel=0.1)
    assert found.usual == pytest.approx(62.0, abs=0.2)


def test_what_will_take_long_or_has_happened_or_falls_is_no_warning(heating: Looked) -> None:
    assert heating(temperatures(0.0)) == []
    slow = 0.9 * (LIMIT_C - 62.0) / SOON_S
    assert heating(temperatures(min(slow, 1 / 60))) == []
    assert heating(temperatures(0.3)) == []  # 122 C
    assert heating(temperatures(-0.1)) == []


def test_a_machine_that_begins_to_work_is_not_heating(heating: Looked) -> None:
    """It comes up to what is usual for it."""
    values = temperatures(0.0)
    values[60:108, 3] -= 25.0
    values[108:, 3] -= np.linspace(25, 0, 12)
    assert heating(values) == []


def test_few_rows_have_no_slope(heating: Looked) -> None:
    assert heating(temperatures(0.1)[-5:]) == []
    assert heating(temperatures(0.1)[-1:]) == []


def test_the_last_minutes_count_and_not_what_was_before(heating: Looked) -> None:
    values = temperatures(0.0)
    values[40:, 3] += 10.0
    assert heating(values) == []
