"""The deal of lanes as a run shows it to observers."""

import asyncio
from typing import Any

import pytest

from holdfast.run.coordinator import Coordinator
from holdfast.run.wire import PlannedFault
from holdfast.train import tree

pytestmark = pytest.mark.slow

POLL_INTERVAL_S = 0.02
LANES = 8
STEPS = 30
STRUCK = 4
"""The step in which a node is lost; the others finish its lanes."""


def test_the_deal_that_is_shown_is_even_again_after_a_loss(cluster: Any) -> None:
    """The step in which a member died is finished by the holders of its lanes; the next is dealt anew."""
    seen: list[tuple[int, ...]] = []

    async def watch(coordinator: Coordinator) -> None:
        while True:
            status = coordinator.status()
            if status.generation >= 2 and status.step >= STRUCK:
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        alive = [member for member in status.members if member.alive and member.lanes]
        seen.extend(sorted(member.lanes for member in alive))

    fault = PlannedFault(id=1, step=STRUCK, moment="reduce", rank=0, fault="node", for_s=60.0)
    run = cluster.train(
        "plain", nodes=3, steps=STEPS, lanes=LANES, faults=(fault,), pace_s=0.05, meanwhile=watch
    )
    assert run.ending.outcome == "completed", run.story
    assert seen == [tuple(share) for share in tree.deal(LANES, 2)]
