import pytest

from bench.overhead import OverheadBench, Turns, setting, summary, table

pytestmark = pytest.mark.slow

TURNS = Turns(steps=((1.1, 1.0), (3.0, 2.0), (0.9, 1.0)), reductions=((0.2, 0.1), (0.3, 0.1), (0.1, 0.1)))


def test_a_ratio_is_the_median_over_the_turns() -> None:
    found = summary(2, 8, TURNS)
    assert (found.step_ratio, found.ddp_step_s) == (1.1, 1.0)
    assert (found.reduce_ratio, found.all_reduce_s) == (2.0, 0.1)
    assert (found.members, found.lanes) == (2, 8)


def test_the_table_shows_every_ratio() -> None:
    bench = OverheadBench(
        step_ratio_ddp=1.015,
        step_ratio_ddp_8_lanes=1.25,
        reduce_ratio_2=1.125,
        reduce_ratio_4=1.0625,
        settings=(),
    )
    lines = table(bench).splitlines()
    figures = ("1.015", "1.250", "1.125", "1.062")
    assert all(figure in line for figure, line in zip(figures, lines, strict=True))


@pytest.mark.soak
def test_two_members_are_measured_beside_ddp() -> None:
    found = setting(members=2, lanes=2, rounds=5)
    assert len(found.turns.steps) == len(found.turns.reductions) == 5
    assert 0.2 < found.step_ratio < 5  # a busy machine measures badly
    assert 0.2 < found.reduce_ratio < 5
