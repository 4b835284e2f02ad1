"""Prices as a time line: the price of a GPU-hour in a period, for a run, team, cluster or GPU type.

They are the `[[rates]]` of the prices file; docs/cost.md describes them. Of the rates that hold at a moment
the most specific counts: one for a run before one for a team, then a cluster, then a GPU type, then a rate
for all; among equals, the last in the file. This module does no I/O.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from difflib import get_close_matches
from heapq import heappop, heappush
from typing import Literal, get_args

import msgspec

from holdfast import wording
from holdfast.ledger.flops import chip_named
from holdfast.record.errors import InputError, nearest

RATES = "rates"
RATES_MAX = 20_000
"""More than two years of hourly prices."""
RATE_MAX = 1e6
NAME_LIKENESS_MIN = 0.6

Kind = Literal["reserved", "on-demand", "spot", "owned"]
KINDS: tuple[str, ...] = get_args(Kind)
SUBJECTS = ("run", "team", "cluster", "chip")
"""What a rate may be for, the most specific first."""
USD = "USD"
_KEYS = ("per_gpu_hour", "currency", "kind", "from", "to", *SUBJECTS)
_EXAMPLE = "`[[rates]]`, and below it `per_gpu_hour = 2.5` and `from = 2026-10-01`"


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """One price. usd_per_gpu_hour: converted; number: its place in the file, from 1 on.

    from_ns, to_ns: None: no beginning, or no end. run, team, cluster, chip: empty: for all.
    """

    number: int
    usd_per_gpu_hour: float
    per_gpu_hour: float
    currency: str
    kind: Kind | None
    from_ns: int | None
    to_ns: int | None
    run: str = ""
    team: str = ""
    cluster: str = ""
    chip: str = ""

    @property
    def rank(self) -> tuple[bool, ...]:
        return tuple(bool(getattr(self, subject)) for subject in SUBJECTS)

    @property
    def source(self) -> str:
        named = ", ".join(
            f"{subject} {getattr(self, subject)}" for subject in SUBJECTS if getattr(self, subject)
        )
        what = " ".join(filter(None, (self.kind, f"rate for {named}" if named else "rate")))
        money = "" if self.currency == USD else f", {wording.number(self.per_gpu_hour)} {self.currency}"
        return f"the prices file: {what} (no. {self.number}){money}"


class PricedSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What a price is asked for. name: of the run; a rate may name a run by its id or by its name."""

    run: str = ""
    name: str = ""
    team: str = ""
    cluster: str = ""
    chip: str = ""


class RateLine(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one subject: before the first of `edges_ns`, between two, and after the last."""

    edges_ns: tuple[int, ...]
    rates: tuple[Rate | None, ...]

    @classmethod
    def of(cls, rates: Iterable[Rate], subject: PricedSubject) -> "RateLine":
        # The strongest rate comes first, so that the heap has the strongest current rate on top.
        own = sorted(
            (rate for rate in rates if _concerns(rate, subject)),
            key=lambda rate: (rate.rank, rate.number),
            reverse=True,
        )
        begins: dict[int | None, list[int]] = {}
        for place, rate in enumerate(own):
            begins.setdefault(rate.from_ns, []).append(place)
        edges = tuple(sorted(edges_ns(own)))
        held = begins.get(None, [])
        line = [_winner(own, held, None)]
        for edge in edges:
            for place in begins.get(edge, ()):
                heappush(held, place)
            line.append(_winner(own, held, edge))
        return cls(edges_ns=edges, rates=tuple(line))

    def at(self, at_ns: int) -> Rate | None:
        """The rate at this moment."""
        return self.rates[bisect_right(self.edges_ns, at_ns)]


def _winner(own: Sequence[Rate], held: list[int], at_ns: int | None) -> Rate | None:
    """The strongest of the held rates, after dropping those that are over."""
    while held:
        to_ns = own[held[0]].to_ns
        if to_ns is None or at_ns is None or at_ns < to_ns:
            return own[held[0]]
        heappop(held)
    return None


def edges_ns(rates: Iterable[Rate]) -> set[int]:
    """Every moment at which a price may change."""
    return {edge for rate in rates for edge in (rate.from_ns, rate.to_ns) if edge is not None}


def _concerns(rate: Rate, subject: PricedSubject) -> bool:
    if rate.run and rate.run not in (subject.run, subject.name):
        return False
    for name in ("team", "cluster"):
        if getattr(rate, name) and getattr(rate, name) != getattr(subject, name):
            return False
    return not rate.chip or _chip(rate.chip) == _chip(subject.chip)


def _chip(name: str) -> str:
    """The ledger's name for the chip; for an unknown chip, the name itself."""
    try:
        return chip_named(name) if name else ""
    except InputError:
        return name.lower()


def unmatched(named: Iterable[tuple[str, str, str]], known: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each name that is not in the record, to reveal misspelt ones.

    named: where it stands, the kind of name, the name. known: the names in the record by kind.
    """
    sentences = []
    for where, kind, name in dict.fromkeys(named):
        names = known.get(kind, ())
        alike = {_chip(one) for one in names} if kind == "chip" else set(names)
        if (_chip(name) if kind == "chip" else name) in alike:
            continue
        near = get_close_matches(name, [one for one in names if one], n=1, cutoff=NAME_LIKENESS_MIN)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        sentences.append(f"{where} names the {kind} {name!r}, which no run in the record has{hint}")
    return sentences


# -- the file ------------------------------------------------------------------------------------------


def read_rates(value: object, usd_per: Mapping[str, float]) -> tuple[Rate, ...]:
    """The `[[rates]]` of a prices file. usd_per: the worth of one unit of each currency."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InputError(f"`{RATES}` in the prices is not a list of tables.", hint=f"Write {_EXAMPLE}.")
    if len(value) > RATES_MAX:
        raise InputError(f"The prices have {len(value):,} rates.", hint=f"At most {RATES_MAX:,} are read.")
    return tuple(_rate(number, one, usd_per) for number, one in enumerate(value, start=1))


def _rate(number: int, found: dict[str, object], usd_per: Mapping[str, float]) -> Rate:
    where = f"Rate {number} in the prices"
    for key in found:
        if key not in _KEYS:
            known = f"Known are {', '.join(_KEYS)}."
            hint = nearest(key, _KEYS, known, likeness=NAME_LIKENESS_MIN, quote="`")
            raise InputError(f"{where} has no key `{key:.40}`.", hint=hint)
    price = found.get("per_gpu_hour")
    if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price <= RATE_MAX:
        raise InputError(
            f"{where} has no `per_gpu_hour` between 0 and {RATE_MAX:,.0f}.", hint=f"Write {_EXAMPLE}."
        )
    currency = _text(where, found, "currency") or USD
    kind = _text(where, found, "kind") or None
    if kind is not None and kind not in KINDS:
        raise InputError(f"{where} is of the kind {kind!r:.40}.", hint=f"Known are {', '.join(KINDS)}.")
    from_ns, to_ns = (_moment_ns(where, key, found.get(key)) for key in ("from", "to"))
    if from_ns is not None and to_ns is not None and to_ns <= from_ns:
        raise InputError(f"{where} ends before it begins.", hint="`to` must be later than `from`.")
    return Rate(
        number=number,
        usd_per_gpu_hour=float(price) * worth_usd(currency, usd_per, where),
        per_gpu_hour=float(price),
        currency=currency,
        kind=kind,  # type: ignore[arg-type]  # one of KINDS
        from_ns=from_ns,
        to_ns=to_ns,
        **{subject: _text(where, found, subject) for subject in SUBJECTS},
    )


def worth_usd(currency: str, usd_per: Mapping[str, float], where: str) -> float:
    """The given worth of one unit of this currency in USD."""
    if currency == USD:
        return 1.0
    if currency not in usd_per:
        raise InputError(
            f"{where} is in {currency!r:.20}, whose worth in USD is not given.",
            hint=f"Write `[usd_per]`, and below it its worth, as in `{currency:.20} = 1.08`.",
        )
    return usd_per[currency]


def _text(where: str, found: Mapping[str, object], key: str) -> str:
    value = found.get(key, "")
    if not isinstance(value, str):
        raise InputError(
            f"`{key}` of {where.lower()} must be text.", hint=f'Write it as in `{key} = "name"`.'
        )
    return value


def _moment_ns(where: str, key: str, value: object) -> int | None:
    """A date, a date and time, or either as text; without a zone it is UTC."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if not isinstance(moment, datetime):
        raise InputError(
            f"`{key}` of {where.lower()} is not a date.", hint=f"Write it as in `{key} = 2026-10-01`."
        )
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000
