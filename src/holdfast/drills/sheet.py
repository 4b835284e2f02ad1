"""A tabletop on paper: roles that see only their own monitoring, injects, questions and a score sheet.

Everything comes from the scenario as it was played, and nothing from the truth, which is only on the
facilitator's copy. Nothing here does I/O.
"""

from collections.abc import Iterator
from statistics import fmean, median
from typing import Literal

import msgspec

from holdfast import wording
from holdfast.drills.scenarios import Played, Truth
from holdfast.drills.tabletop import BoardRow, Tabletop, tabletop

RoleName = Literal["facilities", "network", "storage", "ml", "finance"]
TABLE_STEP_MIN = 5
"""Minutes at the table between two injects."""
CELLS, USUAL_CELLS = 60, 10
"""A signal is judged by its means over a sixtieth of the time; its usual value is the median of the first
ten."""


class SheetRole(msgspec.Struct, frozen=True, kw_only=True):
    """rows: labels of the board's rows that this role's own monitoring has."""

    name: RoleName
    title: str
    brief: str
    rows: tuple[str, ...]


ROLES: tuple[SheetRole, ...] = (
    SheetRole(
        name="facilities",
        title="Facilities",
        brief="You own power and cooling. You see supplies, pumps, flow and temperatures, and no job.",
        rows=("power of all GPUs", "worst power supply", "lowest coolant flow", "warmest coolant"),
    ),
    SheetRole(
        name="network",
        title="Network",
        brief="You own switches, ports and cables. You see counters of ports, and no step of any run.",
        rows=("slowest pair of engines", "most symbol errors", "longest wait to send"),
    ),
    SheetRole(
        name="storage",
        title="Storage",
        brief="You own the filers. You see what clients ask for and how long replies take.",
        rows=("slowest storage reply", "most retransmissions"),
    ),
    SheetRole(
        name="ml",
        title="ML",
        brief="You own the run, and your name is on its date. You see its steps, its members and their GPUs.",
        rows=(
            *("step", "checkpoint", "slowest to compute", "longest wait for data", "slowest exchange"),
            *("fullest cache", "hottest GPU", "lowest clock", "most memory errors", "narrowest PCIe link"),
            "most CPU pressure",
        ),
    ),
    SheetRole(
        name="finance",
        title="Finance",
        brief="You own the budget. You see what is paid for by the hour, and ask what it buys.",
        rows=(),
    ),
)


class Inject(msgspec.Struct, frozen=True, kw_only=True):
    """A card that one role gets at a minute of the exercise. clock: its time in the story."""

    minute: int
    role: RoleName
    text: str
    clock: str = ""


class ScoreLine(msgspec.Struct, frozen=True, kw_only=True):
    question: str
    points: int


class TabletopSheet(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the sheet. truth: on the facilitator's copy."""

    table: Tabletop
    roles: tuple[SheetRole, ...]
    injects: tuple[Inject, ...]
    scores: tuple[ScoreLine, ...]
    truth: Truth | None

    def of(self, role: RoleName) -> tuple[Inject, ...]:
        return tuple(one for one in self.injects if one.role == role)


SCORES = (
    ScoreLine(
        question="A team named the owner: 3 points in the first third, 2 in the second, 1 later", points=3
    ),
    ScoreLine(question="The cause was named, and told from its consequences", points=3),
    ScoreLine(question="Each team that is not the owner ruled itself out by a reading of its own", points=2),
    ScoreLine(
        question="The owner was called by the team that felt it, and asked for the right reading", points=2
    ),
    ScoreLine(question="Something was done before the cause was known, and it did no harm", points=2),
    ScoreLine(question="The cost an hour was said, within a factor of two", points=1),
    ScoreLine(question="The observation that settles it was asked for", points=2),
)


def sheet(played: Played, *, usd_per_gpu_hour: float, reveal: bool) -> TabletopSheet:
    table = tabletop(played, reveal=False)
    return TabletopSheet(
        table=table,
        roles=ROLES,
        injects=tuple(_injects(table, usd_per_gpu_hour)),
        scores=SCORES,
        truth=played.truth if reveal else None,
    )


def _injects(table: Tabletop, usd_per_gpu_hour: float) -> Iterator[Inject]:
    """The cards in the order in which monitoring shows them, a few minutes apart; each team begins with
    one."""
    yield Inject(minute=0, role="ml", text=table.told)
    quiet = [role for role in ROLES if role.rows]
    changes: list[tuple[int, RoleName, str]] = [
        (found[0], role.name, found[1])
        for row in table.board
        for role in quiet
        if row.label in role.rows and (found := _changed(row, table)) is not None
    ]
    changes += [(line.at_ns, "ml", f"The record: {line.what}.") for line in table.story]
    loud = {name for _, name, _ in changes}
    for role in quiet:
        if role.name not in loud and role.name != "ml":
            yield Inject(minute=0, role=role.name, text="Your monitoring shows nothing unusual.")
    cost_usd = table.gpus * usd_per_gpu_hour
    yield Inject(
        minute=0,
        role="finance",
        text=f"The run holds {wording.many(table.gpus, 'GPU')}: {wording.usd(round(cost_usd))} an hour.",
    )
    last = 0
    for number, (at_ns, name, text) in enumerate(sorted(changes), 1):
        last = number * TABLE_STEP_MIN
        yield Inject(minute=last, role=name, text=text, clock=wording.stamp(at_ns)[11:16])
    yield Inject(
        minute=last + TABLE_STEP_MIN,
        role="finance",
        text="The head of research asks: go on, wait, or stop? Give a figure, and when you will know more.",
    )


def _changed(row: BoardRow, table: Tabletop) -> tuple[int, str] | None:
    """When a signal first left its usual value by a notable amount, and its furthest value; None if never."""
    size = -(-len(row.values) // CELLS)
    cells = [row.values[first : first + size] for first in range(0, len(row.values), size)]
    seen = [[value for value in cell if value is not None] for cell in cells]
    known = [(place, fmean(values)) for place, values in enumerate(seen) if values]
    if not known:
        return None
    usual = median([value for place, value in known if place < USUAL_CELLS] or [known[0][1]])
    apart = [(place, value) for place, value in known if abs(value - usual) >= row.notable]
    if not apart:
        return None
    first = apart[0][0]
    furthest = max((value for _, value in apart), key=lambda value: abs(value - usual))
    at_ns = table.first_ns + round((table.last_ns - table.first_ns) * first / len(cells))
    unit = f" {row.unit}" if row.unit else ""
    figures = f"usually {_number(usual)}{unit}, at its furthest {_number(furthest)}{unit}"
    return at_ns, f"{wording.opening(row.label)}: {figures}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"
