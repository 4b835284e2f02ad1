"""Paid GPU-time in three amounts: useful, lost, and not known. What is not known is not lost.

Every share is of what is known. The bounds of a share say what it would be if all of the rest was lost, or
useful. Everything that reports on a run or prices it takes the three amounts from here.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

import msgspec

from holdfast import wording
from holdfast.ledger.categories import NOT_SCHEDULED, Category

UNKNOWN_SHARE_MIN = 0.01
"""From a hundredth of the paid time on, what is not known can move a share by a point: readers are told."""


class Silence(StrEnum):
    """Why time is not known, and so which line in a script or a log would tell."""

    NO_STEPS = "no_steps"
    AFTER_STEPS = "after_steps"
    STEP_IN_FLIGHT = "step_in_flight"

    @property
    def label(self) -> str:
        return _SILENCES[self][0]

    @property
    def remedy(self) -> str:
        return _SILENCES[self][1]


_SILENCES = {
    Silence.NO_STEPS: (
        "no step was recorded",
        "Import the log of the training (`holdfast import LOG --run RUN`), or record each step in the script "
        "(`StepCommitted`, see docs/journal.md).",
    ),
    Silence.AFTER_STEPS: (
        "after the last recorded step",
        "Record in the script what follows the steps (`PhaseEntered`: eval, check or stop) and the end of "
        "training (`RunEnded`), see docs/journal.md.",
    ),
    Silence.STEP_IN_FLIGHT: (
        "a step without its end",
        "The next step tells, or the end of the run with its reason: if the log has more lines, import them.",
    ),
}


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The three amounts. lost: by category; unknown: by silence. Neither names what is zero."""

    useful_gpu_ns: int
    lost_gpu_ns: int
    unknown_gpu_ns: int
    lost: dict[str, int]
    unknown: dict[str, int]

    @classmethod
    def of(cls, partition: Mapping[str, int], unknown: Mapping[str, int]) -> Self:
        """The amounts of a partition. unknown: its unattributed time by silence."""
        lost = {
            category.key: partition[category.key] for category in LOSSES if partition.get(category.key, 0)
        }
        return cls(
            useful_gpu_ns=partition.get(Category.USEFUL.key, 0),
            lost_gpu_ns=sum(lost.values()),
            unknown_gpu_ns=partition.get(Category.UNATTRIBUTED.key, 0),
            lost=lost,
            unknown={silence: unknown[silence] for silence in Silence if unknown.get(silence, 0)},
        )

    @property
    def known_gpu_ns(self) -> int:
        return self.useful_gpu_ns + self.lost_gpu_ns

    @property
    def paid_gpu_ns(self) -> int:
        return self.known_gpu_ns + self.unknown_gpu_ns

    @property
    def known_share(self) -> float | None:
        return share(self.known_gpu_ns, self.paid_gpu_ns)

    @property
    def scheduled_gpu_ns(self) -> int:
        """The part of what is known that a run had."""
        return self.known_gpu_ns - sum(self.lost.get(category.key, 0) for category in NOT_SCHEDULED)

    @property
    def unknown_matters(self) -> bool:
        return unknown_matters(self.unknown_gpu_ns, self.paid_gpu_ns)

    @property
    def is_partly_known(self) -> bool:
        return is_partly_known(self.useful_gpu_ns, self.lost_gpu_ns, self.unknown_gpu_ns)

    @property
    def useful_bounds(self) -> tuple[float, float] | None:
        return bounds(self.useful_gpu_ns, self.lost_gpu_ns, self.unknown_gpu_ns)


LOSSES = tuple(category for category in Category if category not in (Category.USEFUL, Category.UNATTRIBUTED))
"""The categories of time that is known not to have been useful."""


def share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def bounds(useful: float, lost: float, unknown: float) -> tuple[float, float] | None:
    """The useful share if all that is not known was lost, and if it was useful; None if all is known."""
    paid = useful + lost + unknown
    return (useful / paid, (useful + unknown) / paid) if unknown > 0 else None


def unknown_matters(unknown: float, paid: float) -> bool:
    """Whether so much is not known that a reader must be told."""
    return unknown > 0 and unknown >= UNKNOWN_SHARE_MIN * paid


def is_partly_known(useful: float, lost: float, unknown: float) -> bool:
    """Whether a useful share must be called one of what is known: of all that was paid for, it would have
    other digits, or so much is not known that it matters.
    """
    known, paid = useful + lost, useful + lost + unknown
    return unknown_matters(unknown, paid) or (
        wording.percent(share(useful, known)) != wording.percent(share(useful, paid))
    )
