"""What GPU-time costs and what it went to, in the words of whoever answers for the budget.

GPU-nanoseconds are counted as integers, by price and category, and turned into money at the very end:
whatever is added up, by cause, by team or by day, adds up to the same total, exactly.
"""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import msgspec

from holdfast.ledger.categories import Category
from holdfast.wording.units import HOUR_NS


class WasteCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why GPU-time was paid for and brought nothing: some of the ledger's categories under one name."""

    key: str
    label: str
    meaning: str
    categories: tuple[Category, ...]


CAUSES = (
    WasteCause(
        key="starting",
        label="Starting and restarting",
        meaning="launching, connecting, loading, a slow first step",
        categories=(Category.STARTING,),
    ),
    WasteCause(
        key="failures",
        label="Failures",
        meaning="standing still until noticed, located and mended",
        categories=(
            Category.DEAD_UNDETECTED,
            Category.LOCALISING,
            Category.RECOVERING,
            Category.MISSING_MEMBERS,
        ),
    ),
    WasteCause(
        key="repeated",
        label="Work lost or done twice",
        meaning="cut off by a failure, rolled back, or computed again",
        categories=(Category.RECOMPUTED, Category.DISCARDED),
    ),
    WasteCause(
        key="slow",
        label="Running slowly",
        meaning="steps that took longer than they should",
        categories=(Category.SLOWDOWN,),
    ),
    WasteCause(
        key="waiting",
        label="Waiting for data and storage",
        meaning="standing still for input or a checkpoint",
        categories=(Category.DATA_STALL, Category.CHECKPOINT_STALL),
    ),
    WasteCause(
        key="idle",
        label="Paid for, not in use",
        meaning="idle, or held while waiting for a turn",
        categories=(Category.IDLE, Category.QUEUED),
    ),
    WasteCause(
        key="reserve",
        label="Reserve and repair",
        meaning="spares standing by, machines out of service",
        categories=(Category.SPARE, Category.DRAINED),
    ),
    WasteCause(
        key="planned",
        label="Checks and planned stops",
        meaning="evaluation, tests, stops on purpose",
        categories=(Category.CHECKS, Category.PLANNED_STOP),
    ),
    WasteCause(
        key="unexplained",
        label="Not explained",
        meaning="nothing recorded says where it went",
        categories=(Category.UNATTRIBUTED,),
    ),
)
"""Every category but `useful`, once."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-time, and what it costs."""

    gpu_ns: int
    usd: float


class Bill:
    """GPU-nanoseconds by price (USD per GPU-hour) and category, to be added to and summed up."""

    def __init__(self) -> None:
        self._gpu_ns: Counter[tuple[Fraction, str]] = Counter()

    def add(self, usd_per_gpu_hour: Fraction, parts: Iterable[tuple[str, int]]) -> None:
        """Put GPU-nanoseconds by the key of their category on the bill."""
        for key, gpu_ns in parts:
            self._gpu_ns[usd_per_gpu_hour, key] += gpu_ns

    def include(self, other: "Bill") -> None:
        self._gpu_ns.update(other._gpu_ns)

    def total(self) -> Amount:
        return self._summed(self._gpu_ns)

    def part(self, *categories: Category) -> Amount:
        return self.under(*(category.key for category in categories))

    def under(self, *keys: str) -> Amount:
        """What is on the bill under these keys."""
        return self._summed(entry for entry in self._gpu_ns if entry[1] in keys)

    def useful(self) -> Amount:
        return self.part(Category.USEFUL)

    def waste(self) -> Amount:
        return self.part(*(category for category in Category if category != Category.USEFUL))

    def _summed(self, entries: Iterable[tuple[Fraction, str]]) -> Amount:
        by_price: Counter[Fraction] = Counter()
        for entry in entries:
            by_price[entry[0]] += self._gpu_ns[entry]
        usd = sum((price * gpu_ns for price, gpu_ns in by_price.items()), Fraction())
        return Amount(gpu_ns=by_price.total(), usd=float(usd / HOUR_NS))


def usd_per_hour(spend_usd: float, gpu_ns: int) -> float | None:
    """What one GPU-hour of these cost if all that was spent was spent for them."""
    return spend_usd / (gpu_ns / HOUR_NS) if gpu_ns > 0 else None
