"""Fifty kills in one run, in every moment of a step, of a recovery and of a join, chosen by a seed."""

import msgspec

from holdfast.run.chaos import random_plan
from holdfast.run.wire import PlannedFault

STEPS = 48
KILLS = 50
PLANNED_PER_STEP = 1.75
"""Half of them are planned for moments of a recovery. Some of those never come before the run ends."""


def plan_of(seed: int, members: int, steps: int = STEPS) -> tuple[PlannedFault, ...]:
    plan = random_plan(
        seed,
        steps=steps - 4,
        count=round(PLANNED_PER_STEP * steps),
        ranks=members,
        kinds=("kill", "kill", "kill", "node"),
    )
    if members > 1:
        return plan
    # A lone member receives no state.
    return tuple(
        msgspec.structs.replace(fault, moment="lane") if fault.moment == "state" else fault for fault in plan
    )
