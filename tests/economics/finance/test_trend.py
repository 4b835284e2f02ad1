"""Spend against progress: rises, no rises, and unknown cases."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.economics.finance.trend import (
    CONFIDENCE,
    PARTS,
    RISE_MIN,
    SAMPLES_PER_PART_MIN,
    STRETCHES_MAX,
    SpendStretch,
    edges_ns,
    trend,
)

HOUR_NS = 3_600 * 10**9
PRICE_USD = 2.0
DAYS = 40
SEEDS = 400


def told(shares: list[float], gpu_hours: float = 100.0, timed_every: int = 1) -> list[SpendStretch]:
    """A stretch a day in which so many GPU-hours were paid for, and this share of them was useful; a step
    ends on every so many-th day.
    """
    return [
        SpendStretch(
            from_ns=day * 24 * HOUR_NS,
            to_ns=(day + 1) * 24 * HOUR_NS,
            spend_usd=PRICE_USD * gpu_hours,
            paid_gpu_ns=round(gpu_hours * HOUR_NS),
            useful_gpu_ns=round(gpu_hours * share * HOUR_NS),
            useful_usd=PRICE_USD * gpu_hours * share,
            timed=int((day + 1) % timed_every == 0),
        )
        for day, share in enumerate(shares)
    ]


def test_a_steady_run_keeps_pace() -> None:
    rise = trend(told([0.8] * DAYS)).rise
    assert rise.verdict == "no"
    assert rise.ratio == pytest.approx(1)
    assert rise.latest is not None
    assert rise.latest.usd_per_useful_gpu_hour == pytest.approx(PRICE_USD / 0.8)
    assert rise.latest.stretches == DAYS // PARTS


def test_a_last_quarter_that_costs_more_is_a_rise() -> None:
    noise = random.Random(1)
    shares = [0.8 + noise.uniform(-0.05, 0.05) for _ in range(30)]
    shares += [0.6 + noise.uniform(-0.05, 0.05) for _ in range(10)]
    rise = trend(told(shares)).rise
    assert rise.verdict == "yes"
    assert rise.ratio is not None
    assert rise.ratio_low is not None
    assert rise.ratio == pytest.approx(0.8 / 0.6, rel=0.05)
    assert 1 < rise.ratio_low < rise.ratio


def test_long_steps_do_not_count_as_often_as_they_are_cut() -> None:
    """Forty days can show this rise; four steps of ten days cannot."""
    shares = [0.8] * 30 + [0.5] * 10
    assert trend(told(shares)).rise.verdict == "yes"
    assert trend(told(shares, timed_every=10)).rise.verdict == "unknown"


def test_steps_of_two_days_leave_more_to_chance() -> None:
    noise = random.Random(2)
    levels = [0.8] * 15 + [0.6] * 5
    shares = [level + off for level in levels for off in [noise.uniform(-0.1, 0.1)] for _ in range(2)]
    by_day, by_step = trend(told(shares)).rise, trend(told(shares, timed_every=2)).rise
    assert by_day.ratio == by_step.ratio
    assert by_day.ratio_low is not None
    assert by_step.ratio_low is not None
    assert by_step.ratio_low < by_day.ratio_low


def test_less_than_the_threshold_is_no_rise_however_certain() -> None:
    rise = trend(told([0.8] * 30 + [0.75] * 10)).rise
    assert rise.verdict == "no"
    assert rise.ratio is not None
    assert 1 < rise.ratio < 1 + RISE_MIN


def test_what_may_be_chance_cannot_be_told() -> None:
    rise = trend(told([0.8] * 30 + [0.1, 0.9] * 5)).rise
    assert rise.verdict == "unknown"
    assert rise.ratio is not None
    assert rise.ratio_low is not None
    assert rise.ratio > 1 + RISE_MIN
    assert rise.ratio_low < 1


def test_spend_that_brings_nothing_is_a_rise() -> None:
    rise = trend(told([0.8] * 30 + [0.0] * 10)).rise
    assert (rise.verdict, rise.ratio) == ("yes", None)
    assert rise.latest is not None
    assert rise.latest.usd_per_useful_gpu_hour is None


@pytest.mark.parametrize(
    "shares",
    [[], [0.8], [0.8] * (PARTS * (SAMPLES_PER_PART_MIN - 1)), [0.0] * DAYS],
    ids=["nothing", "one", "too few", "never useful"],
)
def test_too_little_to_tell(shares: list[float]) -> None:
    assert trend(told(shares)).rise.verdict == "unknown"


def test_chance_alone_is_seldom_called_a_rise() -> None:
    """Days that differ at random, by enough to pass the threshold often: the confidence must hold."""
    alarms = 0
    for seed in range(SEEDS):
        noise = random.Random(seed)
        alarms += trend(told([noise.uniform(0.3, 0.9) for _ in range(DAYS)])).rise.verdict == "yes"
    assert alarms / SEEDS <= 1 - CONFIDENCE


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_edges_are_few_in_order_and_round(one_ns: int, other_ns: int) -> None:
    from_ns, to_ns = sorted((one_ns, other_ns))
    edges = edges_ns(from_ns, to_ns)
    assert (edges[0], edges[-1]) == (from_ns, to_ns)
    assert 2 <= len(edges) <= STRETCHES_MAX + 1
    widths = [after - before for before, after in pairwise(edges)]
    assert all(width > 0 for width in widths) or from_ns == to_ns
    inner = set(widths[1:-1])
    assert len(inner) <= 1
    assert all(width % 10**9 == 0 and edges[1] % width == 0 for width in inner)
