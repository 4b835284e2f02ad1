"""The board of a run: its progress, its loss, which member computes which lanes, and the last happenings."""

import string
import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from math import isfinite

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.live_text import since, strength
from holdfast.cli.tables import GAP_CHARS, figure, table, word
from holdfast.cli.terminal import printable
from holdfast.record.clock import Clock
from holdfast.run.status import MemberStatus, Status
from holdfast.run.wire import Stage

COLUMNS_MAX = 110
"""The most columns: wider lines are hard to read."""
ROWS_BESIDE_MAX = 8
"""All lines but members and happenings: empty lines, head, progress, loss, lanes, one free at the end."""
HAPPENED_ROWS_MAX = 6
MEMBER_ROWS_MIN = 3
LABEL_CHARS = 7
TIME_CHARS = 5
LANE_CHARS_MAX = 3
SPARKS_MAX = 40
SPARKS = "▁▂▃▄▅▆▇█"
SPARKS_ASCII = "_.-~=+*#"

# A seat keeps its letter and its colour. Terminals without colours show the letter.
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "bright_red", "bright_cyan", "bright_yellow")
_STAGES: dict[Stage, str] = {
    "starting": "starts",
    "data": "fetches data",
    "forward": "computes",
    "backward": "computes gradients",
    "reduce": "reduces",
    "optimizer": "commits",
    "script": "is between steps",
    "checkpoint": "copies a checkpoint",
    "meeting": "waits between steps",
    "regroup": "regroups",
    "state": "takes over the state",
    "waiting": "waits",
    "finished": "has finished",
}
_SEVERITIES = {"note": "", "trouble": "yellow", "failure": "bold red"}
_OUTCOMES = {"completed": "bold green", "failed": "bold red", "stopped": "bold yellow"}


class Board:
    """Draws the current `status`, as wide as the terminal and not higher."""

    def __init__(self, status: Callable[[], Status], clock: Clock) -> None:
        self._status = status
        self._clock = clock
        self._seats: dict[tuple[str, int], int] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self._status()
        for member in status.members:
            if member.lanes:
                self._seats.setdefault((member.node, member.slot), len(self._seats))
        width = min(options.max_width, COLUMNS_MAX)
        rows = max(2 * MEMBER_ROWS_MIN, console.height - ROWS_BESIDE_MAX)
        happened = _happened(status, width, min(HAPPENED_ROWS_MAX, rows - MEMBER_ROWS_MIN))
        yield Text()
        yield self._head(status, width)
        yield _progress(status, width)
        if status.loss_curve:
            yield _loss(status, width, SPARKS_ASCII if options.ascii_only else SPARKS)
        if status.outcome is None:
            if any(member.lanes for member in status.members):
                yield self._lanes(status, width)
            yield Text()
            yield from self._members(status, rows - len(happened))
        yield Text()
        yield from happened

    def _head(self, status: Status, width: int) -> Table:
        about = Text(printable(status.run), style="bold")
        if status.outcome is not None:
            about.append(f"  {status.outcome}", style=_OUTCOMES[status.outcome])
        elif status.generation:
            about.append(f"  generation {status.generation}  {strength(status)}", style="not bold")
        row = (about, since(status.started_ns, self._clock.now_ns()))
        return table(Column(ratio=1, no_wrap=True), figure(), rows=[row], width=width)

    def _lanes(self, status: Status, width: int) -> Text:
        """One cell for each lane, or for several consecutive lanes if there are more lanes than cells."""
        members = status.members
        owners = {lane: member for member in members if member.alive for lane in member.lanes}
        count = max(lane for member in members for lane in member.lanes) + 1
        skipped = f"  {status.lanes_skipped} skipped" if status.lanes_skipped else ""
        room = width - LABEL_CHARS - len(skipped)
        chars = max(1, min(LANE_CHARS_MAX, room // count))
        cells = min(count, room)
        line = Text("lanes".ljust(LABEL_CHARS), style="dim")
        for cell in range(cells):
            owner = owners.get(cell * count // cells)
            letter, colour = self._mark(owner) if owner else ("·", "")
            line.append(letter.center(chars), style=f"not dim black on {colour}" if colour else "")
        return line.append(skipped)

    def _members(self, status: Status, rows_max: int) -> RenderResult:
        rows = self._member_rows(status)
        shown = rows if len(rows) <= rows_max else rows[: rows_max - 1]
        yield table(word(style="bold"), *(word() for _ in range(5)), rows=shown)
        if len(shown) < len(rows):
            yield Text(f"and {len(rows) - len(shown)} more", style="dim")

    def _member_rows(self, status: Status) -> Sequence[tuple[str | Text, ...]]:
        rows: list[tuple[str | Text, ...]] = []
        for node in sorted(status.nodes, key=lambda node: (len(node.name), node.name)):
            members = [member for member in status.members if member.node == node.name and member.alive]
            members.sort(key=lambda member: (not member.lanes, member.slot))
            name = printable(node.name)
            if not node.alive:
                rows.append((name, "", Text("lost", style="bold red")))
            elif not members:
                rows.append((name, "", Text("no members", style="dim")))
            for number, member in enumerate(members if node.alive else ()):
                rows.append(("" if number else name, *self._member_cells(member)))
        return rows

    def _member_cells(self, member: MemberStatus) -> tuple[str | Text, ...]:
        name = printable(member.name)
        if not member.lanes:
            state = "spare" if member.role == "spare" else _STAGES[member.stage]
            return "", Text(name, style="dim"), Text(state, style="dim")
        letter, colour = self._mark(member)
        lanes = f"lane{'s' * (len(member.lanes) > 1)} {_ranges(member.lanes)}"
        return (
            Text(letter, style=f"bold {colour}"),
            name,
            lanes,
            f"step {member.step:,}",
            _STAGES[member.stage],
        )

    def _mark(self, member: MemberStatus) -> tuple[str, str]:
        seat = self._seats[member.node, member.slot]
        return _LETTERS[seat % len(_LETTERS)], _COLOURS[seat % len(_COLOURS)]


def _progress(status: Status, width: int) -> Table | Text:
    if not status.steps_total:
        return Text("starting", style="dim")
    pace, left = "", ""
    if status.rate and status.outcome is None:
        left_ns = round((status.steps_total - status.step) / status.rate * 1e9)
        pace, left = f"{wording.number(status.rate, 3)}/s", f"{since(0, left_ns)} left"
    bar = ProgressBar(
        total=status.steps_total,
        completed=status.step,
        complete_style="green",
        finished_style="bold green",
    )
    row = (bar, f"step {status.step:,} of {status.steps_total:,}", pace, left)
    return table(Column(ratio=1), word(), word(), word(), rows=[row], width=width)


def _loss(status: Status, width: int, sparks: str) -> Text:
    losses = [loss for _, loss in status.loss_curve]
    line = Text("loss".ljust(LABEL_CHARS), style="dim")
    line.append(f"{losses[0]:.3f} ", style="not dim")
    line.append(
        sparkline(losses, min(SPARKS_MAX, width - LABEL_CHARS - 2 * GAP_CHARS - 12), sparks),
        style="not dim green",
    )
    return line.append(f" {losses[-1]:.3f}", style="not dim bold")


def sparkline(values: Sequence[float], cells: int, sparks: str) -> str:
    """The course of the values: each cell is the mean of some of them, or `!` if it is not a number."""
    cells = min(cells, len(values))
    bounds = [cell * len(values) // cells for cell in range(cells + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(bounds)]
    finite = [mean for mean in means if isfinite(mean)]
    # Halves, because the difference of two floats may overflow.
    low, high = min(finite, default=0.0) / 2, max(finite, default=0.0) / 2
    shares = [(mean / 2 - low) / ((high - low) or 1.0) for mean in means]
    return "".join(sparks[round(share * (len(sparks) - 1))] if isfinite(share) else "!" for share in shares)


def _happened(status: Status, width: int, rows_max: int) -> list[Text]:
    """The last happenings that fit, none of them cut."""
    rows: list[Text] = []
    for happened in reversed(status.happened):
        at = f"{since(status.started_ns, happened.occurred_ns):>{TIME_CHARS}}  "
        told = textwrap.wrap(
            printable(happened.text), width, initial_indent=at, subsequent_indent=" " * len(at)
        )
        if len(rows) + len(told) > rows_max:
            break
        rows[:0] = [Text(row, style=_SEVERITIES[happened.severity]) for row in told]
    return rows


def _ranges(lanes: Sequence[int]) -> str:
    """`0-3, 8`: lanes are dealt in blocks."""
    runs = [
        [lane for _, lane in run] for _, run in groupby(enumerate(sorted(lanes)), lambda at: at[1] - at[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
