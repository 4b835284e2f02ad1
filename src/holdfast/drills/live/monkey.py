"""Unannounced drills: times and scenarios drawn from a seed.

Pure: nothing here waits or strikes. A day's drills are the same for the same seed and day, whenever the
monkey is started. Drills that were due while it did not run are not made up for.
"""

import random
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from holdfast.drills.live.scenarios import live_scenario
from holdfast.record.errors import InputError

PER_DAY_MAX = 24
DAYS_AHEAD_MAX = 366
APART_S = 900.0
"""Time between two drills: one must be over before the next."""
LATE_S_MAX = 60.0
"""A drill is skipped if it is later than this: a machine that slept may wake at any hour."""
SAFE = ("worker-killed", "node-lost", "agent-frozen", "half-speed", "coordinator-killed", "two-at-once")
"""Scenarios that need neither root nor a disk of their own."""
WEEKEND = (5, 6)
_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})")


class MonkeyBudget(msgspec.Struct, frozen=True, kw_only=True):
    """per_day: drills at most. hours: from the first to the second, in local time. weekends: also on Saturday
    and Sunday."""

    per_day: int
    hours: tuple[int, int]
    scenarios: tuple[str, ...] = SAFE
    weekends: bool = False


class DueDrill(msgspec.Struct, frozen=True, kw_only=True):
    """seed: chooses the target."""

    at_ns: int
    scenario: str
    seed: int


def read_hours(text: str) -> tuple[int, int]:
    found = _HOURS.fullmatch(text.strip())
    hours = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 <= hours[0] < hours[1] <= 24:
        raise InputError(f"{text!r} are not hours of a day.", hint="Write 9-17: from 9:00 to 17:00.")
    return hours


def require_budget(budget: MonkeyBudget) -> None:
    """Refuse more drills than fit into the hours `APART_S` apart."""
    first, last = budget.hours
    room = int((last - first) * 3_600 / APART_S)
    if not 1 <= budget.per_day <= min(PER_DAY_MAX, room):
        raise InputError(
            f"{budget.per_day} drills a day are too many for {last - first} hours.",
            hint=f"At most {min(PER_DAY_MAX, room)}: they are {APART_S / 60:g} minutes apart.",
        )
    for name in budget.scenarios:
        live_scenario(name)


def fitting(budget: MonkeyBudget, misfits: Collection[str]) -> MonkeyBudget:
    """The budget without scenarios that the run cannot have."""
    left = tuple(name for name in budget.scenarios if name not in misfits)
    if not left:
        raise InputError(
            "The run can have none of these drills as it is now.",
            hint="Name others with --scenario; `holdfast drill list --live` lists them.",
        )
    return msgspec.structs.replace(budget, scenarios=left)


def drills_of(day: datetime, budget: MonkeyBudget, seed: int) -> list[DueDrill]:
    """The drills of this moment's day, in its own time zone, in order."""
    if day.weekday() in WEEKEND and not budget.weekends:
        return []
    generator = random.Random(f"{seed} {day.date().isoformat()}")
    first, last = budget.hours
    room_s = (last - first) * 3_600 - (budget.per_day - 1) * APART_S
    moments = sorted(generator.uniform(0, room_s) for _ in range(budget.per_day))
    midnight = day.replace(hour=0, minute=0, second=0, microsecond=0)
    return [
        DueDrill(
            at_ns=_ns(midnight + timedelta(hours=first, seconds=moment + number * APART_S)),
            scenario=generator.choice(budget.scenarios),
            seed=generator.getrandbits(32),
        )
        for number, moment in enumerate(moments)
    ]


def upcoming(now_ns: int, budget: MonkeyBudget, seed: int, zone: tzinfo | None) -> Iterator[DueDrill]:
    """The drills due from now on, day after day. zone: None for this machine's."""
    now = datetime.fromtimestamp(now_ns / 1e9, UTC).astimezone(zone)
    for ahead in range(DAYS_AHEAD_MAX):
        for due in drills_of(now + timedelta(days=ahead), budget, seed):
            if due.at_ns > now_ns:
                yield due


def is_missed(due: DueDrill, now_ns: int) -> bool:
    return now_ns - due.at_ns > LATE_S_MAX * 1e9


def allowance(done_ns: Sequence[int], now_ns: int, budget: MonkeyBudget) -> int:
    """How many drills are left of the budget, counting all drills of the last 24 hours."""
    since_ns = now_ns - round(24 * 3_600 * 1e9)
    return budget.per_day - sum(at_ns > since_ns for at_ns in done_ns)


def hindrance(open_incidents: Collection[str], left: int) -> str:
    """Why a due drill is left out; empty if it is not."""
    if left <= 0:
        return "the day's budget is spent"
    if open_incidents:
        return f"something is wrong already: {', '.join(sorted(open_incidents))}"
    return ""


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1e9)
