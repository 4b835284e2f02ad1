"""One replica by itself: every part has a mirror in another rank's memory, and is made again from there."""

from typing import Any

import pytest
from quantity import sampled
from test_sharded import kills

pytestmark = pytest.mark.slow

STEPS = 12


@pytest.mark.parametrize(
    ("moment", "rank"),
    sampled(
        [(moment, rank) for moment in ("lane", "reduce", "agree", "commit") for rank in (0, 1)],
        [("reduce", 0)],
    ),
)
def test_a_rank_without_a_copy_may_die_at_any_moment(cluster: Any, moment: str, rank: int) -> None:
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=STEPS)
    disturbed = cluster.train(
        "sharded", members=2, shard="2", steps=STEPS, faults=kills((3, moment, rank), (11, moment, 1 - rank))
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == 2, disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.steps_lost == 0


def test_a_node_may_die_because_mirrors_are_on_the_other(cluster: Any) -> None:
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=STEPS)
    disturbed = cluster.train(
        "sharded", nodes=2, members=2, shard="4", steps=STEPS, faults=kills((5, "lane", 3), kind="node")
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.steps_lost == 0


@pytest.mark.soak  # test_sharded_checkpoints.py has it with two ranks
def test_a_rank_that_dies_with_its_mirror_sends_the_run_back_to_its_checkpoint(cluster: Any) -> None:
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=STEPS)
    disturbed = cluster.train(
        "sharded",
        members=4,
        shard="4",
        steps=STEPS,
        checkpoint_every=2,
        faults=kills((6, "lane", 1), (6, "lane", 2)),
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert "of the state any more: all of them begin again" in disturbed.story
