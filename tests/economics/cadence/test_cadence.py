"""The papers' own figures; formulas compared with runs simulated event by event; levels, steps, learning."""

import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.economics.cadence import cadence
from holdfast.economics.cadence.cadence import (
    FAILURES_PER_1000_NODE_DAYS,
    PRIOR_S_MAX,
    CheckpointLevel,
    Costs,
    daly_first_order_s,
    daly_work_s,
    efficiency,
    learned_mtbf_s,
    mtbf_of_nodes_s,
    plan_levels,
    rfo_s,
    whole_steps,
    young_work_s,
)
from holdfast.economics.cadence.renewal import FamilyGaps, optimum_s, simulate_efficiency
from holdfast.record.errors import InputError

PAGE = Path(__file__).parents[3] / "docs" / "cadence.md"
STDERRS_MAX = 4
"""A simulation with a fixed seed that is further off than this is wrong, not unlucky."""


class Row(NamedTuple):
    """A row of Table 2 of Aupy, Robert, Vivien and Zaidouni 2013: seconds, all but the first of a period."""

    mtbf_s: int
    young: int
    daly1: int
    rfo: int
    optimum: int


AUPY = Costs(stall_s=600, restore_s=600, downtime_s=60)
TABLE_2 = [
    Row(3849609, 68567, 68573, 67961, 68240),
    Row(1924805, 48660, 48668, 48052, 48320),
    Row(962402, 34584, 34595, 33972, 34189),
    Row(481201, 24630, 24646, 24014, 24231),
    Row(240601, 17592, 17615, 16968, 17194),
    Row(120300, 12615, 12648, 11982, 12218),
    Row(60150, 9096, 9142, 8449, 8701),
    Row(30075, 6608, 6673, 5941, 6214),
    Row(15038, 4848, 4940, 4154, 4458),
    Row(7519, 3604, 3733, 2869, 3218),
]
CONTRADICTED = {3849609: 68168, 1924805: 48261, 962402: 34185}
"""The rows whose printed optimum differs from the paper's own formula, with the correct one."""

every_row = pytest.mark.parametrize("row", TABLE_2, ids=lambda row: str(row.mtbf_s))

times_s = st.floats(0.01, 1e5)
mtbfs_s = st.floats(10, 1e7)
all_costs = st.builds(
    Costs,
    stall_s=times_s,
    write_s=st.floats(0, 1e4),
    restore_s=st.floats(0, 1e4),
    downtime_s=st.floats(0, 1e4),
)


# ---- the papers ------------------------------------------------------------------------------------------


@every_row
def test_the_closed_forms_of_aupys_table(row: Row) -> None:
    assert young_work_s(AUPY.stall_s, row.mtbf_s) + AUPY.stall_s == pytest.approx(row.young, abs=1)
    assert daly_first_order_s(AUPY, row.mtbf_s) == pytest.approx(row.daly1, abs=1)
    assert rfo_s(AUPY, row.mtbf_s) == pytest.approx(row.rfo, abs=1)


@every_row
def test_the_optima_of_aupys_table(row: Row) -> None:
    ours_s = optimum_s(AUPY, row.mtbf_s)
    assert ours_s == pytest.approx(CONTRADICTED.get(row.mtbf_s, row.optimum), abs=1)
    if row.mtbf_s in CONTRADICTED:
        # The paper contradicts its own formula: by it, its optimum is worse than ours.
        assert abs(ours_s - row.optimum) > 1
        assert efficiency(row.optimum, AUPY, row.mtbf_s) < efficiency(ours_s, AUPY, row.mtbf_s)


@pytest.mark.parametrize(
    ("mtbf_min", "work_min", "digits"), [(24 * 60, 117, 0), (6 * 60, 57, 0), (15, 9.1, 1)]
)
def test_dalys_own_points(mtbf_min: float, work_min: float, digits: int) -> None:
    assert round(daly_work_s(5 * 60, mtbf_min * 60) / 60, digits) == work_min


def test_where_a_checkpoint_takes_twice_the_mtbf_daly_works_for_one_mtbf() -> None:
    assert daly_work_s(200, 100) == daly_work_s(1e6, 100) == 100
    assert daly_work_s(199.999, 100) == pytest.approx(200 * (1 + 1 / 3 + 1 / 9) - 200, rel=1e-4)


def test_llama_3s_rate_is_its_counts() -> None:
    assert pytest.approx(3.79, abs=0.005) == FAILURES_PER_1000_NODE_DAYS
    assert mtbf_of_nodes_s(2048) / 3600 == pytest.approx(3.09, abs=0.005)
    assert mtbf_of_nodes_s(2048) * 419 == pytest.approx(54 * 86_400)


# ---- what the formulas promise ---------------------------------------------------------------------------


@given(costs=all_costs, mtbf_s=mtbfs_s, factor=st.floats(0.2, 5))
def test_no_interval_is_better_than_the_optimum(costs: Costs, mtbf_s: float, factor: float) -> None:
    best_s = optimum_s(costs, mtbf_s)
    other_s = max(best_s * factor, costs.interval_s_min)
    assert costs.interval_s_min <= best_s
    best, other = (efficiency(interval_s, costs, mtbf_s) for interval_s in (best_s, other_s))
    assert other <= best * (1 + 1e-9)
    assert 0 <= best < 1


@given(stall_s=times_s, mtbf_s=mtbfs_s)
def test_daly_is_nearly_as_good_as_the_optimum(stall_s: float, mtbf_s: float) -> None:
    costs = Costs(stall_s=stall_s)
    best = efficiency(optimum_s(costs, mtbf_s), costs, mtbf_s)
    assert efficiency(daly_work_s(stall_s, mtbf_s) + stall_s, costs, mtbf_s) >= 0.998 * best


@pytest.mark.parametrize("stall_share", [1e-15, 1e-9, 0.99e-8, 1.01e-8, 1e-6])
def test_the_optimum_keeps_its_digits_however_little_a_checkpoint_costs(stall_share: float) -> None:
    # Where that is so little, Young's is right but for a sixth of its own share of the MTBF.
    costs = Costs(stall_s=stall_share)
    assert optimum_s(costs, 1.0) == pytest.approx(young_work_s(stall_share, 1.0), rel=math.sqrt(stall_share))


def test_writing_in_the_background_costs_what_as_much_restoring_would() -> None:
    written, restored = Costs(stall_s=5, write_s=90), Costs(stall_s=5, restore_s=90)
    assert efficiency(600, written, 7200) == efficiency(600, restored, 7200)
    assert optimum_s(written, 7200) == optimum_s(restored, 7200)
    assert optimum_s(Costs(stall_s=5, write_s=1000), 7200) == 1005  # no sooner than the last one is written


@pytest.mark.parametrize("interval_s", [0, 29, 30])
def test_an_interval_of_nothing_but_its_stall_gets_nowhere(interval_s: float) -> None:
    assert efficiency(interval_s, Costs(stall_s=30), 7200) == 0


def test_a_hopeless_run_is_no_error() -> None:
    assert efficiency(1e9, Costs(stall_s=1e8), 1e-3) == 0
    assert rfo_s(Costs(stall_s=1, downtime_s=100), 50) == 0


# ---- walked event by event -------------------------------------------------------------------------------


def walk(
    levels: Sequence[CheckpointLevel], works_s: Sequence[float], costs: Costs, gaps_s: Sequence[float]
) -> float:
    """The share kept by a run that is simulated event by event, without any formula.

    works_s: of each level, the work after which it has another checkpoint. Failures take turns in how bad
    they are, so that each level survives its share of them.
    """
    turn = np.random.default_rng(7).permuted((np.arange(len(gaps_s)) + 0.5) / len(gaps_s))
    position, spent_s = 0.0, 0.0
    saved = [0.0] * len(levels)
    for gap_s, badness in zip(gaps_s, turn, strict=True):
        spent_s += gap_s + costs.downtime_s
        left_s = gap_s - costs.restore_s
        begun, writing = saved.copy(), list[tuple[float, int, float]]()
        while left_s > 0:
            due, index = min((begun[i] + works_s[i] - position, i) for i in range(len(levels)))
            worked_s = min(due, left_s)
            position, left_s = position + worked_s, left_s - worked_s
            if left_s > 0:
                left_s -= levels[index].stall_s
                begun[index] = position
                writing.append((left_s - levels[index].write_s, index, position))
        for left_when_written_s, index, of in writing:
            if left_when_written_s >= 0:
                saved[index] = of
        survived = [i for i, level in enumerate(levels) if level.survives > badness]
        position = max(saved[i] for i in survived)
        saved = [saved[i] if i in survived else position for i in range(len(levels))]
    return position / spent_s


@pytest.mark.parametrize(
    ("interval_s", "costs"),
    [
        (900.0, Costs(stall_s=30)),
        (400.0, Costs(stall_s=30, restore_s=120, downtime_s=300)),
        (400.0, Costs(stall_s=30, write_s=250, restore_s=120, downtime_s=300)),
        (280.0, Costs(stall_s=30, write_s=250)),
        (3_000.0, Costs(stall_s=600, write_s=2_000, restore_s=600, downtime_s=60)),
    ],
)
def test_a_run_that_is_walked_keeps_what_is_computed(interval_s: float, costs: Costs) -> None:
    drawn = FamilyGaps(kind="exponential", mtbf_s=5_000).draw(np.random.default_rng(3), failures=4_000)
    level = CheckpointLevel(name="disk", stall_s=costs.stall_s, write_s=costs.write_s, survives=1)
    walked = walk([level], [interval_s - costs.stall_s], costs, drawn.tolist())
    simulated = simulate_efficiency(interval_s, costs, drawn)
    assert walked == pytest.approx(
        simulated.efficiency, abs=1e-9
    )  # the same failures, counted in another way
    assert abs(walked - efficiency(interval_s, costs, 5_000)) < STDERRS_MAX * simulated.stderr


@pytest.mark.slow
def test_levels_that_are_walked_cost_what_benoit_says() -> None:
    memory = CheckpointLevel(name="memory", stall_s=1, survives=0.8)
    disk = CheckpointLevel(name="disk", stall_s=60, survives=1)
    mtbf_s = 40_000.0
    planned = plan_levels([disk, memory], mtbf_s)
    drawn = FamilyGaps(kind="exponential", mtbf_s=mtbf_s).draw(np.random.default_rng(5), failures=4_000)
    works_s = [level.interval_s for level in planned.levels]
    walked = walk([memory, disk], works_s, Costs(stall_s=60), drawn.tolist())
    overhead = 1 / walked - 1
    assert overhead == pytest.approx(planned.overhead, rel=0.1)
    alone = walk(
        [disk], [plan_levels([disk], mtbf_s).levels[0].interval_s], Costs(stall_s=60), drawn.tolist()
    )
    assert 1 / alone - 1 == pytest.approx(plan_levels([disk], mtbf_s).overhead, rel=0.1)
    assert walked > alone


# ---- several levels --------------------------------------------------------------------------------------


def test_two_levels_as_benoit_has_them() -> None:
    plan = plan_levels(
        [
            CheckpointLevel(name="disk", stall_s=30, survives=1),
            CheckpointLevel(name="memory", stall_s=0.5, survives=0.9),
        ],
        10_000,
    )
    memory, disk = plan.levels
    assert (memory.name, disk.name) == ("memory", "disk")
    assert memory.interval_s == pytest.approx(math.sqrt(2 * 0.5 / (0.9 / 10_000)))
    assert disk.interval_s == pytest.approx(math.sqrt(2 * 30 / (0.1 / 10_000)))
    expected = math.sqrt(2 * 0.5 * 0.9 / 10_000) + math.sqrt(2 * 30 * 0.1 / 10_000)
    assert plan.overhead == pytest.approx(expected)
    assert plan.dropped == ()


@pytest.mark.parametrize(
    "useless",
    [
        CheckpointLevel(name="useless", stall_s=1, survives=0.5),  # no cheaper than memory, and survives less
        CheckpointLevel(name="useless", stall_s=29, survives=0.95),  # hardly cheaper than the disk
        CheckpointLevel(name="useless", stall_s=0.1, survives=0),
        CheckpointLevel(name="useless", stall_s=31, survives=1),
        CheckpointLevel(name="useless", stall_s=20, write_s=50_000, survives=1),  # written too late
    ],
)
def test_a_level_that_never_pays_is_dropped(useless: CheckpointLevel) -> None:
    useful = [
        CheckpointLevel(name="memory", stall_s=0.5, survives=0.9),
        CheckpointLevel(name="disk", stall_s=30, survives=1),
    ]
    plan = plan_levels([*useful, useless], 10_000)
    assert plan.dropped == ("useless",)
    assert plan == cadence.LevelPlan(
        levels=plan_levels(useful, 10_000).levels,
        dropped=("useless",),
        overhead=plan_levels(useful, 10_000).overhead,
    )


@st.composite
def some_levels(pick: st.DrawFn) -> list[CheckpointLevel]:
    count = pick(st.integers(0, 4))
    return [
        CheckpointLevel(name=f"level {number}", stall_s=pick(times_s), survives=pick(st.floats(0, 1)))
        for number in range(count)
    ]


@settings(max_examples=examples(50))
@given(levels=some_levels(), mtbf_s=mtbfs_s)
def test_another_level_never_makes_it_worse(levels: list[CheckpointLevel], mtbf_s: float) -> None:
    durable = CheckpointLevel(name="disk", stall_s=30, survives=1)
    overheads = [plan_levels([durable, *levels[:count]], mtbf_s).overhead for count in range(len(levels) + 1)]
    assert overheads == sorted(overheads, reverse=True)


def test_some_level_must_survive_everything() -> None:
    with pytest.raises(InputError, match="survives every failure"):
        plan_levels([CheckpointLevel(name="memory", stall_s=1, survives=0.99)], 10_000)
    with pytest.raises(InputError, match="more than 8 levels"):
        plan_levels([CheckpointLevel(name=str(i), stall_s=1, survives=1) for i in range(9)], 10_000)


# ---- whole steps -----------------------------------------------------------------------------------------


@given(costs=all_costs, mtbf_s=mtbfs_s, step_s=st.floats(0.01, 1e4), others=st.sets(st.integers(1, 1000)))
def test_no_whole_number_of_steps_is_better(
    costs: Costs, mtbf_s: float, step_s: float, others: set[int]
) -> None:
    def keeps(interval_s: float) -> float:
        return efficiency(interval_s, costs, mtbf_s)

    steps, interval_s = whole_steps(optimum_s(costs, mtbf_s), step_s, costs, keeps)
    assert steps >= 1
    assert steps * step_s >= costs.write_s
    assert interval_s == steps * step_s + costs.stall_s
    for other in others:
        if other * step_s >= costs.write_s:
            assert keeps(other * step_s + costs.stall_s) <= keeps(interval_s) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("step_s", "write_s", "steps"), [(10, 0, 80), (10, 2_000, 200), (3_600, 0, 1), (0.5, 0, 1595)]
)
def test_steps_are_whole(step_s: float, write_s: float, steps: int) -> None:
    costs = Costs(stall_s=30, write_s=write_s)
    best_s = optimum_s(costs, mtbf_of_nodes_s(2048))
    found, _ = whole_steps(best_s, step_s, costs, lambda at_s: efficiency(at_s, costs, mtbf_of_nodes_s(2048)))
    assert found == steps


# ---- what a run learns -----------------------------------------------------------------------------------


def test_what_a_run_learns_about_its_failures() -> None:
    prior_s = mtbf_of_nodes_s(2048)
    assert learned_mtbf_s(prior_s, 0, 0) == prior_s
    assert learned_mtbf_s(prior_s, 1, prior_s) == pytest.approx(prior_s)  # as expected
    assert learned_mtbf_s(prior_s, 0, 9 * prior_s) == pytest.approx(10 * prior_s)
    assert learned_mtbf_s(prior_s, 1000, 1000 * 3600) == pytest.approx(3600, rel=0.01)


def test_a_small_run_that_fails_often_is_believed_soon() -> None:
    # One node is expected to fail once in 264 days; this one failed five times in five hours.
    learned_s = learned_mtbf_s(mtbf_of_nodes_s(1), 5, 5 * 3600)
    assert learned_s == pytest.approx((PRIOR_S_MAX + 5 * 3600) / 5, rel=0.001)


def test_ten_failures_tell_more_than_what_others_had() -> None:
    assert learned_mtbf_s(mtbf_of_nodes_s(1), 9, 9 * 3600) > 2 * 3600
    assert learned_mtbf_s(mtbf_of_nodes_s(1), 10, 10 * 3600) == 3600
    assert learned_mtbf_s(3600, 10, 0) > 0  # a run that was never up


@given(prior_s=mtbfs_s, failures=st.integers(0, 1000), elapsed_s=st.floats(0, 1e7))
def test_what_is_learned_lies_between_what_was_expected_and_what_was_seen(
    prior_s: float, failures: int, elapsed_s: float
) -> None:
    learned_s = learned_mtbf_s(prior_s, failures, elapsed_s)
    seen_s = elapsed_s / failures if failures else math.inf
    assert min(prior_s, seen_s) * (1 - 1e-9) <= learned_s <= max(prior_s, seen_s) * (1 + 1e-9)


def test_a_worker_that_sets_its_cadence_loads_neither_numpy_nor_scipy() -> None:
    probe = "import sys, holdfast.economics.cadence.cadence; print({'numpy', 'scipy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# ---- the page --------------------------------------------------------------------------------------------


def test_the_pages_table_is_what_the_code_computes() -> None:
    page = PAGE.read_text(encoding="utf-8").replace(",", "").replace(" %", "")
    shown = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    assert [int(cells[0]) for cells in shown] == [row.mtbf_s for row in TABLE_2]
    for row, cells in zip(TABLE_2, shown, strict=True):
        _, young, daly, paper, ours, simulated, daly1, rfo, kept_simulated, kept = map(float, cells)
        best_s = optimum_s(AUPY, row.mtbf_s)
        assert young == round(young_work_s(AUPY.stall_s, row.mtbf_s) + AUPY.stall_s)
        assert daly == round(daly_work_s(AUPY.stall_s, row.mtbf_s) + AUPY.stall_s)
        assert daly1 == round(daly_first_order_s(AUPY, row.mtbf_s))
        assert rfo == round(rfo_s(AUPY, row.mtbf_s))
        assert (paper, ours) == (row.optimum, round(best_s))
        assert kept == round(100 * efficiency(best_s, AUPY, row.mtbf_s), 2)
        assert kept_simulated == pytest.approx(kept, abs=0.03)
        assert simulated == pytest.approx(best_s, rel=0.05)
