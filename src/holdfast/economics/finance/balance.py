"""What a part of the spend brought: useful, lost, not known and accrued, with their shares and bounds."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal

import msgspec

from holdfast.economics.pricing.pricing import ACCRUED
from holdfast.economics.pricing.spending import Amount, Bill, usd_per_hour
from holdfast.ledger.categories import Category
from holdfast.ledger.report import Report
from holdfast.ledger.split import bounds, share
from holdfast.wording.units import HOUR_NS

Standing = Literal["below", "met", "no target", "unknown"]


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """The spend and its parts: useful, waste, unknown and accrued sum to spend.

    unknown: nothing recorded says what it brought. accrued: spend of running runs since their last event,
    whose result is not known yet. useful_share: of the money of useful and waste, or of their GPU-time if
    they cost nothing; None if the runs reported only that they had GPUs. useful_share_bounds: the same share
    if all of the unknown was lost, and if it was useful; None if that makes no difference.
    usd_per_useful_gpu_hour: useful and waste, over useful hours; its bounds: with the unknown, if all of it
    was useful, and if it was lost. basis: what useful and waste are based on, if that is an estimate.
    """

    spend: Amount
    useful: Amount
    waste: Amount
    unknown: Amount
    accrued: Amount
    useful_share: float | None
    useful_share_bounds: tuple[float, float] | None
    usd_per_useful_gpu_hour: float | None
    usd_per_useful_gpu_hour_bounds: tuple[float, float] | None
    basis: str = ""

    @property
    def known(self) -> Amount:
        """Useful and lost."""
        return Amount(gpu_ns=self.useful.gpu_ns + self.waste.gpu_ns, usd=self.useful.usd + self.waste.usd)

    @property
    def goodput_bounds(self) -> tuple[float, float] | None:
        """The useful share of the GPU-time if all of the unknown was lost, and if it was useful."""
        return bounds(self.useful.gpu_ns, self.waste.gpu_ns, self.unknown.gpu_ns)

    def stands(self, goodput: float | None, target: float | None) -> Standing:
        """Whether the useful share of the GPU-time met its target, whatever the unknown was."""
        if target is None:
            return "no target"
        if goodput is None:
            return "unknown"
        least, most = self.goodput_bounds or (goodput, goodput)
        return "met" if least >= target else "below" if most < target else "unknown"


def balance_of(bill: Bill, reports: Sequence[Report]) -> Balance:
    """reports: of the runs on the bill."""
    useful, waste, unknown, known = bill.useful(), bill.waste(), bill.unknown(), bill.known()
    parts = (useful, waste, unknown)
    return Balance(
        spend=bill.total(),
        useful=useful,
        waste=waste,
        unknown=unknown,
        accrued=bill.under(ACCRUED),
        useful_share=share_of(useful, known) if is_told(reports) else None,
        useful_share_bounds=bounds(*(part.usd if known.usd > 0 else part.gpu_ns for part in parts)),
        usd_per_useful_gpu_hour=usd_per_hour(known.usd, useful.gpu_ns),
        usd_per_useful_gpu_hour_bounds=_hour_bounds(useful, known, unknown),
        basis=basis_of(reports),
    )


def _hour_bounds(useful: Amount, known: Amount, unknown: Amount) -> tuple[float, float] | None:
    """What a useful GPU-hour cost if all of the unknown was useful, and if it was lost."""
    if not unknown.gpu_ns or not useful.gpu_ns:
        return None
    paid_usd = known.usd + unknown.usd
    hours = useful.gpu_ns / HOUR_NS, (useful.gpu_ns + unknown.gpu_ns) / HOUR_NS
    return paid_usd / hours[1], paid_usd / hours[0]


def short_of(balance: Balance, target: float) -> Amount:
    """What should have been useful to meet the target and was not, at the average price of what is known."""
    known = balance.known
    gpu_ns = max(0, int(Fraction(target) * known.gpu_ns) - balance.useful.gpu_ns)
    return Amount(gpu_ns=gpu_ns, usd=gpu_ns * known.usd / known.gpu_ns)


def basis_of(reports: Iterable[Report]) -> str:
    """The mean uncertainty of these runs' useful time, in words; empty if none is estimated."""
    found = [report for report in reports if report.partition[Category.USEFUL.key]]
    useful = sum(report.partition[Category.USEFUL.key] for report in found)
    unsure = sum(
        report.partition[Category.USEFUL.key] * (report.reference.uncertainty or 0.0)
        for report in found
        if report.reference is not None
    )
    return f"estimated ± {100 * unsure / useful:.1f} %" if unsure else ""


def is_told(reports: Iterable[Report]) -> bool:
    """Whether any of these runs reported what it did."""
    return any(report.goodput.total is not None for report in reports)


def goodput_of(bill: Bill, reports: Iterable[Report]) -> float | None:
    """The useful share of the known GPU-time; None if the record does not say."""
    return share(bill.useful().gpu_ns, bill.known().gpu_ns) if is_told(reports) else None


def share_of(part: Amount, whole: Amount) -> float | None:
    """The share of the money; if GPUs cost nothing, of their time."""
    return part.usd / whole.usd if whole.usd > 0 else share(part.gpu_ns, whole.gpu_ns)
