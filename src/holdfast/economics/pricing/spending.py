"""The cost of GPU-time by cause, in the words of people responsible for a budget.

GPU-nanoseconds are counted as integers, by price and category, and turned into money only at the end: sums by
cause, by team or by day all give exactly the same total.
"""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import msgspec

from holdfast.ledger.categories import Category
from holdfast.ledger.split import LOSSES, Silence
from holdfast.wording.units import HOUR_NS


class WasteCause(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why paid GPU-time was lost: some of the ledger's categories under one name."""

    key: str
    label: str
    meaning: str
    categories: tuple[Category, ...]


_WORDS = {
    "starting": ("Starting and restarting", "launching, connecting, loading, a slow first step"),
    "failures": ("Failures", "standing still until noticed, located and repaired"),
    "repeated": ("Work lost or done twice", "cut off by a failure, rolled back, or computed again"),
    "slow": ("Running slowly", "steps that took longer than they should"),
    "waiting": ("Waiting for data and storage", "standing still for input or a checkpoint"),
    "idle": ("Paid for, not in use", "idle, or held while waiting for a turn"),
    "reserve": ("Reserve and repair", "spares standing by, machines out of service"),
    "planned": ("Checks and planned stops", "evaluation, tests, stops on purpose"),
}
_CATEGORIES: dict[str, tuple[Category, ...]] = {
    "starting": (Category.STARTING,),
    "failures": (
        *(Category.DEAD_UNDETECTED, Category.LOCALISING),
        *(Category.RECOVERING, Category.MISSING_MEMBERS),
    ),
    "repeated": (Category.RECOMPUTED, Category.DISCARDED),
    "slow": (Category.SLOWDOWN,),
    "waiting": (Category.DATA_STALL, Category.CHECKPOINT_STALL),
    "idle": (Category.IDLE, Category.QUEUED),
    "reserve": (Category.SPARE, Category.DRAINED),
    "planned": (Category.CHECKS, Category.PLANNED_STOP),
}
CAUSES = tuple(
    WasteCause(key=key, label=label, meaning=meaning, categories=_CATEGORIES[key])
    for key, (label, meaning) in _WORDS.items()
)
"""Every category of losses, once."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-time and its cost."""

    gpu_ns: int
    usd: float


class Bill:
    """GPU-nanoseconds by price (USD per GPU-hour) and the keys of a charge's parts."""

    def __init__(self) -> None:
        self._gpu_ns: Counter[tuple[Fraction, str]] = Counter()

    def add(self, usd_per_gpu_hour: Fraction, parts: Iterable[tuple[str, int]]) -> None:
        """Add GPU-nanoseconds by their keys."""
        for key, gpu_ns in parts:
            self._gpu_ns[usd_per_gpu_hour, key] += gpu_ns

    def include(self, other: "Bill") -> None:
        self._gpu_ns.update(other._gpu_ns)

    def total(self) -> Amount:
        return self._summed(self._gpu_ns)

    def part(self, *categories: Category) -> Amount:
        return self.under(*(category.key for category in categories))

    def under(self, *keys: str) -> Amount:
        return self._summed(entry for entry in self._gpu_ns if entry[1] in keys)

    def useful(self) -> Amount:
        return self.part(Category.USEFUL)

    def waste(self) -> Amount:
        return self.part(*LOSSES)

    def known(self) -> Amount:
        """Useful and lost."""
        return self.part(Category.USEFUL, *LOSSES)

    def unknown(self) -> Amount:
        """What nothing recorded explains; time that is not accounted for yet is not in it."""
        return self.under(*Silence)

    def _summed(self, entries: Iterable[tuple[Fraction, str]]) -> Amount:
        by_price: Counter[Fraction] = Counter()
        for entry in entries:
            by_price[entry[0]] += self._gpu_ns[entry]
        usd = sum((price * gpu_ns for price, gpu_ns in by_price.items()), Fraction())
        return Amount(gpu_ns=by_price.total(), usd=float(usd / HOUR_NS))


def usd_per_hour(spend_usd: float, gpu_ns: int) -> float | None:
    """The cost of one of these GPU-hours if the whole spend is divided among them."""
    return spend_usd / (gpu_ns / HOUR_NS) if gpu_ns > 0 else None
