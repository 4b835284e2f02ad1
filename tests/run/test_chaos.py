"""Deliberate faults: planned ones and random ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.errors import InputError
from holdfast.run.chaos import RECOVERY_MOMENTS, STEP_MOMENTS, Storm, random_plan, read_plan
from holdfast.run.wire import PlannedFault

PLAN = """
[[fault]]
step = 7
moment = "reduce"
rank = 2

[[fault]]
step = 9
fault = "node"
for_s = 1.5
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_is_read_in_order(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path, PLAN)) == (
        PlannedFault(id=1, step=7, moment="reduce", rank=2),
        PlannedFault(id=2, step=9, moment="lane", rank=0, fault="node", for_s=1.5),
    )


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (PLAN.replace("step = 9", "step = 'nine'"), "line 7", "step"),
        (PLAN.replace('"node"', '"flood"'), "line 7", "flood"),
        (PLAN.replace('"reduce"', '"lunch"'), "line 2", "lunch"),
        (PLAN.replace("rank = 2", "ranks = 2"), "line 2", "ranks"),
        (PLAN.replace("rank = 2", "rank = -2"), "line 2", "rank"),
        (PLAN.replace("for_s = 1.5", "for_s = -1"), "line 7", "for_s"),
        (PLAN.replace("step = 7", ""), "line 2", "step"),
        (PLAN.replace("step = 9", "step = "), "line 8", "Invalid value"),
        ("", "plan.toml", "fault"),
        ("[[faults]]\nstep = 1", "plan.toml", "faults"),
        ("\0", "plan.toml", "line 1"),
    ],
)
def test_a_mistake_in_a_plan_is_named_with_its_place(
    tmp_path: Path, text: str, place: str, problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_plan(written(tmp_path, text))
    assert place in caught.value.sentence
    assert problem in caught.value.sentence
    assert caught.value.hint


def test_a_plan_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_plan(tmp_path / "plan.toml")
    (tmp_path / "plan.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not a plan of faults"):
        read_plan(tmp_path / "plan.toml")


@given(
    seed=st.integers(0, 2**32), steps=st.integers(1, 60), count=st.integers(6, 60), ranks=st.integers(1, 5)
)
def test_a_random_plan_covers_every_moment_and_stays_within_the_run(
    seed: int, steps: int, count: int, ranks: int
) -> None:
    plan = random_plan(seed, steps=steps, count=count, ranks=ranks, kinds=("kill", "node"))
    assert plan == random_plan(seed, steps=steps, count=count, ranks=ranks, kinds=("kill", "node"))
    assert [fault.id for fault in plan] == list(range(1, count + 1))
    assert {fault.moment for fault in plan} == {*STEP_MOMENTS, *RECOVERY_MOMENTS}
    assert all(1 <= fault.step <= steps and 0 <= fault.rank < ranks for fault in plan)
    for fault in plan:
        if fault.moment in RECOVERY_MOMENTS:  # it needs something to recover from
            assert any(other.step == fault.step and other.moment in STEP_MOMENTS for other in plan)


def test_another_seed_makes_another_plan() -> None:
    plans = {random_plan(seed, steps=50, count=10, ranks=4) for seed in range(10)}
    assert len(plans) == 10


def test_a_storm_has_its_rate_and_repeats_itself() -> None:
    storms = [Storm(12, seed=3, kinds=("kill", "pause", "node")) for _ in range(2)]
    strikes = [[storm.next() for _ in range(2_000)] for storm in storms]
    assert strikes[0] == strikes[1]
    assert sum(wait_s for wait_s, _strike in strikes[0]) / 2_000 == pytest.approx(60 / 12, rel=0.1)
    assert {strike.fault for _wait_s, strike in strikes[0]} == {"kill", "pause", "node"}


def test_a_storm_strikes_only_as_it_may() -> None:
    storm = Storm(60, seed=0, kinds=("kill",))
    assert {storm.next()[1].fault for _ in range(100)} == {"kill"}
