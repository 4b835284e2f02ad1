"""Flight recorder dumps in the terminal: which ranks wait in which collective, and which are missing."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.terminal import printable
from holdfast.detect.standstill import Place, RanksStanding, Standstill
from holdfast.diagnose.standing import (
    LINES_SHOWN_MAX,
    action,
    line_text,
    place_text,
    ranks_text,
    sentence,
    summary,
)

STANDSTILLS_SHOWN_MAX = 4
UNREADABLE_SHOWN_MAX = 4
RANKS_COLUMN_MIN = 10


def show_standing(told: RanksStanding, *, remark: str = "") -> None:
    """Print the ranks to stdout. remark: why the dumps do not belong to the run's incident, if so."""
    console = Console(highlight=False, markup=False)
    dumped = told.ranks - len(told.undumped)
    console.print(
        Text("Flight recorder", style="bold").append(
            f": dumps of {dumped:,} of {wording.many(told.ranks, 'rank')}", style="not bold"
        )
    )
    if remark:
        console.print(printable(remark), style="yellow")
    style = "bold red" if told.standstills or told.undumped else "bold green"
    console.print(printable(summary(told)), style=style)
    if told.standstills or told.undumped:
        console.print(f"Do: {printable(action(told))}")
    if told.standstills:
        _show_places(console, (*told.standstills[0].others, told.standstills[0].inside))
        _show_rest(console, told.standstills[1:])
    else:
        _show_places(console, told.idle)
    for rank, lines in told.stacks.items():
        console.print()
        console.print(printable(f"{wording.opening(ranks_text([rank]))} now, by its stack"), style="bold")
        for line in lines[:LINES_SHOWN_MAX]:
            console.print(printable(f"  {line_text(line)}"))
    for rank, why in list(told.unreadable.items())[:UNREADABLE_SHOWN_MAX]:
        console.print(printable(f"The dump of {ranks_text([rank])} cannot be used: {why}."), style="yellow")


def _show_places(console: Console, places: tuple[Place, ...]) -> None:
    """The ranks that hold the others up come first."""
    console.print()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", min_width=RANKS_COLUMN_MIN)
    table.add_column(overflow="fold")
    for place in places:
        lines = [line_text(line) for line in place.lines[:LINES_SHOWN_MAX]]
        at = [place_text(place), *(f"  {line}" for line in lines)]
        table.add_row(ranks_text(place.ranks), "\n".join(map(printable, at)))
    console.print(table)


def _show_rest(console: Console, rest: tuple[Standstill, ...]) -> None:
    if rest:
        console.print()
    for one in rest[:STANDSTILLS_SHOWN_MAX]:
        console.print(printable(sentence(one)))
    if len(rest) > STANDSTILLS_SHOWN_MAX:
        console.print(f"{len(rest) - STANDSTILLS_SHOWN_MAX:,} more; --json has them.")
