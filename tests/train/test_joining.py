"""Which GPU a member computes on, and which rank it has."""

import json
from typing import Any

import pytest

from holdfast.run.wire import PlannedFault
from holdfast.train.joining import gpu_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("slots", "nodes", "gpus", "expected", "is_shared"),
    [
        (8, 1, 8, [0, 1, 2, 3, 4, 5, 6, 7], False),
        (4, 2, 8, [0, 1, 2, 3, 4, 5, 6, 7], False),
        (2, 2, 8, [0, 1, 2, 3], False),
        (1, 4, 1, [0, 0, 0, 0], True),
        (4, 1, 2, [0, 1, 0, 1], True),
    ],
)
def test_members_of_one_machine_have_a_gpu_each_as_far_as_they_go(
    slots: int, nodes: int, gpus: int, expected: list[int], is_shared: bool
) -> None:
    found = [gpu_of(slot, slots, f"{node}/{nodes}", gpus) for node in range(nodes) for slot in range(slots)]
    assert found == [(number, is_shared) for number in expected]


@pytest.mark.parametrize("meets", [False, True], ids=["one loop", "two loops"])
def test_rank_0_stays_one_process_as_long_as_it_lives(cluster: Any, meets: bool) -> None:
    """Neither its neighbour's replacement nor its own takes rank 0 over: the oldest of the others does."""
    faults = [
        PlannedFault(id=1, step=3, moment="reduce", rank=1),
        PlannedFault(id=2, step=7, moment="lane", rank=0),
    ]
    result = cluster.train("plain", members=3, faults=faults, meets=meets)
    assert (result.ending.outcome, result.struck) == ("completed", 2), result.story
    ranks = {path.stem: json.loads(path.read_text())["ranks"] for path in result.folder.glob("*.json")}
    leads = {int(step): rank == 0 for step, rank in ranks["n0.2"].items()}
    assert leads == {step: step >= 7 for step in range(1, 13)}
    others = [rank for member, by_step in ranks.items() if member != "n0.2" for rank in by_step.values()]
    assert 0 not in others
    assert any("strikes n0.0 at step 7" in line for line in result.said)
