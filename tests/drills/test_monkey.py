"""The schedule of unannounced drills: drawn from a seed, within hours and budgets, and the same each time."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drills.live.monkey import (
    APART_S,
    LATE_S_MAX,
    SAFE,
    MonkeyBudget,
    allowance,
    drills_of,
    fitting,
    hindrance,
    is_missed,
    read_hours,
    require_budget,
    upcoming,
)
from holdfast.drills.live.scenarios import LIVE_SCENARIOS
from holdfast.record.errors import InputError

MONDAY = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
BUDGET = MonkeyBudget(per_day=2, hours=(9, 17))
DAY_NS = 86_400 * 10**9


def ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1e9)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 20), st.integers(2, 4), st.integers(0, 4))
def test_a_days_drills_keep_to_hours_and_budget_and_do_not_crowd(
    seed: int, per_day: int, first: int, length: int, day: int
) -> None:
    budget = MonkeyBudget(per_day=per_day, hours=(first, first + length))
    require_budget(budget)
    moment = MONDAY + timedelta(days=day)
    found = drills_of(moment, budget, seed)
    assert found == drills_of(moment + timedelta(hours=5), budget, seed)
    assert len(found) == per_day
    midnight = ns(moment.replace(hour=0))
    hours = [(one.at_ns - midnight) / 3.6e12 for one in found]
    assert all(first <= hour <= first + length for hour in hours)
    assert all(b - a >= APART_S / 3_600 - 1e-6 for a, b in pairwise(hours))
    assert {one.scenario for one in found} <= {*SAFE}


def test_a_drill_that_is_overdue_is_missed() -> None:
    (due,) = islice(upcoming(ns(MONDAY), BUDGET, 7, UTC), 1)
    late_ns = round(LATE_S_MAX * 1e9)
    assert not is_missed(due, due.at_ns - DAY_NS)
    assert not is_missed(due, due.at_ns + late_ns)
    assert is_missed(due, due.at_ns + late_ns + 1)


def test_what_comes_is_later_than_now_in_order_and_not_on_weekends() -> None:
    found = list(islice(upcoming(ns(MONDAY), BUDGET, 7, UTC), 20))
    moments = [one.at_ns for one in found]
    assert moments == sorted(moments)
    assert moments[0] > ns(MONDAY)
    assert {datetime.fromtimestamp(at_ns / 1e9, UTC).weekday() for at_ns in moments} <= {0, 1, 2, 3, 4}
    always = MonkeyBudget(per_day=2, hours=(9, 17), weekends=True)
    assert drills_of(MONDAY + timedelta(days=5), always, 7)
    assert not drills_of(MONDAY + timedelta(days=5), BUDGET, 7)
    assert found != list(islice(upcoming(ns(MONDAY), BUDGET, 8, UTC), 20))


def test_hours_are_those_of_the_clock_on_the_wall() -> None:
    zone = timezone(timedelta(hours=9))
    for due in islice(upcoming(ns(MONDAY), BUDGET, 3, zone), 10):
        assert 9 <= datetime.fromtimestamp(due.at_ns / 1e9, zone).hour < 17


def test_a_budget_counts_what_was_done_by_whomever() -> None:
    now_ns = ns(MONDAY)
    assert allowance([], now_ns, BUDGET) == 2
    assert allowance([now_ns - 2 * DAY_NS, now_ns - DAY_NS // 2], now_ns, BUDGET) == 1
    assert hindrance((), 0) == "the day's budget is spent"
    assert "big/s1" in hindrance({"big/s1"}, 2)
    assert hindrance((), 1) == ""


def test_what_the_run_cannot_have_is_left_out() -> None:
    found = fitting(BUDGET, {"node-lost": "one node", "agent-frozen": "one node"})
    assert found.scenarios == tuple(name for name in SAFE if name not in ("node-lost", "agent-frozen"))
    assert fitting(BUDGET, {}) == BUDGET
    with pytest.raises(InputError, match="none of these drills"):
        fitting(BUDGET, SAFE)


@pytest.mark.parametrize("text", ["17-9", "9", "9-25", "", "nine-five", "9-9"])
def test_hours_that_are_none_are_told(text: str) -> None:
    with pytest.raises(InputError, match="hours of a day"):
        read_hours(text)


def test_more_than_there_is_room_for_is_refused() -> None:
    assert read_hours(" 9-17 ") == (9, 17)
    for budget in (
        MonkeyBudget(per_day=5, hours=(9, 10)),
        MonkeyBudget(per_day=0, hours=(9, 17)),
        MonkeyBudget(per_day=1, hours=(9, 17), scenarios=("none",)),
    ):
        with pytest.raises(InputError):
            require_budget(budget)
    assert {*SAFE} <= LIVE_SCENARIOS.keys()
