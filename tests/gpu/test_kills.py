"""Fifty kills and node losses in one run over NCCL, in every moment: no trace, and nobody else is lost."""

import pytest
from forked_cluster import Cluster
from kill_plans import KILLS, STEPS, plan_of

RUN_S_MAX = 240.0


@pytest.mark.parametrize(("nodes", "lanes"), [(2, 8), (3, 16), (4, 8)])
def test_fifty_kills_leave_no_trace(cluster: Cluster, nodes: int, lanes: int) -> None:
    seed = 1000 * lanes + 10 * nodes + 1
    undisturbed = cluster.train("plain", steps=STEPS, lanes=lanes)
    disturbed = cluster.train(
        "plain",
        nodes=nodes,
        steps=STEPS,
        lanes=lanes,
        faults=plan_of(seed, nodes),
        checkpoint_every=1,
        run_s_max=RUN_S_MAX,
    )
    said = disturbed.story
    assert disturbed.ending.outcome == "completed", said
    assert disturbed.struck >= KILLS, f"seed {seed}:\n{said}"
    assert disturbed.unexplained == [], said
    assert disturbed.digest == undisturbed.digest
    assert disturbed.losses.items() <= undisturbed.losses.items()
    assert disturbed.steps_lost == 0 or disturbed.was_empty, said
