"""What a member's stage, as its heartbeats report it, means: each new stage must be classified here."""

from typing import NamedTuple, assert_never, get_args

from holdfast.run.wire import Stage


class StageNature(NamedTuple):
    """The properties of a stage. in_step: between its first lane and its commit. waits: it waits for others,
    so a hang is not its fault. regroups: it has left its step or script; its messages to the others show how
    far it is.
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
"""The stages of a member's own work between steps."""
IN_STEP = frozenset(stage for stage in _STAGES if nature(stage).in_step)
HELD_UP = frozenset(stage for stage in _STAGES if nature(stage).waits)
REGROUPING = frozenset(stage for stage in _STAGES if nature(stage).regroups)
