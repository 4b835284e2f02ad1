"""The price of an incident, against the same by hand."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.assess import price
from holdfast.economics.pricing.prices import DEFAULTS

AT_TWO_USD = DEFAULTS.at(2.0).usd_per_gpu_hour


def test_half_as_fast_loses_half() -> None:
    found = price(2.0, 1_800.0, 1_024, AT_TWO_USD)
    assert found.lost_run_s == 900.0
    assert found.lost_gpu_hours == 256.0
    assert found.usd == 512.0
    assert found.gpu_hours_per_hour == 512.0
    assert found.usd_per_hour == 1_024.0
    assert found.day_share_per_day == 0.5
    assert not found.assumed


def test_a_price_that_nobody_gave_is_assumed() -> None:
    assert price(2.0, 60.0, 8, DEFAULTS.usd_per_gpu_hour).assumed


@pytest.mark.parametrize("slowdown", [1.0, 0.5, 0.0])
def test_what_is_not_slower_costs_nothing(slowdown: float) -> None:
    found = price(slowdown, 3_600.0, 1_024, AT_TWO_USD)
    figures = msgspec.structs.asdict(found)
    assert not any(figures.values())


@given(
    slowdown=st.floats(1.0, 100.0),
    lasted_s=st.floats(0.0, 1e6),
    gpus=st.integers(1, 200_000),
    usd=st.floats(0.01, 100.0),
)
def test_it_adds_up(slowdown: float, lasted_s: float, gpus: int, usd: float) -> None:
    """Of the time that passed, as much was useful as a healthy run would have needed for the same steps."""
    found = price(slowdown, lasted_s, gpus, DEFAULTS.at(usd).usd_per_gpu_hour)
    useful_s = lasted_s / slowdown
    lost_gpu_hours = (lasted_s - useful_s) * gpus / 3_600
    assert found.usd is not None
    assert found.usd_per_hour is not None
    assert found.lost_run_s == pytest.approx(lasted_s - useful_s, abs=1e-6)
    assert found.lost_gpu_hours == pytest.approx(lost_gpu_hours, rel=1e-6, abs=1e-6)
    assert found.usd == pytest.approx(lost_gpu_hours * usd, rel=1e-6, abs=1e-4)
    hours = lasted_s / 3_600
    assert found.gpu_hours_per_hour * hours == pytest.approx(lost_gpu_hours, rel=1e-6, abs=1e-6)
    assert found.usd_per_hour * hours == pytest.approx(found.usd, rel=1e-6, abs=1e-6)
    assert 0 <= found.day_share_per_day < 1
