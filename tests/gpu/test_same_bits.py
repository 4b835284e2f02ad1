"""The same bits on a GPU, over NCCL, whoever computes which lanes and whoever is lost."""

import pytest
from forked_cluster import Cluster
from scripts import SAME_BITS

from holdfast.run.wire import PlannedFault

FAULTS = (
    PlannedFault(id=1, step=2, moment="lane", rank=1),
    PlannedFault(id=2, step=4, moment="commit", rank=0),
    PlannedFault(id=3, step=6, moment="reduce", rank=2, fault="node", for_s=0.3),
)


@pytest.mark.parametrize("build", SAME_BITS)
def test_any_number_of_members_gives_the_same_bits(cluster: Cluster, build: str) -> None:
    alone = cluster.undisturbed(build)
    assert alone.ending.outcome == "completed", alone.story
    assert len(alone.losses) == 12
    for nodes in (2, 3, 4):
        together = cluster.train(build, nodes=nodes)
        assert together.ending.outcome == "completed", together.story
        assert together.unexplained == []
        assert str(together.losses) == str(alone.losses)  # as text: a loss may be what equals nothing
        assert together.digest == alone.digest


@pytest.mark.parametrize("build", SAME_BITS)
def test_members_that_are_lost_leave_no_trace(cluster: Cluster, build: str) -> None:
    alone = cluster.undisturbed(build)
    disturbed = cluster.train(build, nodes=4, faults=FAULTS)
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == len(FAULTS), disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.steps_lost == 0
    assert disturbed.digest == alone.digest
    for step, loss in disturbed.losses.items():
        assert str(loss) == str(alone.losses[step])
