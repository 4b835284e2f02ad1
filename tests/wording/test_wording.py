"""Amounts and moments in words: never zero for what is something, never all for what is less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import wording
from holdfast.wording import (
    Amounts,
    duration,
    exact_seconds,
    in_currency,
    many,
    moment_of_year,
    percent,
    rough,
    set_back,
    short,
    span,
    stamp,
    tick,
    usd,
    usd_cell,
    with_unit,
)
from holdfast.wording.units import HOUR_NS

SECOND_NS = 10**9
DAY_NS = 24 * HOUR_NS
SPRING_NS = 1_743_574_104 * SECOND_NS
"""2 April 2025, 06:08:24 UTC."""


def test_a_price_is_in_the_currency_of_the_report_and_other_units_are_not() -> None:
    with in_currency("EUR", 1.25):
        assert with_unit(5.0, "USD/GPU-h") == "4 EUR/GPU-h"
        assert with_unit(5.0, "min") == "5 min"
    assert with_unit(1_234.5, "USD/h") == "1,234.5 USD/h"


@pytest.mark.parametrize(
    ("duration_ns", "words"),
    [
        (0, "0 s"),
        (1, "< 0.001 s"),
        (499_999, "< 0.001 s"),
        (1_500_000, "0.002 s"),
        (8 * SECOND_NS, "8 s"),
        (9_999_700_000, "10 s"),
        (59_600_000_000, "1 min"),
        (167 * SECOND_NS, "2 min 47 s"),
        (3_600 * SECOND_NS, "1 h"),
        (35_364 * SECOND_NS, "9 h 49 min"),
        (DAY_NS + 59 * SECOND_NS, "1 d"),
        (25 * HOUR_NS, "1 d 1 h"),
        (54 * DAY_NS + 5 * HOUR_NS, "54 d 5 h"),
    ],
)
def test_durations(duration_ns: int, words: str) -> None:
    assert duration(duration_ns) == words


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (None, "–"),
        (0.0, "0.0 %"),
        (0.00001, "< 0.1 %"),
        (0.41570, "41.6 %"),
        (0.99999, "> 99.9 %"),
        (1.0, "100.0 %"),
        (1.25, "125.0 %"),
    ],
)
def test_percentages(ratio: float | None, words: str) -> None:
    assert percent(ratio) == words


@pytest.mark.parametrize(
    ("paid_hours", "part_hours", "words"),
    [
        (8_801.78, 3_658.93, "3,659"),
        (8_801.78, 0.2, "< 1"),
        (30_840_000, 1_234_567.8, "1,234,568"),
        (893.0, 17.04, "17.0"),
        (2.2222, 2.2222, "2.22"),
        (2.2222, 0.0001, "< 0.01"),
        (0.0167, 0.0167, "0.02"),
        (2.22e-06, 2.22e-06, "< 0.01"),
        (0.0, 0.0, "0"),
    ],
)
def test_hours_have_the_precision_of_the_whole(paid_hours: float, part_hours: float, words: str) -> None:
    assert Amounts(round(paid_hours * HOUR_NS)).hours(round(part_hours * HOUR_NS)) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0.0, "0.00 USD"),
        (0.001, "< 0.01 USD"),
        (7.5, "7.50 USD"),
        (22_004.6, "22,005 USD"),
        (-0.001, "> −0.01 USD"),
        (-7.5, "−7.50 USD"),
        (-22_004.6, "−22,005 USD"),
    ],
)
def test_money(amount: float, words: str) -> None:
    assert usd(amount) == words


@pytest.mark.parametrize(("count", "words"), [(0, "0 loads"), (1, "1 load"), (1_920, "1,920 loads")])
def test_one_is_not_many(count: int, words: str) -> None:
    assert many(count, "load") == words


@pytest.mark.slow
@given(st.text(max_size=20), st.integers(1, 12))
def test_a_short_name_has_room(name: str, chars_max: int) -> None:
    cut = short(name, chars_max)
    assert len(cut) <= chars_max
    assert cut == name if len(name) <= chars_max else name.startswith(cut.removesuffix("…"))


@given(paid=st.integers(1, 2**80), share=st.floats(0, 1))
def test_only_zero_is_written_as_zero_and_only_all_as_all(paid: int, share: float) -> None:
    amounts, part = Amounts(paid), min(paid, int(paid * share))
    assert (amounts.hours(part).strip("0.,") == "") == (part == 0)
    assert (amounts.share(part) == "0.0 %") == (part == 0)
    assert (amounts.share(part) == "100.0 %") == (part / paid == 1)


@given(st.integers(0, 2**90))
def test_exact_seconds_lose_nothing(nanoseconds: int) -> None:
    assert int(exact_seconds(nanoseconds).replace(",", "").replace(".", "")) == nanoseconds


def test_moments_have_as_much_as_is_not_said_elsewhere() -> None:
    assert stamp(SPRING_NS) == "2025-04-02 06:08:24Z"
    assert moment_of_year(SPRING_NS) == "2 Apr, 06:08"


def test_spans_say_a_day_once_and_seconds_where_it_takes_them() -> None:
    assert span(SPRING_NS, SPRING_NS + 90 * SECOND_NS) == "2 Apr 2025, 06:08:24 to 06:09:54 UTC"
    assert span(SPRING_NS, SPRING_NS + HOUR_NS) == "2 Apr 2025, 06:08 to 07:08 UTC"
    assert span(SPRING_NS, SPRING_NS + DAY_NS) == "2 Apr 2025, 06:08 to 3 Apr 2025, 06:08 UTC"


@pytest.mark.parametrize(
    ("step_ns", "label"),
    [
        (15 * SECOND_NS, "06:08:24"),
        (HOUR_NS, "06:08"),
        (7 * DAY_NS, "2 Apr"),
        (31 * DAY_NS, "Apr 2025"),
    ],
)
def test_labels_on_an_axis(step_ns: int, label: str) -> None:
    assert tick(SPRING_NS, step_ns) == label


@pytest.mark.parametrize(
    ("amount", "largest", "words"),
    [
        (None, 5, "–"),
        (0.0, 5, "0.00"),
        (0.001, 5, "< 0.01"),
        (4.5, 999.99, "4.50"),
        (4.5, 1_000, "4"),
        (0.4, 1_000, "< 1"),
        (55_114.4, 60_000, "55,114"),
    ],
)
def test_a_column_of_usd_has_one_precision(amount: float | None, largest: float, words: str) -> None:
    assert usd_cell(amount, largest) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0"),
        (0.04, "< 0.1"),
        (7, "7"),
        (39.82, "39.8"),
        (158.9, "159"),
        (5_143.2, "5,143"),
        (4_194_304, "4.19 million"),
        (2_000_000, "2 million"),
        (15.6e12, "15.6 trillion"),
        (1.5e15, "1,500 trillion"),
        (-0.0, "0"),
        (-0.04, "> −0.1"),
        (-39.82, "−39.8"),
        (-158.9, "−159"),
        (-4_194_304, "−4.19 million"),
    ],
)
def test_as_many_digits_as_one_reads(amount: float, words: str) -> None:
    assert rough(amount) == words


@given(st.floats(0.1, 1e18))
def test_less_than_nothing_is_written_as_what_it_is_with_a_sign(amount: float) -> None:
    assert rough(-amount) == f"−{rough(amount)}"
    assert usd(-amount) == f"−{usd(amount)}"


def test_a_loss_as_progress() -> None:
    assert ", 1 step, " in set_back(1.0, 1.0, None)
    assert set_back(5.74, None, None) == "5 h 44 min of the whole run, 23.9 % of a day's progress"
    assert set_back(1.0, 450.2, 4.5e9) == (
        "1 h of the whole run, 450 steps, 4.5 billion tokens, 4.2 % of a day's progress"
    )


@pytest.mark.parametrize(
    ("value", "digits", "words"),
    [
        (1_020.4, 3, "1,020"),
        (10_312, 3, "10,312"),
        (1_234_567.0, 6, "1,234,567"),
        (999.6, 3, "1,000"),
        (0.9996, 3, "1"),
        (0.014312, 3, "0.0143"),
        (3.2e-5, 4, "0.000032"),
        (3.99, 6, "3.99"),
        (0, 3, "0"),
        (-0.0, 3, "0"),
        (-1.5, 6, "−1.5"),
        (1e-12, 6, "< 0.000000001"),
        (-1e-12, 6, "> −0.000000001"),
        (float("inf"), 3, "inf"),
        (float("nan"), 3, "nan"),
    ],
)
def test_a_number_has_few_digits_and_no_exponent(value: float, digits: int, words: str) -> None:
    assert wording.number(value, digits) == words


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 12))
def test_a_number_is_what_it_says(value: float, digits: int) -> None:
    written = wording.number(value, digits)
    assert "e" not in written
    assert float(wording.plain(value)) == pytest.approx(value, rel=1e-11)
    if written[0] not in "<>":
        assert float(written.replace(",", "").replace("−", "-")) == pytest.approx(
            value, rel=10.0 ** (1 - digits)
        )


def test_a_number_in_a_file_is_read_as_it_was_written() -> None:
    assert [wording.plain(one) for one in (33_750.0, 1e-5, -2.5, 0)] == ["33750", "0.00001", "-2.5", "0"]


@pytest.mark.parametrize(
    ("value_s", "words"),
    [(0, "0 s"), (0.0182, "18.2 ms"), (0.43, "0.43 s"), (46.34, "46.3 s"), (1_020, "17 min")],
)
def test_seconds_that_were_measured(value_s: float, words: str) -> None:
    assert wording.seconds(value_s) == words


def test_how_often_and_how_many_are_said_in_one_way() -> None:
    assert [wording.times(count) for count in (1, 2, 1_200)] == ["once", "2 times", "1,200 times"]
    assert wording.listed(["n1", "n2", "n3"], 2) == "n1, n2 and 1 more"
    assert wording.listed(["n1", "n2"], 2) == "n1, n2"
    assert [wording.lasting(seconds) for seconds in (0, 59.6, 90_000)] == ["0 s", "1 min", "1 d 1 h"]
