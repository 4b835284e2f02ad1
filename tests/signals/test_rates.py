"""Growth per second, against the same done one value at a time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.signals.frame import Frame, per_second

NS = 10**9
Column = list[float | None]


def counters(columns: list[Column], times_s: list[float]) -> Frame:
    values = np.array([[math.nan if x is None else x for x in column] for column in columns]).T
    return Frame(
        metric="x_total",
        kind="counter",
        subjects=tuple(f"n{index}" for index in range(len(columns))),
        labels=({},) * len(columns),
        times_ns=np.array([round(time * NS) for time in times_s], np.int64),
        values=values.reshape(len(times_s), len(columns)),
    )


def one_by_one(column: Column, times_s: list[float]) -> Column:
    grown: Column = []
    before: tuple[float, float] | None = None
    for value, time_s in zip(column, times_s, strict=True):
        if value is None:
            grown.append(None)
            continue
        if before is None:
            grown.append(None)
        else:
            growth = value - before[0] if value >= before[0] else value
            grown.append(growth / (time_s - before[1]))
        before = (value, time_s)
    return grown


amounts = st.one_of(st.none(), st.integers(0, 2**50).map(float))


@given(st.data(), st.integers(1, 5), st.integers(1, 12))
def test_it_is_what_one_would_get_by_hand(data: st.DataObject, series: int, scrapes: int) -> None:
    steps_s = data.draw(st.lists(st.integers(1, 60), min_size=scrapes, max_size=scrapes))
    times_s = np.cumsum(steps_s).astype(float).tolist()
    columns = [
        data.draw(st.lists(amounts, min_size=scrapes, max_size=scrapes), label="column")
        for _ in range(series)
    ]
    rates = per_second(counters(columns, times_s))
    assert rates.kind == "gauge"
    assert rates.values.dtype == np.float32
    for index, column in enumerate(columns):
        by_hand = [math.nan if rate is None else rate for rate in one_by_one(column, times_s)]
        assert rates.values[:, index].tolist() == pytest.approx(by_hand, rel=1e-6, nan_ok=True)


def test_a_gap_is_bridged_and_a_reset_counts_from_zero() -> None:
    rates = per_second(counters([[100.0, 110.0, None, 130.0, 20.0, 40.0]], [0, 10, 20, 30, 40, 50]))
    assert rates.values[:, 0].tolist() == pytest.approx([math.nan, 1.0, math.nan, 1.0, 2.0, 2.0], nan_ok=True)


@pytest.mark.parametrize("scrapes", [0, 1])
def test_too_few_scrapes_have_no_growth(scrapes: int) -> None:
    rates = per_second(counters([[5.0] * scrapes], [0.0] * scrapes))
    assert rates.values.shape == (scrapes, 1)
    assert np.isnan(rates.values).all()
