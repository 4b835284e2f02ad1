"""What the stage of a member, as its heartbeats tell it, says about it: a new stage must be placed here."""

from typing import NamedTuple, assert_never, get_args

from holdfast.run.wire import Stage


class StageNature(NamedTuple):
    """in_step: from its first lane to its commit. waits: for others, so that a hang is not its fault.
    regroups: it has left what it was in; what it has told the others shows where it is.
    """

    in_step: bool = False
    waits: bool = False
    regroups: bool = False


def nature(stage: Stage) -> StageNature:
    match stage:
        case "data" | "forward" | "backward" | "optimizer":
            return StageNature(in_step=True)
        case "reduce":
            return StageNature(in_step=True, waits=True)
        case "meeting":
            return StageNature(waits=True)
        case "waiting":
            return StageNature(waits=True, regroups=True)
        case "regroup" | "state":
            return StageNature(regroups=True)
        case "starting" | "script" | "checkpoint" | "finished":
            return StageNature()
        case _:
            assert_never(stage)


_STAGES: tuple[Stage, ...] = get_args(Stage)
BETWEEN_STEPS: frozenset[Stage] = frozenset({"script", "checkpoint"})
"""What it does by itself there."""
IN_STEP = frozenset(stage for stage in _STAGES if nature(stage).in_step)
HELD_UP = frozenset(stage for stage in _STAGES if nature(stage).waits)
REGROUPING = frozenset(stage for stage in _STAGES if nature(stage).regroups)
