"""Fifty kills in one run, in every moment of a step: the result is the same as if nothing had happened."""

from typing import Any

import msgspec
import pytest

from holdfast.run.chaos import random_plan
from holdfast.run.wire import PlannedFault

STEPS = 48
KILLS = 50
PLANNED = 84
"""Half of them are for moments of a recovery, not all of which come before the run ends."""


def plan_of(seed: int, members: int) -> tuple[PlannedFault, ...]:
    plan = random_plan(
        seed,
        steps=STEPS - 4,
        count=PLANNED,
        ranks=members,
        kinds=("kill", "kill", "kill", "node"),
    )
    if members > 1:
        return plan
    # Nobody sends a lone member its state.
    return tuple(
        msgspec.structs.replace(fault, moment="lane") if fault.moment == "state" else fault for fault in plan
    )


@pytest.mark.parametrize(
    ("nodes", "slots", "lanes"), [(1, 1, 8), (2, 1, 16), (3, 1, 8), (3, 1, 16), (2, 2, 8)]
)
def test_fifty_kills_leave_no_trace(cluster: Any, nodes: int, slots: int, lanes: int) -> None:
    seed = 1000 * lanes + 10 * nodes + slots
    undisturbed = cluster.train("plain", steps=STEPS, lanes=lanes)
    disturbed = cluster.train(
        "plain",
        nodes=nodes,
        members=slots,
        steps=STEPS,
        lanes=lanes,
        faults=plan_of(seed, nodes * slots),
        checkpoint_every=1,
    )
    assert disturbed.ending.outcome == "completed", disturbed.said
    assert disturbed.struck >= KILLS, f"seed {seed}: {disturbed.said}"
    assert disturbed.digest == undisturbed.digest
    assert disturbed.losses.items() <= undisturbed.losses.items()
