"""What things cost: read from a small policy file, with a sourced default for what it does not say.

Every price says where it comes from and whether it is assumed, so that whoever computes with it can show it.
The file is TOML, its keys are the fields of `Prices`; docs/cost.md describes it. Nothing here does I/O.
"""

import tomllib
from difflib import get_close_matches

import msgspec

from holdfast.ledger.flops import Chip, chip_named
from holdfast.record.errors import InputError

GIVEN = "the prices file"
RECORDED = "recorded in the run"
HOURS_PER_DAY = 24
TEAM_TARGETS = "team_targets"
KEY_LIKENESS_MIN = 0.5
"""How alike a mistyped key and a known one are for the known one to be suggested."""

PRICE_MAX = 1e15
"""More than anything costs, and little enough that no product of prices and GPU-hours overflows."""

_A_DAY_OF_THE_RUN = "a day of the run's GPUs at their price"
_LIST_PRICES = "list prices of August 2026"
_SRE_BOOK = "Google's SRE book (2016), chapter 11"


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """A price, where it comes from, and whether it is assumed: neither given by the user nor recorded."""

    value: float
    assumed: bool
    source: str


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What things cost an organisation.

    usd_per_gpu_hour          paid for a GPU-hour, used or not
    opportunity_multiplier    what others would pay for the same GPU-hour, over its price; at least 1
    labour_usd_per_hour       an hour of somebody who responds to incidents, all costs included
    responders                people who work on an incident until it is over
    follow_up_hours           hours of one person afterwards: finding the cause, mending, writing it up
    paged_after_minutes       an incident that is over sooner calls nobody
    usd_per_day_of_delay      the run being done a day later; None: see `day_of_delay`
    egress_usd_per_gb         moving a GB out of the cloud or region it is in
    storage_usd_per_gb_month  keeping a GB for a month
    team_targets              team to the share of its GPU-time that should be useful, 0 to 1
    """

    usd_per_gpu_hour: Priced
    opportunity_multiplier: Priced
    labour_usd_per_hour: Priced
    responders: Priced
    follow_up_hours: Priced
    paged_after_minutes: Priced
    usd_per_day_of_delay: Priced | None
    egress_usd_per_gb: Priced
    storage_usd_per_gb_month: Priced
    team_targets: dict[str, Priced]

    def for_chip(self, chip: str | None) -> "Prices":
        """With the list price of this chip, unless the price of a GPU-hour is known."""
        if chip is None or not self.usd_per_gpu_hour.assumed:
            return self
        return msgspec.structs.replace(self, usd_per_gpu_hour=list_price(chip))

    def at(self, usd_per_gpu_hour: float) -> "Prices":
        """With this price of a GPU-hour, which was recorded: it is what was paid, whatever the file says."""
        recorded = Priced(value=usd_per_gpu_hour, assumed=False, source=RECORDED)
        return msgspec.structs.replace(self, usd_per_gpu_hour=recorded)

    def for_run(self, usd_per_gpu_hour: float | None, chip: str | None) -> "Prices":
        """With what a GPU-hour of a run costs: as recorded, else as given, else its chip's list price."""
        return self.for_chip(chip) if usd_per_gpu_hour is None else self.at(usd_per_gpu_hour)

    def day_of_delay(self, gpus: float) -> Priced:
        """A day later, in USD. If not given: a day of these GPUs, held that much longer; the least it can be.

        What a delay is worth beyond that (a release, a customer, a competitor) only its owner can say.
        """
        if self.usd_per_day_of_delay is not None:
            return self.usd_per_day_of_delay
        return Priced(
            value=HOURS_PER_DAY * gpus * self.usd_per_gpu_hour.value,
            assumed=True,
            source=_A_DAY_OF_THE_RUN,
        )


def _assumed(value: float, source: str) -> Priced:
    return Priced(value=value, assumed=True, source=source)


_USD_PER_GPU_HOUR: dict[Chip, Priced] = {
    "a100": _assumed(2.79, f"A100 80 GB, the lowest of the {_LIST_PRICES} (2.79 to 4.10)"),
    "h100": _assumed(3.99, f"H100, Lambda, {_LIST_PRICES} (1.87 to 14.21)"),
    "h200": _assumed(4.50, f"H200, the lowest of the {_LIST_PRICES} (4.50 to 9.31)"),
    "b200": _assumed(6.69, f"B200, the lowest of the {_LIST_PRICES} (6.69 to 19.33)"),
}
_LISTED_AS: dict[Chip, Chip] = {"h800": "h100", "b300": "b200", "gb200": "b200", "gb300": "b200"}
"""Chips of which no list price is at hand, and the nearest of which there is one."""

DEFAULTS = Prices(
    usd_per_gpu_hour=_USD_PER_GPU_HOUR["h100"],
    opportunity_multiplier=_assumed(2.05, f"H100, {_LIST_PRICES}: Azure's 8.19 over Lambda's 3.99"),
    labour_usd_per_hour=_assumed(
        91.0,
        "US Bureau of Labor Statistics, 2022: a software developer's mean wage, 132,930 USD for 2,080 hours, "
        "as 70.4 % of the cost, the share of wages in all private industry",
    ),
    responders=_assumed(2.0, f"{_SRE_BOOK}: a primary and a secondary on call"),
    follow_up_hours=_assumed(6.0, f"{_SRE_BOOK}: six hours to find, mend and write up"),
    paged_after_minutes=_assumed(5.0, f"{_SRE_BOOK}: five minutes to respond if urgent"),
    usd_per_day_of_delay=None,
    egress_usd_per_gb=_assumed(0.09, "Amazon S3, us-east-1, to the internet, the first 10 TB of a month"),
    storage_usd_per_gb_month=_assumed(0.023, "Amazon S3 Standard, us-east-1, the first 50 TB"),
    team_targets={},
)
"""What holds where nobody says otherwise."""

_MEANINGS = {
    "usd_per_gpu_hour": "USD paid for a GPU-hour, used or not. By chip where a run declares its chip.",
    "opportunity_multiplier": "What others would pay for the same GPU-hour, over its price (at least 1).",
    "labour_usd_per_hour": "USD for an hour of somebody who responds to incidents, all costs included.",
    "responders": "People who work on an incident until it is over.",
    "follow_up_hours": "Hours of one person after it: finding the cause, mending, writing it up.",
    "paged_after_minutes": "An incident that is over within so many minutes calls nobody.",
    "usd_per_day_of_delay": "USD lost by being done a day later. Only you can know it.",
    "egress_usd_per_gb": "USD for moving a GB out of the cloud or region it is in.",
    "storage_usd_per_gb_month": "USD for keeping a GB for a month.",
}
"""Every key that is a number, in the order of the template."""

_LEAST = {"opportunity_multiplier": 1.0}
"""The least a key may be, where that is not 0."""


def list_price(chip: str) -> Priced:
    """The list price of a GPU-hour of this chip; of an unknown one, the default's."""
    try:
        known = chip_named(chip)
    except InputError:
        default = DEFAULTS.usd_per_gpu_hour
        return _assumed(default.value, f"no list price is at hand for {chip}; {default.source}")
    if known in _USD_PER_GPU_HOUR:
        return _USD_PER_GPU_HOUR[known]
    nearest = _USD_PER_GPU_HOUR[_LISTED_AS[known]]
    return _assumed(nearest.value, f"no list price is at hand for the {known.upper()}; {nearest.source}")


def read(text: str) -> Prices:
    """The prices in a policy file. What it does not say is assumed; what it says wrongly is refused."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"The prices are not TOML: {error}.", hint="`holdfast cost --example-prices` prints a template."
        ) from None
    given: dict[str, Priced | dict[str, Priced]] = {}
    for key, value in found.items():
        if key == TEAM_TARGETS:
            given[key] = _targets(value)
        elif key in _MEANINGS:
            given[key] = _given(key, value, least=_LEAST.get(key, 0.0), most=PRICE_MAX)
        else:
            raise _unknown(key)
    return msgspec.structs.replace(DEFAULTS, **given)


def template() -> str:
    """A policy file with every key, its meaning and its default, all commented out."""
    lines = ["# What things cost. What is left out is assumed, and shown as such."]
    for key, meaning in _MEANINGS.items():
        default: Priced | None = getattr(DEFAULTS, key)
        if default is None:
            source, value = _A_DAY_OF_THE_RUN, "100000"
        else:
            source, value = default.source, f"{default.value:g}"
        lines += ["", f"# {meaning}", f"# Assumed otherwise: {source}.", f"# {key} = {value}"]
    lines += [
        "",
        "# The share of each team's GPU-time that should be useful, 0 to 1.",
        f"# [{TEAM_TARGETS}]",
        "# pretraining = 0.9",
    ]
    return "\n".join(lines) + "\n"


def _targets(value: object) -> dict[str, Priced]:
    if not isinstance(value, dict):
        raise InputError(
            f"`{TEAM_TARGETS}` in the prices is no table.",
            hint=f"Write `[{TEAM_TARGETS}]`, and below it a line for each team, as in `pretraining = 0.9`.",
        )
    return {
        str(team): _given(f"{TEAM_TARGETS}.{team}", share, least=0.0, most=1.0)
        for team, share in value.items()
    }


def _given(key: str, value: object, *, least: float, most: float) -> Priced:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(
            f"`{key}` in the prices is {_kind(value)}, and must be a number.",
            hint=f"Write it without quotes or units, as in `{key.rpartition('.')[2]} = 1.5`.",
        )
    if not least <= value <= most:
        bounds = f"between {least:g} and {most:g}"
        raise InputError(
            f"`{key}` in the prices is {value!s:.40}, and must be {bounds}.",
            hint=_within_hint(key, value, most),
        )
    return Priced(value=float(value), assumed=False, source=GIVEN)


def _within_hint(key: str, value: float, most: float) -> str:
    """Nobody assumes a team's target; who writes one as a percentage is told the share."""
    if not key.startswith(TEAM_TARGETS):
        return "Leave it out to have it assumed."
    share = value / 100 if most < value <= 100 else 0.9
    return f"Write the share, as in `{key.rpartition('.')[2]} = {share:g}`."


def _kind(value: object) -> str:
    kinds = {bool: "true or false", str: "text", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")


def _unknown(key: str) -> InputError:
    known = (*_MEANINGS, TEAM_TARGETS)
    near = get_close_matches(key, known, n=1, cutoff=KEY_LIKENESS_MIN)
    hint = f"Did you mean `{near[0]}`?" if near else f"Known are {', '.join(known)}."
    return InputError(f"The prices have no key `{key}`.", hint=hint)
