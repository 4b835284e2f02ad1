"""Amounts, times and names as an alert or a runbook writes them: few digits, UTC, no locale."""

from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.topology.hostlist import fold

HOSTS_CHARS_MAX = 80

_UNITS_S = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_CENTS_BELOW = 100
_SECOND_NS = 10**9


def money(usd: float) -> str:
    return f"{usd:,.2f} USD" if abs(usd) < _CENTS_BELOW else f"{usd:,.0f} USD"


def share(ratio: float) -> str:
    """`34 %`. What is not nothing is never written as nothing, and what is not all never as all."""
    written = f"{100 * ratio:.0f} %"
    if ratio > 0 and written == "0 %":
        return "< 1 %"
    return "> 99 %" if ratio < 1 and written == "100 %" else written


def lasting(seconds: float) -> str:
    """The two largest units: `3 h 20 min`, `4 min 10 s`, `8 s`."""
    left_s = max(0, round(seconds))
    parts: list[str] = []
    for unit, unit_s in _UNITS_S:
        count, left_s = divmod(left_s, unit_s)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2])) or "0 s"


def moment(at_ns: int) -> str:
    """To the second, and as every tool takes it back: `2026-03-02T09:11:40Z`."""
    return f"{datetime.fromtimestamp(at_ns // _SECOND_NS, UTC):%Y-%m-%dT%H:%M:%SZ}"


def listed(names: Sequence[str], most: int) -> str:
    """`n00001, n00002 and 14 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def members(names: Sequence[str]) -> str:
    """`16 members, n[00000-00015]`: without the run that is said beside it, and no longer than a line."""
    hosts = fold(name.rpartition("/")[2] for name in names)
    count = "1 member" if len(names) == 1 else f"{len(names):,} members"
    return f"{count}, {hosts}" if len(hosts) <= HOSTS_CHARS_MAX else f"{count}, {hosts[:HOSTS_CHARS_MAX]}…"
