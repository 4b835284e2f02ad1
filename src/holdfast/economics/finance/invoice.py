"""The invoice: what each run cost in each month, by cause and kind of price, in whole cents that sum to the
total.

A month's total is its exact cost, rounded once. Its lines get that many cents: each its own, rounded down,
and one more where most was cut off. So lines sum to the month, and months to the invoice, to the cent; and a
month is the same alone and among others. `focus_csv` writes them with the columns of FOCUS 1.2, the FinOps
Foundation's billing schema (focus.finops.org), so that they join a cloud's own bill.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fractions import Fraction

import msgspec

from holdfast.economics.pricing.months import Month
from holdfast.economics.pricing.prices import Currency
from holdfast.economics.pricing.pricing import ACCRUED, Charge
from holdfast.economics.pricing.rates import Kind
from holdfast.economics.pricing.spending import CAUSES
from holdfast.ledger.categories import Category
from holdfast.ledger.report import Report
from holdfast.wording.units import HOUR_NS

USEFUL = "useful"
CENTS = 100
LABELS = {
    USEFUL: "Useful training",
    **{cause.key: cause.label for cause in CAUSES},
    ACCRUED: "Accrued, still running",
}
_CAUSE_OF = {
    **{category.key: cause.key for cause in CAUSES for category in cause.categories},
    Category.USEFUL.key: USEFUL,
    ACCRUED: ACCRUED,
}
_ORDER = {key: place for place, key in enumerate(LABELS)}


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one run cost in one month, for one cause, at one kind of price. cents: of its currency."""

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
    """The invoice of these charges, none of which reaches from one month into another."""
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
    worth = Fraction(repr(currency.usd_per))
    by_month: dict[str, list[_Open]] = {}
    for one in sorted(found.values(), key=lambda one: (one.month.name, one.report.run, _ORDER[one.cause])):
        by_month.setdefault(one.month.name, []).append(one)
    lines = []
    for opened in by_month.values():
        cents = in_cents([one.usd / worth for one in opened])
        lines += [_line(one, part) for one, part in zip(opened, cents, strict=True)]
    months = {name: sum(line.cents for line in lines if line.month == name) for name in by_month}
    return Invoice(
        currency=currency.code,
        usd_per=currency.usd_per,
        cents=sum(months.values()),
        months=months,
        lines=tuple(lines),
    )


def in_cents(amounts: Sequence[Fraction]) -> list[int]:
    """Whole cents that sum to the rounded total: each rounded down, and one more where most was cut off."""
    exact = [amount * CENTS for amount in amounts]
    whole = [int(amount // 1) for amount in exact]
    missing = round(sum(exact, Fraction())) - sum(whole)
    by_rest = sorted(range(len(exact)), key=lambda index: (whole[index] - exact[index], index))
    for index in by_rest[:missing]:
        whole[index] += 1
    return whole


def _line(one: _Open, cents: int) -> InvoiceLine:
    report = one.report
    return InvoiceLine(
        month=one.month.name,
        from_ns=one.from_ns,
        to_ns=one.to_ns,
        run=report.run,
        name=report.name,
        team=report.team,
        project=report.project,
        cluster=report.cluster,
        chip=report.chip or "",
        kind=one.kind,
        cause=one.cause,
        gpu_ns=one.gpu_ns,
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
COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_Cause",
    "x_Cluster",
    "x_Project",
)
"""In the order of the specification; its own columns first, then ours, which it wants to begin with `x_`."""

_HOURS_DECIMALS = 9
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def focus_csv(found: Invoice, months: Iterable[Month]) -> str:
    """The invoice as CSV; a column that a line has nothing for is empty there."""
    bounds = {month.name: month for month in months}
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for line in found.lines:
        writer.writerow(_row(line, bounds[line.month], found))
    return out.getvalue()


def _row(line: InvoiceLine, month: Month, found: Invoice) -> dict[str, str]:
    cost = f"{line.cents // CENTS}.{line.cents % CENTS:02}"
    hours = f"{line.gpu_ns / HOUR_NS:.{_HOURS_DECIMALS}f}"
    price = f"{line.usd / found.usd_per / (line.gpu_ns / HOUR_NS):.6f}"
    tags = {
        name: value
        for name, value in (
            ("team", line.team),
            ("project", line.project),
            ("cluster", line.cluster),
            ("run", line.run),
            ("cause", line.cause),
            ("price", line.kind or ""),
        )
        if value
    }
    return {
        "BilledCost": cost,
        "BillingAccountId": PROVIDER,
        "BillingAccountName": PROVIDER,
        "BillingCurrency": found.currency,
        "BillingPeriodEnd": _stamp(month.to_ns),
        "BillingPeriodStart": _stamp(month.from_ns),
        "ChargeCategory": "Usage",
        "ChargeDescription": _text(f"{LABELS[line.cause]}, run {line.run}"),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _stamp(line.to_ns),
        "ChargePeriodStart": _stamp(line.from_ns),
        "ConsumedQuantity": hours,
        "ConsumedUnit": "GPU-Hours",
        "ContractedCost": cost,
        "ContractedUnitPrice": price,
        "EffectiveCost": cost,
        "InvoiceId": f"{PROVIDER}-{line.month}",
        "InvoiceIssuerName": PROVIDER,
        "ListCost": cost,
        "ListUnitPrice": price,
        "PricingCategory": _PRICING[line.kind],
        "PricingQuantity": hours,
        "PricingUnit": "GPU-Hours",
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "ResourceId": _text(line.run),
        "ResourceName": _text(line.name or line.run),
        "ResourceType": _text(line.chip.upper() or "GPU"),
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "GPU training",
        "ServiceSubcategory": "Machine Learning",
        "SubAccountId": _text(line.team),
        "SubAccountName": _text(line.team),
        "Tags": json.dumps(tags, ensure_ascii=False, separators=(",", ":")),
        "x_Cause": line.cause,
        "x_Cluster": _text(line.cluster),
        "x_Project": _text(line.project),
    }


def _stamp(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: str) -> str:
    """A name that a spreadsheet would take for a formula is quoted, as it is text."""
    return f"'{value}" if value.startswith(_FORMULAS) else value
