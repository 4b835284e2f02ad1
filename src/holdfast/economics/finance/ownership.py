"""Own or rent, including reliability: the cost of a useful GPU-hour either way, and the break-even points.

What counts is the useful hour, not the paid one. Owned machines cost the same whether they are used or not,
are out of service now and then, and need spares for that; rented ones cost by the hour. Both lose hours to
restarts, rollbacks and slowness, so goodput counts in both. Inputs come from a small TOML file; missing ones
come from the record or the prices, or are assumed and marked so.
"""

import tomllib
from typing import Literal

import msgspec

from holdfast import wording
from holdfast.economics.pricing.prices import KEY_LIKENESS_MIN, Priced, assumed, beyond, number
from holdfast.ledger.split import unknown_matters
from holdfast.record.errors import InputError, nearest

HOURS_PER_YEAR = 8_766
MONTHS_PER_YEAR = 12
WORKING_HOURS_PER_YEAR = 2_080
POINT = 0.01
"""One point of goodput."""

GIVEN = "the terms given"
MEASURED = "measured in these runs"
_HBD = "InfiniteHBD's trace of 400 nodes over 349 days"
GUESS = "a guess, without a source"

Choice = Literal["own", "rent"]


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of owning and renting GPUs; docs/finance.md says what each means."""

    server_usd_per_gpu: Priced = assumed(
        33_750, "DGX H100, about 270,000 USD (SemiAnalysis, May 2023), over 8"
    )
    network_share: Priced = assumed(0.24, GUESS)
    amortisation_years: Priced = assumed(5, "Amazon's annual report for 2024: from six to five years")
    capital_rate: Priced = assumed(0.08, GUESS)
    power_kw_per_gpu: Priced = assumed(1.275, "DGX H100, 10.2 kW at most (NVIDIA's data sheet), over 8")
    pue: Priced = assumed(1.58, "mean of Uptime Institute's survey of 2023")
    usd_per_kwh: Priced = assumed(0.081, "US industry, mean of 2023: 8.06 cents (EIA)")
    colocation_usd_per_kw_month: Priced = assumed(184.06, "CBRE, North America, second half of 2024")
    staff_per_1000_gpus: Priced = assumed(5, GUESS)
    staff_usd_per_year: Priced = assumed(189_280, "91 USD an hour, 2,080 hours")
    gpu_faults_per_year: Priced = assumed(
        0.091, "Llama 3: 148 faulty GPUs and 72 of their memory, 16,384 GPUs, 54 days"
    )
    repair_usd_per_fault: Priced = assumed(3_375, f"a tenth of a server's price over its GPUs; {GUESS}")
    node_faults_per_1000_days: Priced = assumed(4.20, _HBD)
    outage_days: Priced = assumed(5.54, f"{_HBD}, mean")
    rent_usd_per_gpu_hour: Priced = assumed(3.99, "H100, Lambda, list price of August 2026")
    utilisation: Priced = assumed(0.80, "Meta's research clusters are above 80 % (Kokolis et al. 2024)")
    goodput: Priced = assumed(0.90, "Llama 3: more than 90 % effective training time")
    rent_goodput: Priced = assumed(0.90, "Llama 3: more than 90 % effective training time")

    def completed(
        self, *, rent: Priced | None, labour: Priced, goodput: float | None, known: float | None = 1.0
    ) -> "Terms":
        """The terms with known values in place of assumed ones.

        rent: the present price of a GPU-hour, if any. labour: an hour of a person's work. goodput: as
        measured, in the `known` share of the time. Rented machines are as good as owned ones unless the terms
        say otherwise.
        """
        settled = {
            "staff_usd_per_year": Priced(
                value=labour.value * WORKING_HOURS_PER_YEAR,
                assumed=labour.assumed,
                source=f"{wording.number(labour.value)} USD an hour, {WORKING_HOURS_PER_YEAR:,} hours",
            ),
        }
        if rent is not None:
            settled["rent_usd_per_gpu_hour"] = rent
        if goodput:
            of_known = ""
            if known is not None and unknown_matters(1 - known, 1):
                of_known = f", in the {wording.percent(known)} of their time that is known"
            settled["goodput"] = Priced(value=goodput, assumed=False, source=MEASURED + of_known)
        unsaid = {key: value for key, value in settled.items() if getattr(self, key).assumed}
        completed = msgspec.structs.replace(self, **unsaid)
        if not completed.rent_goodput.assumed:
            return completed
        return msgspec.structs.replace(completed, rent_goodput=completed.goodput)


class YearlyCost(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the yearly cost of a working GPU to its owner."""

    key: str
    label: str
    usd: float


class OwnOrRent(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison. Costs are for one working GPU and include its share of spares.

    spare_share                   extra GPUs per working GPU
    own_usd_per_gpu_hour          an hour of an owned GPU, used or not
    cheaper                       at these terms
    break_even_utilisation        above this, owning is cheaper; over 1: it never is
    break_even_goodput            of owned machines; below this, renting is cheaper; over 1: it always is
    break_even_months             until the saved rent has paid for the machines; None: never
    point_own_usd_per_gpu_year    the worth of one more point of goodput to an owner, per GPU and year
    point_rent_usd_per_gpu_year   the same when as many hours are rented
    curve                         (utilisation, USD per useful GPU-hour owned)
    """

    terms: Terms
    yearly: tuple[YearlyCost, ...]
    spare_share: float
    own_usd_per_gpu_year: float
    own_usd_per_gpu_hour: float
    own_usd_per_useful_gpu_hour: float
    rent_usd_per_useful_gpu_hour: float
    cheaper: Choice
    break_even_utilisation: float
    break_even_goodput: float
    break_even_months: float | None
    point_own_usd_per_gpu_year: float
    point_rent_usd_per_gpu_year: float
    curve: tuple[tuple[float, float], ...]


def compare(terms: Terms) -> OwnOrRent:
    """The cost of a useful GPU-hour either way.

    own  = yearly cost of a working GPU / (hours of a year x utilisation x goodput)
    rent = price of an hour / goodput
    """
    spares = spare_share(terms)
    yearly = _yearly_costs(terms, spares)
    own_year = sum(part.usd for part in yearly)
    used_hours = HOURS_PER_YEAR * terms.utilisation.value
    goodput, rent_goodput = terms.goodput.value, terms.rent_goodput.value
    own_useful = own_year / (used_hours * goodput)
    rent_useful = terms.rent_usd_per_gpu_hour.value / rent_goodput
    # The yearly cost of renting the same useful hours.
    rent_year = rent_useful * used_hours * goodput
    return OwnOrRent(
        terms=terms,
        yearly=yearly,
        spare_share=spares,
        own_usd_per_gpu_year=own_year,
        own_usd_per_gpu_hour=own_year / HOURS_PER_YEAR,
        own_usd_per_useful_gpu_hour=own_useful,
        rent_usd_per_useful_gpu_hour=rent_useful,
        cheaper="own" if own_useful < rent_useful else "rent",
        break_even_utilisation=own_year / (HOURS_PER_YEAR * goodput * rent_useful),
        break_even_goodput=own_year / (used_hours * rent_useful),
        break_even_months=_months(terms, spares, rent_year - own_year),
        point_own_usd_per_gpu_year=own_year * POINT / goodput,
        point_rent_usd_per_gpu_year=rent_year * POINT / goodput,
        curve=tuple(
            (share / 100, own_year / (HOURS_PER_YEAR * share / 100 * goodput)) for share in range(10, 101, 2)
        ),
    )


def spare_share(terms: Terms) -> float:
    """Extra GPUs per working GPU: days out of service for each day at work."""
    return terms.node_faults_per_1000_days.value / 1_000 * terms.outage_days.value


def _yearly_costs(terms: Terms, spares: float) -> tuple[YearlyCost, ...]:
    """The yearly costs. A spare needs capital and a place, but hardly any power and no staff."""
    capital = _capital_usd_per_year(terms)
    place = terms.power_kw_per_gpu.value * terms.colocation_usd_per_kw_month.value * MONTHS_PER_YEAR
    power = terms.power_kw_per_gpu.value * terms.pue.value * HOURS_PER_YEAR * terms.usd_per_kwh.value
    staff = terms.staff_per_1000_gpus.value / 1_000 * terms.staff_usd_per_year.value
    repair = terms.gpu_faults_per_year.value * terms.repair_usd_per_fault.value
    costs = {
        "capital": ("Servers and network, with interest", capital),
        "place": ("Colocation", place),
        "power": ("Power", power),
        "staff": ("Staff", staff),
        "repair": ("Repairs", repair),
        "spares": ("Spares for machines out of service", spares * (capital + place)),
    }
    return tuple(YearlyCost(key=key, label=label, usd=usd) for key, (label, usd) in costs.items())


def _capital_usd(terms: Terms) -> float:
    return terms.server_usd_per_gpu.value * (1 + terms.network_share.value)


def _capital_usd_per_year(terms: Terms) -> float:
    return _capital_usd(terms) * _annuity(terms.capital_rate.value, terms.amortisation_years.value)


def _annuity(rate: float, years: float) -> float:
    """The yearly payment for a loan of one USD over this many years, with interest."""
    return float(rate / (1 - (1 + rate) ** -years)) if rate else 1 / years


def _months(terms: Terms, spares: float, gained_usd_per_year: float) -> float | None:
    """Months until the saved rent, less running costs, has paid for machines and spares."""
    saved = gained_usd_per_year + _capital_usd_per_year(terms) * (1 + spares)
    return MONTHS_PER_YEAR * _capital_usd(terms) * (1 + spares) / saved if saved > 0 else None


# -- the file ------------------------------------------------------------------------------------------

_SHARES = frozenset({"utilisation", "goodput", "rent_goodput"})
_DIVISORS = frozenset({*_SHARES, "amortisation_years", "rent_usd_per_gpu_hour"})
DIVISOR_MIN = 0.001
TERM_MAX = 1e9


def read(text: str) -> Terms:
    """The terms in a file. Missing terms are assumed; invalid ones raise `InputError`."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"The terms of owning are not TOML: {error}.",
            hint="`holdfast finance --example-own` prints a template.",
        ) from None
    return Terms(**{key: _given(key, value) for key, value in found.items()})


def template() -> str:
    """A file with every term, its default and its source, all commented out."""
    lines = [
        "# The terms of owning and renting GPUs. A term that is left out is taken from the prices or the",
        "# record, or assumed and marked so. docs/finance.md says what each one means.",
    ]
    for key in Terms.__struct_fields__:
        default: Priced = getattr(Terms(), key)
        lines += ["", f"# Otherwise: {default.source}.", f"# {key} = {wording.plain(default.value)}"]
    return "\n".join(lines) + "\n"


def _given(key: str, value: object) -> Priced:
    if key not in Terms.__struct_fields__:
        others = "`holdfast finance --example-own` prints all of them."
        hint = nearest(key, Terms.__struct_fields__, others, likeness=KEY_LIKENESS_MIN, quote="`")
        raise InputError(f"The terms of owning have no key `{key:.40}`.", hint=hint)
    where = "the terms of owning"
    found = number(key, value, where)
    bounds = DIVISOR_MIN if key in _DIVISORS else 0.0, 1.0 if key in _SHARES else TERM_MAX
    if not bounds[0] <= found <= bounds[1]:
        raise beyond(key, found, where, bounds, hint="Leave it out to use the default.")
    return Priced(value=float(found), assumed=False, source=GIVEN)
