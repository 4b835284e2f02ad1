"""Sharded models over NCCL: any number of ranks, and a kill of any of them, give the same bits."""

import pytest
from forked_cluster import Cluster

from holdfast.run.wire import PlannedFault

STEPS = 8


@pytest.mark.parametrize("build", ["sharded", "sharded_half", "sharded_in_part"])
def test_any_number_of_ranks_gives_the_same_bits(cluster: Cluster, build: str) -> None:
    alone = cluster.train(build, shard="1", steps=STEPS)
    assert alone.ending.outcome == "completed", alone.story
    for nodes, shard in ((2, "2"), (4, "2"), (4, "4")):
        several = cluster.train(build, nodes=nodes, shard=shard, steps=STEPS)
        assert several.ending.outcome == "completed", several.story
        assert several.digest == alone.digest, f"{nodes} members, --shard {shard}"


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("moment", ["lane", "reduce", "agree", "commit"])
def test_a_rank_may_die_at_any_moment(cluster: Cluster, moment: str, rank: int) -> None:
    undisturbed = cluster.train("sharded", shard="1", steps=STEPS)
    fault = PlannedFault(id=1, step=3, moment=moment, rank=rank)  # type: ignore[arg-type]
    disturbed = cluster.train("sharded", nodes=4, shard="2", steps=STEPS, faults=[fault])
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == 1, disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.steps_lost == 0


@pytest.mark.parametrize("moment", ["lane", "agree", "commit"])
def test_a_rank_without_a_copy_is_made_again_from_its_mirror(cluster: Cluster, moment: str) -> None:
    undisturbed = cluster.train("sharded", shard="1", steps=STEPS)
    faults = [
        PlannedFault(id=1, step=3, moment=moment, rank=1),  # type: ignore[arg-type]
        PlannedFault(id=2, step=6, moment=moment, rank=2),  # type: ignore[arg-type]
    ]
    disturbed = cluster.train("sharded", nodes=4, shard="4", steps=STEPS, faults=faults)
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == 2, disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.steps_lost == 0
