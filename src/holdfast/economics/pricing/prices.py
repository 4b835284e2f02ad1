"""Prices, read from a small policy file, with a sourced default for each missing one.

Every price has its source and says whether it is assumed, so that results can show both. The file is TOML,
its keys are the fields of `Prices`; docs/cost.md describes it, and the tables of its template are in
prices.toml beside this module, which does no other I/O.
"""

import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from importlib.resources import files
from math import prod

import msgspec

from holdfast import wording
from holdfast.economics.pricing.rates import RATES, USD, PricedSubject, Rate, RateLine, read_rates, worth_usd
from holdfast.ledger.flops import Chip, chip_named
from holdfast.record.errors import InputError, nearest
from holdfast.record.events import CPU
from holdfast.wording.units import HOURS_PER_DAY

GIVEN = "the prices file"
RECORDED = "recorded in the run"
TEAM_TARGETS = "team_targets"
TEAM_BUDGETS = "team_budgets"
PROJECT_BUDGETS = "project_budgets"
PLANNED_STEPS = "planned_steps"
FACTORS = "factors"
FACTOR_MIN, FACTOR_MAX = 0.3, 100.0
"""A tax of 19 % is the factor 1.19; 0.19 by mistake would silently cut every price to a fifth."""
RETIRED = "storage_usd_per_gb_month"
CURRENCY = "currency"
USD_PER = "usd_per"
KEY_LIKENESS_MIN = 0.5
"""A known key at least this similar to a mistyped one is suggested."""

WORTH_MIN, WORTH_MAX = 1e-6, 1e6
"""Worth of one unit of a currency, in USD: a Lebanese pound is 1e-5, a bitcoin 1e5."""
PRICE_MAX = 1e15
"""Larger than any real price, and small enough that no product with GPU-hours overflows."""

_A_DAY_OF_THE_RUN = "a day of the run's GPUs at their price"
_LIST_PRICES = "list prices of August 2026"
_SRE_BOOK = "Google's SRE book (2016), chapter 11"


def exactly(value: float) -> Fraction:
    """The decimal number as written, not the nearest binary one."""
    return Fraction(repr(value))


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """A price, its source, and whether it is assumed: neither given by the user nor recorded."""

    value: float
    assumed: bool
    source: str


class Currency(msgspec.Struct, frozen=True, kw_only=True):
    """The currency of a report, and the given worth of one unit in USD."""

    code: str = USD
    usd_per: float = 1.0

    def said(self, amount_usd: float | Fraction, decimals: int = 2) -> str:
        return f"{float(amount_usd) / self.usd_per:,.{decimals}f} {self.code}"


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """An organisation's prices.

    Fields that are not in `_MEANINGS`:

    usd_per_day_of_delay      None: see `day_of_delay`
    team_targets              team to the share of its GPU-time that should be useful, 0 to 1
    goodput_target            the same for all together
    budget                    USD a month for everything
    team_budgets              team to USD a month
    project_budgets           project to USD a month
    planned_steps             run, by id or name, to its planned number of steps
    rates                     prices of a GPU-hour over time, see `rates`
    factors                   multiply every price of a GPU-hour: tax, overhead
    currency                  the currency of reports
    """

    usd_per_gpu_hour: Priced
    opportunity_multiplier: Priced
    labour_usd_per_hour: Priced
    responders: Priced
    follow_up_hours: Priced
    paged_after_minutes: Priced
    usd_per_day_of_delay: Priced | None
    egress_usd_per_gb: Priced
    team_targets: dict[str, Priced]
    goodput_target: Priced | None = None
    budget: Priced | None = None
    team_budgets: dict[str, Priced] = {}
    project_budgets: dict[str, Priced] = {}
    planned_steps: dict[str, Priced] = {}
    rates: tuple[Rate, ...] = ()
    factors: dict[str, Priced] = {}
    currency: Currency = Currency()

    @property
    def factor(self) -> Fraction:
        return prod((exactly(factor.value) for factor in self.factors.values()), start=Fraction(1))

    def steps_planned(self, run: str, name: str) -> Priced | None:
        """How many steps a run of this id and name has to do; None if the file does not say."""
        return self.planned_steps.get(run) or self.planned_steps.get(name)

    def for_chip(self, chip: str | None) -> "Prices":
        """The prices with the list price of this chip, unless the price of a GPU-hour is known."""
        if chip is None or not self.usd_per_gpu_hour.assumed:
            return self
        return msgspec.structs.replace(self, usd_per_gpu_hour=list_price(chip))

    def at(self, usd_per_gpu_hour: float) -> "Prices":
        """The prices with this recorded price of a GPU-hour: it was paid, whatever the file says."""
        recorded = Priced(value=usd_per_gpu_hour, assumed=False, source=RECORDED)
        return msgspec.structs.replace(self, usd_per_gpu_hour=recorded)

    def said_paid(self, recorded: float) -> str:
        """A recorded price in words, and what it is with the factors."""
        said = f"{self.currency.said(recorded)} a GPU-hour (cost.rate), which is what was paid"
        if not self.factors:
            return said
        return f"{said} before the factors: {self.currency.said(exactly(recorded) * self.factor)} with them"

    def holding(self, at_ns: int) -> "Prices":
        """The prices for a plan: only the rates that hold at this moment, without an end."""
        rates = tuple(
            msgspec.structs.replace(rate, from_ns=None, to_ns=None)
            for rate in self.rates
            if (rate.from_ns is None or rate.from_ns <= at_ns) and (rate.to_ns is None or at_ns < rate.to_ns)
        )
        return msgspec.structs.replace(self, rates=rates)

    def planned(self, chip: str | None, recorded: float | None = None) -> Priced:
        """The price of a GPU-hour for a plan, with the factors; call it on prices from `holding`.

        As recorded, else by a rate for any run or this chip, else the file's single price or the chip's.
        """
        if recorded is not None:
            price = self.at(recorded).usd_per_gpu_hour
        elif (rate := RateLine.of(self.rates, PricedSubject(chip=chip or "")).rates[0]) is not None:
            price = Priced(value=rate.usd_per_gpu_hour, assumed=False, source=rate.source)
        else:
            price = self.for_chip(chip).usd_per_gpu_hour
        return self.with_factors(price)

    def of_cpu_members(self, run: str) -> Priced | None:
        """The price of an hour of this run's members, which have no GPU; call it on prices from `holding`.

        Only a rate for such members or for the run gives one.
        """
        rates = [one for one in self.rates if one.chip or one.run]
        rate = RateLine.of(rates, PricedSubject(run=run, chip=CPU)).rates[0]
        if rate is None:
            return None
        return self.with_factors(Priced(value=rate.usd_per_gpu_hour, assumed=False, source=rate.source))

    def with_factors(self, price: Priced) -> Priced:
        """The price with all factors applied."""
        if not self.factors:
            return price
        said = " ".join(f"× {wording.number(factor.value)} {name}" for name, factor in self.factors.items())
        value = float(exactly(price.value) * self.factor)
        return Priced(value=value, assumed=price.assumed, source=f"{price.source}; {said}")

    def day_of_delay(self, gpus: float) -> Priced:
        """The cost of a day of delay in USD. If not given: a day of these GPUs, which is the least it can be.

        Only the owner can say what a delay costs beyond that (a release, a customer, a competitor).
        """
        if self.usd_per_day_of_delay is not None:
            return self.usd_per_day_of_delay
        return Priced(
            value=HOURS_PER_DAY * gpus * self.usd_per_gpu_hour.value,
            assumed=True,
            source=_A_DAY_OF_THE_RUN,
        )


def assumed(value: float, source: str) -> Priced:
    return Priced(value=value, assumed=True, source=source)


_USD_PER_GPU_HOUR: dict[Chip, Priced] = {
    "a100": assumed(2.79, f"A100 80 GB, the lowest of the {_LIST_PRICES} (2.79 to 4.10)"),
    "h100": assumed(3.99, f"H100, Lambda, {_LIST_PRICES} (1.87 to 14.21)"),
    "h200": assumed(4.50, f"H200, the lowest of the {_LIST_PRICES} (4.50 to 9.31)"),
    "b200": assumed(6.69, f"B200, the lowest of the {_LIST_PRICES} (6.69 to 19.33)"),
}
_LISTED_AS: dict[Chip, Chip] = {"h800": "h100", "b300": "b200", "gb200": "b200", "gb300": "b200"}
"""Chips without a known list price, and the nearest chip with one."""

DEFAULTS = Prices(
    usd_per_gpu_hour=_USD_PER_GPU_HOUR["h100"],
    opportunity_multiplier=assumed(2.05, f"H100, {_LIST_PRICES}: Azure's 8.19 over Lambda's 3.99"),
    labour_usd_per_hour=assumed(
        91.0,
        "US Bureau of Labor Statistics, 2022: a software developer's mean wage, 132,930 USD for 2,080 hours, "
        "as 70.4 % of the cost, the share of wages in all private industry",
    ),
    responders=assumed(2.0, f"{_SRE_BOOK}: a primary and a secondary on call"),
    follow_up_hours=assumed(6.0, f"{_SRE_BOOK}: six hours to find, fix and write up"),
    paged_after_minutes=assumed(5.0, f"{_SRE_BOOK}: five minutes to respond if urgent"),
    usd_per_day_of_delay=None,
    egress_usd_per_gb=assumed(0.09, "Amazon S3, us-east-1, to the internet, the first 10 TB of a month"),
    team_targets={},
)
"""The prices without a prices file."""

_MEANINGS = {
    "usd_per_gpu_hour": "USD paid for a GPU-hour, used or not. By chip if a run declares its chip.",
    "opportunity_multiplier": "What others would pay for the same GPU-hour, over its price (at least 1).",
    "labour_usd_per_hour": "USD for an hour of a person who responds to incidents, all costs included.",
    "responders": "People who work on an incident until it is over.",
    "follow_up_hours": "Hours of one person after it: finding the cause, fixing it, writing it up.",
    "paged_after_minutes": "People are not called for an incident that is over within this many minutes.",
    "usd_per_day_of_delay": "USD lost by being done a day later. Only you can know it.",
    "egress_usd_per_gb": "USD for moving a GB out of the cloud or region it is in.",
}
"""The keys with a number and a default, in the order of the template."""

_WISHES = ("goodput_target", "budget")
_TABLES = (TEAM_TARGETS, TEAM_BUDGETS, PROJECT_BUDGETS, PLANNED_STEPS, FACTORS)
_KEYS = (*_MEANINGS, *_WISHES, *_TABLES, RATES, CURRENCY, USD_PER)

_LEAST = {"opportunity_multiplier": 1.0}
"""The least value of a key, if it is not 0."""


def list_price(chip: str) -> Priced:
    """The list price of a GPU-hour of this chip; the default for an unknown chip."""
    try:
        known = chip_named(chip)
    except InputError:
        default = DEFAULTS.usd_per_gpu_hour
        return assumed(default.value, f"no known list price for {chip}; {default.source}")
    if known in _USD_PER_GPU_HOUR:
        return _USD_PER_GPU_HOUR[known]
    nearest = _USD_PER_GPU_HOUR[_LISTED_AS[known]] if known in _LISTED_AS else DEFAULTS.usd_per_gpu_hour
    return assumed(nearest.value, f"no known list price for the {known.upper()}; {nearest.source}")


def read(text: str) -> Prices:
    """The prices in a policy file. Missing prices are assumed; invalid ones raise `InputError`."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"The prices are not TOML: {error}.", hint="`holdfast cost --example-prices` prints a template."
        ) from None
    for key in found:
        if key not in _KEYS:
            raise _unknown(key)
    usd_per = _usd_per(found.get(USD_PER, {}))
    currency = _currency(found.get(CURRENCY, USD), usd_per)
    given: dict[str, object] = {CURRENCY: currency, RATES: read_rates(found.get(RATES, []), usd_per)}
    readers: Mapping[str, Callable[[str, object], object]] = {
        **dict.fromkeys((TEAM_BUDGETS, PROJECT_BUDGETS), lambda key, value: _budgets(key, value, currency)),
        TEAM_TARGETS: lambda key, value: _table(key, value, least=0.0, most=1.0),
        PLANNED_STEPS: lambda key, value: _table(key, value, least=1.0, most=PRICE_MAX),
        FACTORS: lambda key, value: _table(key, value, least=FACTOR_MIN, most=FACTOR_MAX),
        "goodput_target": lambda key, value: _given(key, value, least=0.0, most=1.0),
        "budget": lambda key, value: _in_usd(_given(key, value, least=0.0, most=PRICE_MAX), currency),
    }
    for key in found.keys() - given.keys() - {USD_PER}:
        if key in readers:
            given[key] = readers[key](key, found[key])
        else:
            given[key] = _given(key, found[key], least=_LEAST.get(key, 0.0), most=PRICE_MAX)
    return msgspec.structs.replace(DEFAULTS, **given)


def _currency(code: object, usd_per: Mapping[str, float]) -> Currency:
    if not isinstance(code, str) or not code.strip():
        raise InputError(f"`{CURRENCY}` in the prices must be text.", hint=f'Write `{CURRENCY} = "EUR"`.')
    return Currency(code=code, usd_per=worth_usd(code, usd_per, "The report"))


def _usd_per(value: object) -> dict[str, float]:
    """The worth of one unit of each currency in USD."""
    found = _table(USD_PER, value, least=WORTH_MIN, most=WORTH_MAX)
    if USD in found and found[USD].value != 1:
        raise InputError(
            f"`{USD_PER}.{USD}` in the prices is not 1.", hint="All other currencies are given in USD."
        )
    return {code: priced.value for code, priced in found.items()}


def _budgets(key: str, value: object, currency: Currency) -> dict[str, Priced]:
    found = _table(key, value, least=0.0, most=PRICE_MAX)
    return {name: _in_usd(amount, currency) for name, amount in found.items()}


def _in_usd(amount: Priced, currency: Currency) -> Priced:
    """Convert a budget, which is written in the currency of the report."""
    return msgspec.structs.replace(amount, value=amount.value * currency.usd_per)


def template() -> str:
    """A policy file with every key, its meaning and its default, all commented out."""
    lines = ["# Prices. A price that is left out is assumed, and marked so."]
    for key, meaning in _MEANINGS.items():
        default: Priced | None = getattr(DEFAULTS, key)
        if default is None:
            source, value = _A_DAY_OF_THE_RUN, "100000"
        else:
            source, value = default.source, wording.plain(default.value)
        lines += ["", f"# {meaning}", f"# Assumed otherwise: {source}.", f"# {key} = {value}"]
    tables = files("holdfast.economics.pricing").joinpath("prices.toml").read_text("utf-8")
    return "\n".join((*lines, tables))


_LINES = {
    TEAM_TARGETS: "each team, as in `pretraining = 0.9`",
    TEAM_BUDGETS: "each team, as in `pretraining = 1_500_000`",
    PROJECT_BUDGETS: "each project, as in `assistant = 500_000`",
    PLANNED_STEPS: "each run, as in `pretrain-70b = 100_000`",
    FACTORS: "each factor, as in `tax = 1.19`",
    USD_PER: "each currency, as in `EUR = 1.08`",
}


def _table(key: str, value: object, *, least: float, most: float) -> dict[str, Priced]:
    if not isinstance(value, dict):
        raise InputError(
            f"`{key}` in the prices is not a table.",
            hint=f"Write `[{key}]`, and below it a line for {_LINES[key]}.",
        )
    return {str(name): _given(f"{key}.{name}", one, least=least, most=most) for name, one in value.items()}


def _given(key: str, value: object, *, least: float, most: float) -> Priced:
    found = number(key, value, "the prices")
    if not least <= found <= most:
        raise beyond(key, found, "the prices", (least, most), hint=_within_hint(key, found, most))
    return Priced(value=float(found), assumed=False, source=GIVEN)


def number(key: str, value: object, where: str) -> float:
    """The number under this key in a file; `InputError` if it is not a number. where: which file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kinds = {bool: "true or false", str: "text", list: "a list", dict: "a table"}
        raise InputError(
            f"`{key}` in {where} is {kinds.get(type(value), 'a date or time')}, and must be a number.",
            hint=f"Write it without quotes or units, as in `{key.rpartition('.')[2]} = 1.5`.",
        )
    return value


def beyond(key: str, value: float, where: str, bounds: tuple[float, float], *, hint: str) -> InputError:
    between = f"between {wording.number(bounds[0])} and {wording.number(bounds[1])}"
    return InputError(f"`{key}` in {where} is {value!s:.40}, and must be {between}.", hint=hint)


def _within_hint(key: str, value: float, most: float) -> str:
    """How to fix a value out of bounds. Targets have no default; a percentage is shown as a share."""
    if key.startswith(FACTORS):
        return "A factor multiplies the price: 19 % more is 1.19, 60 % off is 0.4."
    if not key.startswith((TEAM_TARGETS, "goodput_target")):
        return "Leave it out to use the default." if key in _MEANINGS else "Write a number within the bounds."
    share = value / 100 if most < value <= 100 else 0.9
    return f"Write the share, as in `{key.rpartition('.')[2]} = {wording.number(share)}`."


def _unknown(key: str) -> InputError:
    if key == RETIRED:
        return InputError(
            f"`{key}` in the prices had no effect and was removed.", hint="Delete its line from the file."
        )
    hint = nearest(key, _KEYS, f"Known are {', '.join(_KEYS)}.", likeness=KEY_LIKENESS_MIN, quote="`")
    return InputError(f"The prices have no key `{key}`.", hint=hint)
