"""Fifty kills in one run, in every moment of a step: the result is the same as if nothing had happened."""

from typing import Any

import pytest
from kill_plans import KILLS, STEPS, plan_of


@pytest.mark.parametrize(
    ("nodes", "slots", "lanes", "tls"),
    [
        (1, 1, 8, False),
        pytest.param(2, 1, 16, False, marks=pytest.mark.soak),
        (3, 1, 8, False),
        pytest.param(3, 1, 16, True, marks=pytest.mark.soak),
        (2, 2, 8, True),
    ],
)
def test_fifty_kills_leave_no_trace(cluster: Any, nodes: int, slots: int, lanes: int, tls: bool) -> None:
    seed = 1000 * lanes + 10 * nodes + slots
    undisturbed = cluster.train("plain", steps=STEPS, lanes=lanes)
    disturbed = cluster.train(
        "plain",
        nodes=nodes,
        members=slots,
        steps=STEPS,
        lanes=lanes,
        faults=plan_of(seed, nodes * slots),
        tls=tls,
        checkpoint_every=1,
    )
    assert disturbed.ending.outcome == "completed", disturbed.said
    assert disturbed.struck >= KILLS, f"seed {seed}: {disturbed.said}"
    assert disturbed.unexplained == [], disturbed.said
    assert disturbed.digest == undisturbed.digest
    assert disturbed.losses.items() <= undisturbed.losses.items()
