"""A slow member on a GPU: its lanes are timed there, some of them are moved, and the bits are the same."""

from typing import Any

STEPS, LANES = 40, 16


def test_a_slow_member_has_fewer_lanes(cluster: Any) -> None:
    alone = cluster.train("plain", steps=STEPS, lanes=LANES)
    run = cluster.train("plain", members=4, steps=STEPS, lanes=LANES, warm=0, does=f"slow n0.1 2 1 {STEPS}")
    assert run.ending.outcome == "completed", run.story
    assert run.digest == alone.digest
    assert any("lanes of n0.1 from 4 to " in line for line in run.said), run.story
