"""The time between the attempts of a run in which nothing says that its GPUs were held.

It is not paid for, because nobody said so. Whether that is true only a price (`cost.rate`) or a scheduler can
tell: where a scheduler's accounting was imported, an allocation that lasts across the gap is paid for, and
one that ended was given back.
"""

import msgspec

from holdfast.ledger.copies import copied
from holdfast.record.events import Outcome

SCHEDULERS = frozenset({"sacct"})
"""Sources of events whose starts and ends are those of an allocation, not of a process."""
GAPS_MAX = 1_024
"""So many are kept one by one."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """From an attempt's end to the next start. given_back: a scheduler says that the allocation ended."""

    from_ns: int
    to_ns: int
    gpus: int
    outcome: Outcome
    given_back: bool

    @property
    def gpu_ns(self) -> int:
        return (self.to_ns - self.from_ns) * self.gpus


class Gaps:
    """Those that are over, and the one that the run is in."""

    __slots__ = ("all", "down")

    def __init__(self) -> None:
        self.all: list[Gap] = []
        self.down: Gap | None = None

    def give_back(self, now_ns: int) -> None:
        """A scheduler says that the GPUs are given back; what was held until then was paid for."""
        if self.down is not None:
            self.down = msgspec.structs.replace(self.down, from_ns=now_ns, given_back=True)

    def close(self, now_ns: int, held_gpus: int) -> None:
        """An attempt starts, and so many GPUs were held until now."""
        down, self.down = self.down, None
        if down is None or down.outcome == "completed" or now_ns == down.from_ns or held_gpus:
            return
        if len(self.all) < GAPS_MAX:
            self.all.append(msgspec.structs.replace(down, to_ns=now_ns))

    def copy(self) -> "Gaps":
        return copied(self, "all")
