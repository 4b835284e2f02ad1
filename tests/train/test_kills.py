"""Fifty kills in one run, in every moment of a step: the result is the same as if nothing had happened."""

from typing import Any

import pytest
from kill_plans import KILLS, STEPS, plan_of
from quantity import sampled

pytestmark = pytest.mark.slow

FEW_STEPS, FEW_KILLS = 14, 8


@pytest.mark.soak
@pytest.mark.parametrize(
    ("nodes", "slots", "lanes", "tls"),
    [(1, 1, 8, False), (2, 1, 16, False), (3, 1, 8, False), (3, 1, 16, True), (2, 2, 8, True)],
)
def test_fifty_kills_leave_no_trace(cluster: Any, nodes: int, slots: int, lanes: int, tls: bool) -> None:
    check_kills(cluster, nodes, slots, lanes, tls=tls)


@pytest.mark.parametrize(
    ("nodes", "slots", "tls"), sampled([(1, 1, False), (3, 1, False), (2, 2, True)], [(2, 2, True)])
)
def test_kills_on_any_number_of_nodes_leave_no_trace(cluster: Any, nodes: int, slots: int, tls: bool) -> None:
    check_kills(cluster, nodes, slots, 8, steps=FEW_STEPS, kills=FEW_KILLS, tls=tls)


def check_kills(
    cluster: Any,
    nodes: int,
    slots: int,
    lanes: int,
    *,
    steps: int = STEPS,
    kills: int = KILLS,
    tls: bool = False,
) -> None:
    seed = 1000 * lanes + 10 * nodes + slots
    undisturbed = cluster.undisturbed("plain", steps=steps, lanes=lanes)
    disturbed = cluster.train(
        "plain",
        nodes=nodes,
        members=slots,
        steps=steps,
        lanes=lanes,
        faults=plan_of(seed, nodes * slots, steps),
        tls=tls,
        checkpoint_every=1,
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck >= kills, f"seed {seed}: {disturbed.story}"
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest
    assert disturbed.losses.items() <= undisturbed.losses.items()
