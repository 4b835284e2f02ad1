"""The invoice: the cost of each run in each month, by cause and kind of price, in whole cents that sum up.

One rule divides cents, the largest remainder: each part is rounded down, and those that lost most by it get
one more. A month's total is its exact cost, rounded once; its teams share those cents, then a team's projects
share theirs, a project's runs, and a run's lines. So within a month each of these is less than a cent from
its exact cost, and all sum up to the cent. A sum of several of them may be that far off for each: a year is
the sum of its months, each of which is rounded for itself, so that it is the same alone and in the year.
`focus_csv` writes them with the columns of FOCUS 1.2, the FinOps Foundation's billing schema
(focus.finops.org), so that they can be joined with a cloud's own bill.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from fractions import Fraction

import msgspec

from holdfast.economics.pricing.months import Month
from holdfast.economics.pricing.prices import Currency, exactly
from holdfast.economics.pricing.pricing import ACCRUED, Charge
from holdfast.economics.pricing.rates import Kind
from holdfast.economics.pricing.spending import CAUSES
from holdfast.ledger.categories import Category
from holdfast.ledger.report import Report
from holdfast.ledger.split import Silence
from holdfast.wording import run_label
from holdfast.wording.units import HOUR_NS

USEFUL = "useful"
UNKNOWN = "unexplained"
CENTS = 100
LABELS = {
    USEFUL: "Useful training",
    **{cause.key: cause.label for cause in CAUSES},
    UNKNOWN: "Not known",
    ACCRUED: "Accrued, still running",
}
_CAUSE_OF: dict[str, str] = {
    **{category.key: cause.key for cause in CAUSES for category in cause.categories},
    **dict.fromkeys(Silence, UNKNOWN),
    Category.USEFUL.key: USEFUL,
    ACCRUED: ACCRUED,
}
_ORDER = {key: place for place, key in enumerate(LABELS)}


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one run in one month, for one cause, at one kind of price. cents: of its currency."""

    month: str
    from_ns: int
    to_ns: int
    run: str
    name: str
    team: str
    project: str
    cluster: str
    chip: str
    kind: Kind | None
    cause: str
    gpu_ns: int
    usd: float
    cents: int


class Invoice(msgspec.Struct, frozen=True, kw_only=True):
    """The lines, which sum to `cents`, and so do the months."""

    currency: str
    usd_per: float
    cents: int
    months: dict[str, int]
    lines: tuple[InvoiceLine, ...]


class _Open(msgspec.Struct):
    """A line that is still added to."""

    report: Report
    month: Month
    kind: Kind | None
    cause: str
    from_ns: int
    to_ns: int
    gpu_ns: int = 0
    usd: Fraction = Fraction()


def invoice(charged: Iterable[tuple[Report, Month, Charge]], currency: Currency) -> Invoice:
    """The invoice of these charges, each of which must lie within one month."""
    found: dict[tuple[str, str, str, str], _Open] = {}
    for report, month, charge in charged:
        for key, gpu_ns in charge.parts.items():
            if not gpu_ns:
                continue
            cause = _CAUSE_OF[key]
            line = found.setdefault(
                (month.name, report.run, cause, charge.kind or ""),
                _Open(report, month, charge.kind, cause, charge.from_ns, charge.to_ns),
            )
            line.from_ns, line.to_ns = min(line.from_ns, charge.from_ns), max(line.to_ns, charge.to_ns)
            line.gpu_ns += gpu_ns
            line.usd += charge.usd(gpu_ns)
    worth = exactly(currency.usd_per)
    by_month: dict[str, list[_Open]] = {}
    for one in sorted(found.values(), key=lambda one: (one.month.name, one.report.run, _ORDER[one.cause])):
        by_month.setdefault(one.month.name, []).append(one)
    lines = []
    for opened in by_month.values():
        exact = [one.usd / worth * CENTS for one in opened]
        owners = [(one.report.team, one.report.project, one.report.run) for one in opened]
        cents = _divided(round(sum(exact, Fraction())), exact, owners)
        lines += [_line(one, part) for one, part in zip(opened, cents, strict=True)]
    months = {name: sum(line.cents for line in lines if line.month == name) for name in by_month}
    return Invoice(
        currency=currency.code,
        usd_per=currency.usd_per,
        cents=sum(months.values()),
        months=months,
        lines=tuple(lines),
    )


def _divided(cents: int, exact: Sequence[Fraction], owners: Sequence[tuple[str, ...]]) -> list[int]:
    """The cents of each line: first divided among the lines' first owners, then among those' own parts."""
    if not owners or not owners[0]:
        return largest_remainder(cents, exact)
    places: dict[str, list[int]] = {}
    for place, (owner, *_) in enumerate(owners):
        places.setdefault(owner, []).append(place)
    parts = largest_remainder(
        cents, [sum((exact[place] for place in own), Fraction()) for own in places.values()]
    )
    divided = [0] * len(exact)
    for own, part in zip(places.values(), parts, strict=True):
        shares = _divided(part, [exact[place] for place in own], [owners[place][1:] for place in own])
        for place, share in zip(own, shares, strict=True):
            divided[place] = share
    return divided


def largest_remainder(whole: int, exact: Sequence[Fraction]) -> list[int]:
    """Integers that sum to `whole`: rounded down, plus one for those that lost most by it."""
    parts = [int(amount // 1) for amount in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: (parts[index] - exact[index], index))
    for index in by_rest[: whole - sum(parts)]:
        parts[index] += 1
    return parts


def _line(one: _Open, cents: int) -> InvoiceLine:
    return InvoiceLine(
        month=one.month.name,
        **{name: getattr(one.report, name) for name in ("run", "name", "team", "project", "cluster")},
        **{name: getattr(one, name) for name in ("from_ns", "to_ns", "kind", "cause", "gpu_ns")},
        chip=one.report.chip or "",
        usd=float(one.usd),
        cents=cents,
    )


# -- FOCUS 1.2 -------------------------------------------------------------------------------------------

PROVIDER = "Holdfast"
_PRICING: dict[Kind | None, str] = {
    "reserved": "Committed",
    "on-demand": "Standard",
    "spot": "Dynamic",
    "owned": "Other",
    None: "Other",
}
_HOURS_DECIMALS = 9
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def focus_csv(found: Invoice, months: Iterable[Month]) -> str:
    bounds = {month.name: month for month in months}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in found.lines:
        row = _Row(line=line, month=bounds[line.month], invoice=found)
        writer.writerow(column(row) for column in COLUMNS.values())
    return out.getvalue()


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line, its month and its invoice."""

    line: InvoiceLine
    month: Month
    invoice: Invoice

    @property
    def cost(self) -> str:
        return f"{self.line.cents // CENTS}.{self.line.cents % CENTS:02}"

    @property
    def hours(self) -> str:
        return f"{self.line.gpu_ns / HOUR_NS:.{_HOURS_DECIMALS}f}"

    @property
    def price(self) -> str:
        return f"{self.line.usd / self.invoice.usd_per / (self.line.gpu_ns / HOUR_NS):.6f}"

    @property
    def tags(self) -> str:
        named = {name: getattr(self.line, name) for name in ("team", "project", "cluster", "run", "cause")}
        found = {name: value for name, value in {**named, "price": self.line.kind}.items() if value}
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _always(value: str) -> Callable[[_Row], str]:
    return lambda row: value


def _stamp(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: str) -> str:
    """Quote a name that a spreadsheet would read as a formula."""
    return f"'{value}" if value.startswith(_FORMULAS) else value


COLUMNS: dict[str, Callable[[_Row], str]] = {
    "BilledCost": lambda row: row.cost,
    "BillingAccountId": _always(PROVIDER),
    "BillingAccountName": _always(PROVIDER),
    "BillingCurrency": lambda row: row.invoice.currency,
    "BillingPeriodEnd": lambda row: _stamp(row.month.to_ns),
    "BillingPeriodStart": lambda row: _stamp(row.month.from_ns),
    "ChargeCategory": _always("Usage"),
    "ChargeClass": _always(""),
    "ChargeDescription": lambda row: _text(
        f"{LABELS[row.line.cause]}, run {run_label(row.line.run, row.line.name)}"
    ),
    "ChargeFrequency": _always("Usage-Based"),
    "ChargePeriodEnd": lambda row: _stamp(row.line.to_ns),
    "ChargePeriodStart": lambda row: _stamp(row.line.from_ns),
    "ConsumedQuantity": lambda row: row.hours,
    "ConsumedUnit": _always("GPU-Hours"),
    "ContractedCost": lambda row: row.cost,
    "ContractedUnitPrice": lambda row: row.price,
    "EffectiveCost": lambda row: row.cost,
    "InvoiceId": lambda row: f"{PROVIDER}-{row.line.month}",
    "InvoiceIssuerName": _always(PROVIDER),
    "ListCost": lambda row: row.cost,
    "ListUnitPrice": lambda row: row.price,
    "PricingCategory": lambda row: _PRICING[row.line.kind],
    "PricingQuantity": lambda row: row.hours,
    "PricingUnit": _always("GPU-Hours"),
    "ProviderName": _always(PROVIDER),
    "PublisherName": _always(PROVIDER),
    "ResourceId": lambda row: _text(row.line.run),
    "ResourceName": lambda row: _text(row.line.name or row.line.run),
    "ResourceType": lambda row: _text(row.line.chip.upper() or "GPU"),
    "ServiceCategory": _always("AI and Machine Learning"),
    "ServiceName": _always("GPU training"),
    "ServiceSubcategory": _always("Machine Learning"),
    "SubAccountId": lambda row: _text(row.line.team),
    "SubAccountName": lambda row: _text(row.line.team),
    "Tags": lambda row: row.tags,
    "x_Cause": lambda row: row.line.cause,
    "x_Cluster": lambda row: _text(row.line.cluster),
    "x_Project": lambda row: _text(row.line.project),
}
"""In the order of the specification: first its own columns, then Holdfast's, which must begin with `x_`."""
