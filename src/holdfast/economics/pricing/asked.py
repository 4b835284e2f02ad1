"""A run's report with its price: what its hours cost, and the time between its attempts if that was held."""

from fractions import Fraction

import msgspec

from holdfast.economics.pricing.prices import Prices
from holdfast.economics.pricing.pricing import ACCRUED, Pricing
from holdfast.ledger.counts import Gap
from holdfast.ledger.remarks import gap_remarks
from holdfast.ledger.report import Report
from holdfast.wording.units import HOUR_NS


def priced(told: Report, prices: Prices) -> Report:
    """The report with the price of its hours, unless that is only assumed, and with prices in its remarks on
    time between attempts, in case the GPUs were held.
    """
    pricing = Pricing(told, prices)
    charges = pricing.charges()
    is_assumed = any(charge.price.assumed for charge in charges)

    def held(gap: Gap) -> str:
        money = prices.currency.said(pricing.held(gap.gpus, gap.from_ns, gap.to_ns))
        return f"{money} at an assumed price," if is_assumed else money

    said = dict(zip(gap_remarks(told), gap_remarks(told, held), strict=True))
    told = msgspec.structs.replace(told, remarks=tuple(said.get(one, one) for one in told.remarks))
    paid = [charge for charge in charges if ACCRUED not in charge.parts and charge.gpu_ns]
    if not paid or any(charge.price.assumed for charge in paid):
        return told
    usd = sum((charge.usd(charge.gpu_ns) for charge in paid), Fraction())
    return msgspec.structs.replace(
        told, paid_usd=float(usd), usd_per_gpu_hour=float(usd * HOUR_NS / told.paid_gpu_ns)
    )
