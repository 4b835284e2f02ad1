"""Each hour of a run at its own price: the cost of the segments of its report, and of its accrued time.

A price recorded in the run is the one that was paid. Otherwise the prices file's `[[rates]]` count, then its
single price, and then the list price of the chip, which is assumed. Declared factors (tax, overhead) multiply
all of them. Money is kept as exact fractions and rounded when it is shown.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from operator import itemgetter

import msgspec

from holdfast.economics.pricing.prices import Currency, Priced, Prices, assumed, exactly
from holdfast.economics.pricing.rates import Kind, PricedSubject, RateLine
from holdfast.ledger.categories import Category
from holdfast.ledger.report import Report, Segment
from holdfast.record.errors import InputError
from holdfast.record.events import CPU
from holdfast.wording.units import HOUR_NS

ACCRUED = "accrued"
"""The key of time that is not accounted for yet because the run goes on; no category of the ledger."""

NO_GPU = 'its members have no GPU; a rate for chip = "cpu" prices their hours'

CHANGES_SHOWN_MAX = 5
"""How many changes of the price are listed one by one."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a run's time at one price.

    usd_per_gpu_hour  exact, with the declared factors
    price             the same, with its source
    parts             GPU-ns by category; what is not known, by silence
    incidents         the part of it that each incident lost
    """

    from_ns: int
    to_ns: int
    usd_per_gpu_hour: Fraction
    price: Priced
    kind: Kind | None
    parts: Mapping[str, int]
    incidents: Mapping[str, Mapping[str, int]]

    @property
    def gpu_ns(self) -> int:
        return sum(self.parts.values())

    def usd(self, gpu_ns: int) -> Fraction:
        return self.usd_per_gpu_hour * gpu_ns / HOUR_NS


class Pricing:
    """The prices of one run's hours."""

    def __init__(self, report: Report, prices: Prices) -> None:
        self.report = report
        self.prices = prices
        subject = PricedSubject(
            run=report.run,
            name=report.name,
            team=report.team,
            cluster=report.cluster,
            chip=CPU if report.on_cpu else report.chip or "",
        )
        rates = [one for one in prices.rates if one.chip or one.run] if report.on_cpu else prices.rates
        self.line = RateLine.of(rates, subject)
        self._recorded = report.recorded_prices

    def at(self, at_ns: int, recorded: float | None) -> tuple[Fraction, Priced, Kind | None]:
        """The price of a GPU-hour at this moment, with the factors, and its kind."""
        kind: Kind | None = None
        if recorded is not None:
            price = self.prices.at(recorded).usd_per_gpu_hour
        elif (rate := self.line.at(at_ns)) is not None:
            kind = rate.kind
            price = Priced(value=rate.usd_per_gpu_hour, assumed=False, source=rate.source)
        elif self.report.on_cpu and not self._recorded:
            price = assumed(0.0, NO_GPU)
        elif self._recorded and (self.report.on_cpu or self.prices.usd_per_gpu_hour.assumed):
            price = self.prices.at(self._recorded[0][1]).usd_per_gpu_hour  # the first recorded price
        else:
            price = self.prices.for_chip(self.report.chip).usd_per_gpu_hour
        return exactly(price.value) * self.prices.factor, self.prices.with_factors(price), kind

    def charges(self, cuts_ns: Iterable[int] = ()) -> list[Charge]:
        """All segments of the report in order of time, then the accrued time, cut at these moments."""
        segments, accrued = list(self.report.segments), self.report.accrued
        if accrued is not None:
            segments += (
                Segment(
                    from_ns=from_ns,
                    to_ns=to_ns,
                    partition={ACCRUED: (to_ns - from_ns) * accrued.gpus},
                    unknown={},
                    kept_gpu_ns=0,
                    incidents={},
                    usd_per_gpu_hour=self._recorded_at(from_ns),
                )
                for from_ns, to_ns in self._stretches(accrued.from_ns, accrued.to_ns, cuts_ns)
            )
        return [self._charge(segment) for segment in segments]

    @property
    def is_priced(self) -> bool:
        """Whether its hours have a price; those of members without a GPU have none unless one is given."""
        return not self.report.on_cpu or any(charge.price.value for charge in self.charges())

    def require(self) -> None:
        if not self.is_priced:
            raise InputError(
                f"The members of {self.report.label} have no GPU, so its hours have no price.",
                hint='Give them one: `[[rates]]` with `chip = "cpu"` in the file of --prices.',
            )

    def held(self, gpus: int, from_ns: int, to_ns: int) -> Fraction:
        """The cost of holding this many GPUs of the run from one moment to the other."""
        usd = Fraction()
        for begin_ns, end_ns in self._stretches(from_ns, to_ns):
            price = self.at(begin_ns, self._recorded_at(begin_ns))[0]
            usd += price * gpus * (end_ns - begin_ns) / HOUR_NS
        return usd

    def _stretches(self, from_ns: int, to_ns: int, cuts_ns: Iterable[int] = ()) -> Iterator[tuple[int, int]]:
        """This time, cut at these moments and where a price may change."""
        edges = self.line.edges_ns
        rates = edges[bisect_right(edges, from_ns) : bisect_left(edges, to_ns)]
        others = (*cuts_ns, *(since_ns for since_ns, _ in self._recorded))
        within = {*rates, *(edge for edge in others if from_ns < edge < to_ns)}
        return pairwise([from_ns, *sorted(within), to_ns])

    def _recorded_at(self, at_ns: int) -> float | None:
        """The price recorded for this moment, whether or not the run was up."""
        known = bisect_right(self._recorded, at_ns, key=itemgetter(0))
        return self._recorded[known - 1][1] if known else None

    def overruled(self) -> str:
        """A sentence if a recorded price overrules one of the file; else empty."""
        for segment in self.report.segments:
            rate = self.line.at(segment.from_ns)
            recorded = segment.usd_per_gpu_hour
            if recorded is not None and rate is not None and rate.usd_per_gpu_hour != recorded:
                said = self.prices.currency.said
                paid = self.prices.said_paid(recorded)
                given = f"the {said(rate.usd_per_gpu_hour)} of rate {rate.number} in the prices"
                return f"Run {self.report.label} recorded {paid}; {given} are not used."
        return ""

    def _charge(self, segment: Segment) -> Charge:
        known = {key: part for key, part in segment.partition.items() if key != Category.UNATTRIBUTED.key}
        exact, price, kind = self.at(segment.from_ns, segment.usd_per_gpu_hour)
        return Charge(
            from_ns=segment.from_ns,
            to_ns=segment.to_ns,
            usd_per_gpu_hour=exact,
            price=price,
            kind=kind,
            parts=known | segment.unknown,
            incidents=segment.incidents,
        )


def price_changes(priced: Iterable[Sequence[Charge]], currency: Currency) -> Iterator[str]:
    """A sentence for each change of the price of a GPU-hour within runs, given the charges of each run."""
    runs: Counter[tuple[int, Fraction, Fraction]] = Counter()
    for charges in priced:
        paid = [charge for charge in charges if charge.gpu_ns]
        runs.update(
            (after.from_ns, before.usd_per_gpu_hour, after.usd_per_gpu_hour)
            for before, after in pairwise(paid)
            if before.usd_per_gpu_hour != after.usd_per_gpu_hour
        )
    for (at_ns, before, after), count in sorted(runs.items())[:CHANGES_SHOWN_MAX]:
        at = f"{datetime.fromtimestamp(at_ns // 10**9, tz=UTC):%Y-%m-%d %H:%M} UTC"
        of = f" ({count} runs)" if count > 1 else ""
        yield (
            f"The price of a GPU-hour went from {currency.said(before)} to {currency.said(after)} at "
            f"{at}{of}; each hour counts at its own."
        )
    if len(runs) > CHANGES_SHOWN_MAX:
        yield f"It changed {len(runs) - CHANGES_SHOWN_MAX:,} more times."
