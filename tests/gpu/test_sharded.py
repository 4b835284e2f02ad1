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


@pytest.mark.parametrize(
    ("build", "layouts"),
    [
        ("tensor_parallel", [(2, "tp=2"), (4, "tp=2")]),
        ("sharded_and_tensor_parallel", [(2, "shard=1,tp=2"), (4, "shard=2,tp=2")]),
        ("piped", [(2, "pp=2"), (4, "pp=2")]),
        ("piped_gpipe", [(2, "pp=2"), (4, "pp=2")]),
    ],
)
def test_tensor_and_pipeline_parallel_replicas_give_the_same_bits(
    cluster: Cluster, build: str, layouts: list[tuple[int, str]]
) -> None:
    """However many there are. A pipeline has the bits of one process, too."""
    found = [cluster.train(build, nodes=nodes, shard=shard, steps=STEPS) for nodes, shard in layouts]
    if build.startswith("piped"):
        found.append(cluster.train("unpiped", shard="1", steps=STEPS))
    for one in found:
        assert one.ending.outcome == "completed", one.story
        assert one.digest == found[0].digest
        assert one.losses == found[0].losses


@pytest.mark.parametrize("moment", ["lane", "reduce", "agree", "commit"])
@pytest.mark.parametrize(("build", "shard"), [("tensor_parallel", "tp=2"), ("piped", "pp=2")])
def test_a_rank_of_such_a_replica_may_die_at_any_moment(
    cluster: Cluster, build: str, shard: str, moment: str
) -> None:
    undisturbed = cluster.train(build, nodes=2, shard=shard, steps=STEPS)
    faults = [
        PlannedFault(id=1, step=3, moment=moment, rank=1),  # type: ignore[arg-type]
        PlannedFault(id=2, step=6, moment=moment, rank=2),  # type: ignore[arg-type]
    ]
    disturbed = cluster.train(build, nodes=4, shard=shard, steps=STEPS, faults=faults)
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == len(faults), disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.steps_lost == 0


@pytest.mark.parametrize(("build", "shard"), [("plain", ""), ("sharded", "2")])
def test_a_replay_has_the_bits_of_a_run_that_was_short(cluster: Cluster, build: str, shard: str) -> None:
    fault = PlannedFault(id=1, step=3, moment="lane", rank=1)
    short = cluster.train(
        build, nodes=4, shard=shard, warm=0, on_shortage="smaller batch", faults=[fault], steps=STEPS
    )
    assert short.ending.outcome == "completed", short.story
    assert short.skipped, short.story
    again = cluster.train(build, shard=shard and "1", skipped=short.skipped, steps=STEPS)
    assert again.ending.outcome == "completed", again.story
    assert again.digest == short.digest, short.story
