"""A run as one row: the GPU-hours paid for, their useful share, their cost, and how the run ended."""

from fractions import Fraction

import msgspec

from holdfast.economics.pricing.prices import Prices
from holdfast.economics.pricing.pricing import Pricing
from holdfast.economics.pricing.rates import edges_ns
from holdfast.ledger.report import Ended
from holdfast.ledger.runs import AskedWindow, read_run
from holdfast.ledger.split import share
from holdfast.ledger.window import Window
from holdfast.record.store import RunSummary, Store
from holdfast.wording.units import HOUR_NS


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list. ended: its last end; None if none is recorded since its last start.

    gpu_hours: paid for, including those accrued since the last event of a running run. useful_share: of the
    known time; None if unknown. unknown_share: of the accounted time. useful_basis: how accurate the useful
    share is, if it is an estimate. on_cpu: its members have no GPU. cost_usd: None for a simulated run, which
    costs nothing, for members without a GPU if no price is given, and for one
    without recorded GPUs. is_cut_off: the log that it was imported from ends before the run does.
    """

    run: str
    name: str
    team: str
    events: int
    first_ns: int
    last_ns: int
    ended: Ended | None
    is_cut_off: bool
    gpus: int
    on_cpu: bool
    gpu_hours: float
    useful_share: float | None
    unknown_share: float | None
    useful_basis: str
    cost_usd: float | None
    cost_assumed: bool
    simulated: bool


def listed(store: Store, summary: RunSummary, prices: Prices, now_ns: int, simulated: bool) -> Listed:
    look = AskedWindow(window=Window(), now_ns=now_ns)
    told = read_run(store, summary.run, look, edges_ns(prices.rates))
    pricing = Pricing(told, prices)
    charges = [charge for charge in pricing.charges() if charge.gpu_ns]
    gpu_ns = sum(charge.gpu_ns for charge in charges)
    usd = sum((charge.usd(charge.gpu_ns) for charge in charges), Fraction())
    is_priced = bool(told.gpus) and not (simulated or told.is_untimed) and pricing.is_priced
    return Listed(
        **msgspec.structs.asdict(summary),
        name=told.name,
        team=told.team,
        ended=told.ended,
        is_cut_off=told.is_cut_off,
        gpus=told.gpus,
        on_cpu=told.on_cpu,
        gpu_hours=gpu_ns / HOUR_NS,
        useful_share=told.goodput.total,
        unknown_share=share(told.split.unknown_gpu_ns, told.paid_gpu_ns),
        useful_basis=told.goodput.basis,
        cost_usd=float(usd) if is_priced else None,
        cost_assumed=any(charge.price.assumed for charge in charges),
        simulated=simulated,
    )
