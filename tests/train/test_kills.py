"""Fifty kills in one run, in every moment of a step: the result is the same as if nothing had happened."""

from typing import Any

import pytest
from kill_plans import KILLS, STEPS, plan_of


@pytest.mark.parametrize(
    ("nodes", "slots", "lanes"),
    [
        (1, 1, 8),
        pytest.param(2, 1, 16, marks=pytest.mark.soak),
        (3, 1, 8),
        pytest.param(3, 1, 16, marks=pytest.mark.soak),
        (2, 2, 8),
    ],
)
def test_fifty_kills_leave_no_trace(cluster: Any, nodes: int, slots: int, lanes: int) -> None:
    seed = 1000 * lanes + 10 * nodes + slots
    undisturbed = cluster.train("plain", steps=STEPS, lanes=lanes)
    disturbed = cluster.train(
        "plain",
        nodes=nodes,
        members=slots,
        steps=STEPS,
        lanes=lanes,
        faults=plan_of(seed, nodes * slots),
        checkpoint_every=1,
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck >= KILLS, f"seed {seed}: {disturbed.story}"
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest
    assert disturbed.losses.items() <= undisturbed.losses.items()
