"""The cost of the time between attempts of a run, if its GPUs were held."""

import msgspec

from holdfast.economics.pricing.prices import Prices
from holdfast.economics.pricing.pricing import Pricing
from holdfast.ledger.counts import Gap
from holdfast.ledger.remarks import gap_remarks
from holdfast.ledger.report import Report


def with_priced_gaps(told: Report, prices: Prices) -> Report:
    """The report with prices in its remarks on time between attempts, in case the GPUs were held."""
    pricing = Pricing(told, prices)
    is_assumed = any(charge.price.assumed for charge in pricing.charges())

    def priced(gap: Gap) -> str:
        money = prices.currency.said(pricing.held(gap.gpus, gap.from_ns, gap.to_ns))
        return f"{money} at an assumed price," if is_assumed else money

    said = dict(zip(gap_remarks(told), gap_remarks(told, priced), strict=True))
    return msgspec.structs.replace(told, remarks=tuple(said.get(one, one) for one in told.remarks))
