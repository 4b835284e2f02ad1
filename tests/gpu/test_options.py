"""What users switch on for a GPU: the same bits with one member, and with two of which one is killed."""

import json
import math

import pytest
from forked_cluster import Cluster
from scripts import FIRST_SCALE, OPTIONS

from holdfast.run.wire import PlannedFault

KILL = PlannedFault(id=1, step=4, moment="reduce", rank=1)
RUN_S_MAX = 180.0
"""Most of it is for a compiler that has nothing in its cache."""
RELATIVE_MAX = 1e-3


@pytest.mark.parametrize("build", OPTIONS)
def test_what_users_switch_on_gives_the_same_bits(cluster: Cluster, build: str) -> None:
    alone = cluster.train(build, run_s_max=RUN_S_MAX)
    assert alone.ending.outcome == "completed", alone.story
    killed = cluster.train(build, nodes=2, faults=[KILL], run_s_max=RUN_S_MAX)
    assert killed.ending.outcome == "completed", killed.story
    assert (killed.struck, killed.unexplained, killed.steps_lost) == (1, [], 0), killed.story
    assert killed.digest == alone.digest
    for step, loss in killed.losses.items():
        assert str(loss) == str(alone.losses[step])


def test_a_scaler_has_steps_to_skip(cluster: Cluster) -> None:
    """Or else `scaled_half` proves little: a skipped step halves the scale. Others move the loss."""
    trained = cluster.train("scaled_half")
    (path,) = trained.folder.glob("*.json")
    assert json.loads(path.read_text())["scale"] < FIRST_SCALE
    losses = list(trained.losses.values())
    assert losses[-1] < losses[0] / 2
    assert all(map(math.isfinite, losses))


def test_without_determinism_no_step_is_lost_either(cluster: Cluster) -> None:
    alone = cluster.train("not_deterministic")
    killed = cluster.train("not_deterministic", nodes=2, faults=[KILL])
    assert killed.ending.outcome == "completed", killed.story
    assert (killed.struck, killed.unexplained, killed.steps_lost) == (1, [], 0), killed.story
    for step, loss in killed.losses.items():
        assert loss == pytest.approx(alone.losses[step], rel=RELATIVE_MAX)
