"""Advice: every rule judged by one measure, the regret of the present setting, levels."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.economics.cadence.advice import Advice, CadenceCase, Choice, Simulated, advise
from holdfast.economics.cadence.cadence import (
    CheckpointLevel,
    Costs,
    efficiency,
    lost_gpu_hours_per_day,
    mtbf_of_nodes_s,
)
from holdfast.economics.cadence.renewal import FamilyGaps

CASE = CadenceCase(
    mtbf_s=mtbf_of_nodes_s(2048),
    costs=Costs(stall_s=30, write_s=120, downtime_s=300),
    interval_s=3_600,
    gpus=16_384,
    usd_per_gpu_hour=4.0,
    step_s=10,
)


def altered(**changes: Any) -> CadenceCase:
    return msgspec.structs.replace(CASE, **changes)


def choices(advice: Advice) -> dict[str, Choice]:
    return {choice.rule: choice for choice in advice.choices}


def test_the_regret_is_what_the_optimum_would_save() -> None:
    advice = advise(CASE)
    # 80 steps of 10 s and a stall of 30 s.
    now, best = (efficiency(at_s, CASE.costs, CASE.mtbf_s) for at_s in (3_600, 80 * 10 + 30))
    assert advice.regret_gpu_hours_per_day == pytest.approx(24 * 16_384 * (best - now))
    assert advice.regret_usd_per_day == pytest.approx(4.0 * advice.regret_gpu_hours_per_day)
    assert advice.regret_gpu_hours_per_day > 30_000  # of 393,216
    assert choices(advice)["now"].lost_gpu_hours_per_day == lost_gpu_hours_per_day(now, 16_384)


def test_young_and_daly_are_counted_as_their_authors_do_and_compared_as_intervals() -> None:
    advice = advise(CASE)
    rules = choices(advice)
    assert (rules["young"].work_s, rules["young"].interval_s) == (advice.young_s, advice.young_s + 30)
    assert rules["daly"].interval_s == pytest.approx(advice.daly_s + 30)
    assert rules["daly"].interval_s == pytest.approx(advice.optimum_s, rel=0.001)
    assert advice.optimum_steps == rules["whole_steps"].steps == 80


@given(interval_s=st.floats(1, 1e6), stall_s=st.floats(0.1, 1e3), write_s=st.floats(0, 1e3))
def test_nothing_is_gained_by_leaving_the_optimum(interval_s: float, stall_s: float, write_s: float) -> None:
    case = altered(interval_s=interval_s, costs=Costs(stall_s=stall_s, write_s=write_s))
    advice = advise(case)
    assert advice.regret_gpu_hours_per_day >= -1e-6
    at_its_best = advise(altered(interval_s=advice.optimum_s, costs=case.costs))
    assert at_its_best.regret_gpu_hours_per_day == 0
    assert all(choice.interval_s >= stall_s + write_s for choice in advice.choices)


def test_an_interval_that_cannot_be_kept_is_said_to_be_longer() -> None:
    advice = advise(altered(interval_s=60.0))
    assert choices(advice)["now"].interval_s == 150
    assert "The present 60 s cannot be kept" in advice.remarks[0]
    slow = advise(altered(costs=Costs(stall_s=1, write_s=10_000)))
    assert slow.optimum_s == 10_001
    assert "as frequent as their writing allows" in slow.remarks[-1]
    assert "hardly moves" in advise(altered(mtbf_s=20.0)).remarks[-1]
    assert advise(CASE).remarks == ()


def test_no_interval_is_shorter_than_a_step() -> None:
    """A failure every 1,800 s, a stall of 1 s: sqrt(2 * 1 * 1,800) + 1 = 61 s, but a step takes 300 s."""
    costs = Costs(stall_s=1)
    advice = advise(altered(mtbf_s=1_800.0, costs=costs, step_s=300.0, interval_s=120.0))
    assert {(choice.interval_s, choice.steps) for choice in advice.choices} == {(301.0, 1.0)}
    assert (advice.optimum_s, advice.optimum_steps) == (301.0, 1)
    # (301 - 1) / (1,800 (e^(301/1,800) - 1)) = 300 / (1,800 * 0.182017)
    assert advice.optimum_efficiency == pytest.approx(0.91566, abs=1e-5)
    assert (advice.regret_gpu_hours_per_day, advice.regret_usd_per_day) == (0.0, 0.0)
    assert advice.remarks == (
        "The present 120 s cannot be kept: a checkpoint waits for the end of a step, and a step with its "
        "stall takes 301 s.",
        "The best interval would be 60.3 s, if a step did not take longer.",
    )


def test_other_failures_are_simulated_and_judge_every_rule() -> None:
    gaps = FamilyGaps(kind="weibull", mtbf_s=CASE.mtbf_s, shape=0.7)
    drawn = gaps.draw(np.random.default_rng(1), failures=50_000)
    advice, exponential = advise(CASE, simulated=Simulated(distribution="weibull", drawn=drawn)), advise(CASE)
    assert advice.distribution == "weibull"
    assert advice.young_s == exponential.young_s
    assert advice.efficiency_stderr is not None
    assert all(choice.efficiency <= advice.optimum_efficiency for choice in advice.choices)
    assert advice.regret_gpu_hours_per_day > 0
    # Young's as well as the optimum keep more: failures in clusters undo less.
    for rule in ("young", "optimum"):
        gained = choices(advice)[rule].efficiency - choices(exponential)[rule].efficiency
        assert gained > 4 * advice.efficiency_stderr


def test_levels_are_whole_steps_and_say_what_they_gain() -> None:
    memory, peer = (
        CheckpointLevel(name="memory", stall_s=0.5, survives=0.9),
        CheckpointLevel(name="peer", stall_s=29, survives=0.91),
    )
    advice = advise(altered(levels=(memory, peer)))
    assert advice.levels is not None
    assert [level.name for level in advice.levels.levels] == ["memory", "storage"]
    assert advice.levels.dropped == ("peer",)
    assert [level.steps for level in advice.levels.levels] == [11, 255]
    assert advice.levels.levels[1].mtbf_s == pytest.approx(10 * CASE.mtbf_s)
    assert advice.levels.efficiency > advice.levels.efficiency_of_one
    gained = 24 * 16_384 * (advice.levels.efficiency - advice.levels.efficiency_of_one)
    assert advice.levels.gained_gpu_hours_per_day == pytest.approx(gained)
    assert advice.levels.efficiency_of_one == pytest.approx(advice.optimum_efficiency, abs=0.01)
    assert advise(CASE).levels is None


def test_steps_are_left_out_if_the_step_time_is_unknown() -> None:
    advice = advise(altered(step_s=None, levels=(CheckpointLevel(name="memory", stall_s=1, survives=0.5),)))
    assert advice.optimum_steps is None
    assert "whole_steps" not in choices(advice)
    assert all(choice.steps is None for choice in advice.choices)
    assert advice.levels is not None
    assert all(level.steps is None for level in advice.levels.levels)
