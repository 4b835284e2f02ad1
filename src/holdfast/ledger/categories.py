"""The ledger's categories: where a GPU-second can go. Every GPU-second is in exactly one category.

The order follows docs/architecture.md, "The ledger's identity": not in a run, in a run but not
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
        return _KEYS[self]

    @property
    def label(self) -> str:
        return "not known" if self is Category.UNATTRIBUTED else self.name.replace("_", " ").lower()

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_KEYS = tuple(category.name.lower() for category in Category)

# Each fits on a terminal line; docs/ledger.md has the rules.
_MEANING = {
    Category.IDLE: "paid for, given to no run",
    Category.SPARE: "ready to step in for a lost member",
    Category.DRAINED: "out of service until repaired",
    Category.QUEUED: "held while the run waits its turn",
    Category.STARTING: "launch, load, slow first step, exit",
    Category.DEAD_UNDETECTED: "nothing moved, not yet noticed",
    Category.LOCALISING: "failure known, its place not yet",
    Category.RECOVERING: "place known, not working again yet",
    Category.PLANNED_STOP: "stopped on purpose",
    Category.CHECKS: "evaluation and health checks",
    Category.USEFUL: "steps that count, at reference rate",
    Category.RECOMPUTED: "steps done again after a rollback",
    Category.DISCARDED: "work that was lost in a failure",
    Category.CHECKPOINT_STALL: "waiting for a checkpoint",
    Category.DATA_STALL: "waiting for data",
    Category.SLOWDOWN: "step time beyond the reference",
    Category.MISSING_MEMBERS: "in the run, not in its steps",
    Category.UNATTRIBUTED: "nothing recorded says where it went",
}

NOT_SCHEDULED = frozenset({Category.IDLE, Category.SPARE, Category.DRAINED, Category.QUEUED})
"""Time that scheduling goodput counts as lost: paid for, but not available to any run."""
