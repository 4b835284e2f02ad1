"""The ledger's categories: where a GPU-second can have gone. Every one is in exactly one of them.

The order is that of docs/architecture.md, "The ledger's identity": not in a run, in a run and not
stepping, stepping, unattributed. The names are the keys of `holdfast report --json`.
"""

from enum import IntEnum


class Category(IntEnum):
    IDLE = 0
    SPARE = 1
    DRAINED = 2
    QUEUED = 3
    STARTING = 4
    DEAD_UNDETECTED = 5
    LOCALISING = 6
    RECOVERING = 7
    PLANNED_STOP = 8
    CHECKS = 9
    USEFUL = 10
    RECOMPUTED = 11
    DISCARDED = 12
    CHECKPOINT_STALL = 13
    DATA_STALL = 14
    SLOWDOWN = 15
    MISSING_MEMBERS = 16
    UNATTRIBUTED = 17

    @property
    def key(self) -> str:
        return self.name.lower()

    @property
    def label(self) -> str:
        return self.name.replace("_", " ").lower()

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    Category.IDLE: "paid for and given to no run",
    Category.SPARE: "kept ready to step in for a lost member",
    Category.DRAINED: "taken out of service until mended",
    Category.QUEUED: "held while the run waits for its turn",
    Category.STARTING: "launch, initialisation, loading, and what the first step takes beyond a normal one",
    Category.DEAD_UNDETECTED: "nothing moved and nobody had noticed yet",
    Category.LOCALISING: "the failure was known, its place was not",
    Category.RECOVERING: "from knowing what failed to working again",
    Category.PLANNED_STOP: "stopped on purpose",
    Category.CHECKS: "evaluation and health checks",
    Category.USEFUL: "steps that count, at the reference rate",
    Category.RECOMPUTED: "steps done again after a rollback, at the reference rate",
    Category.DISCARDED: "work thrown away and not done again yet",
    Category.CHECKPOINT_STALL: "waiting for a checkpoint to be written",
    Category.DATA_STALL: "waiting for data",
    Category.SLOWDOWN: "what steps took beyond the reference",
    Category.MISSING_MEMBERS: "belongs to the run, takes no part in its steps",
    Category.UNATTRIBUTED: "nothing recorded says where it went",
}

OUTSIDE_RUN = frozenset({Category.IDLE, Category.SPARE, Category.DRAINED, Category.QUEUED})
"""What scheduling goodput loses: paid for, and no run had it."""
