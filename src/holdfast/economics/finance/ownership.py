"""Own or rent, with reliability in it: what a useful GPU-hour costs either way, and where the two meet.

What counts is not the hour that is paid for but the hour that was useful. Owned machines cost the same
whether they are used or not, are out of service now and then, and need spares for that; rented ones cost by
the hour. Both lose hours to restarts, rollbacks and slowness: goodput is in both. Inputs are read from a
small TOML file; what it does not say is taken from the record or the prices, or assumed, and says so.
"""

import tomllib
from typing import Literal

import msgspec

from holdfast.economics.pricing.prices import KEY_LIKENESS_MIN, Priced, assumed, beyond, number
from holdfast.record.errors import InputError, nearest

HOURS_PER_YEAR = 8_766
MONTHS_PER_YEAR = 12
WORKING_HOURS_PER_YEAR = 2_080
POINT = 0.01
"""One point of goodput."""

GIVEN = "the terms given"
MEASURED = "measured in these runs"
_HBD = "InfiniteHBD's trace of 400 nodes over 349 days"
GUESS = "a guess: no source is at hand"

Choice = Literal["own", "rent"]


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """On what terms GPUs are owned, and rented; docs/finance.md says what each means."""

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

    def completed(self, *, rent: Priced | None, labour: Priced, goodput: float | None) -> "Terms":
        """With what is known from elsewhere wherever these terms do not say otherwise.

        rent: what a GPU-hour costs now, if it costs anything. labour: an hour of somebody. goodput: what was
        measured. Rented machines are as good as owned ones unless they are said to be better or worse.
        """
        known = {
            "staff_usd_per_year": Priced(
                value=labour.value * WORKING_HOURS_PER_YEAR,
                assumed=labour.assumed,
                source=f"{labour.value:g} USD an hour, {WORKING_HOURS_PER_YEAR:,} hours",
            ),
        }
        if rent is not None:
            known["rent_usd_per_gpu_hour"] = rent
        if goodput:
            known["goodput"] = Priced(value=goodput, assumed=False, source=MEASURED)
        unsaid = {key: value for key, value in known.items() if getattr(self, key).assumed}
        completed = msgspec.structs.replace(self, **unsaid)
        if not completed.rent_goodput.assumed:
            return completed
        return msgspec.structs.replace(completed, rent_goodput=completed.goodput)


class YearlyCost(msgspec.Struct, frozen=True, kw_only=True):
    """One part of what a working GPU costs its owner in a year."""

    key: str
    label: str
    usd: float


class OwnOrRent(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison. Costs are of one GPU that works; spares for those that do not are in them.

    spare_share                   GPUs needed besides, so that as many work
    own_usd_per_gpu_hour          an hour of an owned GPU, used or not
    cheaper                       at these terms
    break_even_utilisation        above which owning is cheaper; over 1 where it never is
    break_even_goodput            of owned machines, below which renting is cheaper; over 1 where it always is
    break_even_months             until what is not paid as rent has paid for the machines; None: never
    point_own_usd_per_gpu_year    what one more point of goodput is worth to an owner, a GPU and year
    point_rent_usd_per_gpu_year   and to whoever rents as many hours
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
    """What a useful GPU-hour costs either way.

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
    # What renting the same useful hours would cost in a year.
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
    """GPUs needed besides those that work: for each day at work, so many days out of service."""
    return terms.node_faults_per_1000_days.value / 1_000 * terms.outage_days.value


def _yearly_costs(terms: Terms, spares: float) -> tuple[YearlyCost, ...]:
    """A spare is bought and stands somewhere; it draws no power to speak of and nobody is hired for it."""
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
        "spares": ("Spares for what is out of service", spares * (capital + place)),
    }
    return tuple(YearlyCost(key=key, label=label, usd=usd) for key, (label, usd) in costs.items())


def _capital_usd(terms: Terms) -> float:
    return terms.server_usd_per_gpu.value * (1 + terms.network_share.value)


def _capital_usd_per_year(terms: Terms) -> float:
    return _capital_usd(terms) * _annuity(terms.capital_rate.value, terms.amortisation_years.value)


def _annuity(rate: float, years: float) -> float:
    """What is paid each year for one USD that is paid off in so many years, with interest."""
    return float(rate / (1 - (1 + rate) ** -years)) if rate else 1 / years


def _months(terms: Terms, spares: float, gained_usd_per_year: float) -> float | None:
    """Until machines and spares are paid for by rent not paid, less what running them costs."""
    saved = gained_usd_per_year + _capital_usd_per_year(terms) * (1 + spares)
    return MONTHS_PER_YEAR * _capital_usd(terms) * (1 + spares) / saved if saved > 0 else None


# -- the file ------------------------------------------------------------------------------------------

_SHARES = frozenset({"utilisation", "goodput", "rent_goodput"})
_DIVISORS = frozenset({*_SHARES, "amortisation_years", "rent_usd_per_gpu_hour"})
DIVISOR_MIN = 0.001
TERM_MAX = 1e9


def read(text: str) -> Terms:
    """The terms in a file. What it does not say is assumed; what it says wrongly is refused."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"The terms of owning are not TOML: {error}.",
            hint="`holdfast finance --example-own` prints a template.",
        ) from None
    return Terms(**{key: _given(key, value) for key, value in found.items()})


def template() -> str:
    """A file with every term, its default and where that comes from, all commented out."""
    lines = [
        "# On what terms GPUs are owned and rented. What is left out is taken from the prices and the",
        "# record, or assumed, and shown as such. docs/finance.md says what each one means.",
    ]
    for key in Terms.__struct_fields__:
        default: Priced = getattr(Terms(), key)
        lines += ["", f"# Otherwise: {default.source}.", f"# {key} = {default.value:g}"]
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
        raise beyond(key, found, where, bounds, hint="Leave it out to have it assumed.")
    return Priced(value=float(found), assumed=False, source=GIVEN)
