"""A drill in the terminal."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from holdfast import wording
from holdfast.cli.tables import figure, table, word
from holdfast.drills.scenarios import SCENARIOS, Played, Truth
from holdfast.drills.tabletop import BoardRow, Tabletop, tabletop
from holdfast.record.events import RunStarted

SPARK = "▁▂▃▄▅▆▇█"
SPARK_CELLS_MIN, SPARK_CELLS_MAX = 16, 60
BESIDE_SPARK_CHARS = 52
"""The characters of a row of the board besides its sparkline."""
USUAL_CELLS = 6
"""The usual value of a signal is the median of this many first cells."""
NAMES_SHOWN_MAX = 6


def show(played: Played, reveal: bool) -> None:
    """Print the tabletop to stdout."""
    shown = tabletop(played, reveal=reveal)
    console = Console(highlight=False, markup=False)
    console.print(Text("Tabletop ", style="bold").append(shown.run))
    nodes = wording.many(played.layout.nodes, "node")
    when = wording.span(shown.first_ns, shown.last_ns)
    console.print(f"{when}, {wording.many(shown.gpus, 'GPU')} on {nodes}\n\n{shown.told}\n")
    _print_story(console, shown)
    _print_board(console, shown)
    console.print("Questions for the table", style="bold")
    questions = ((f"{number}.", question) for number, question in enumerate(shown.questions, 1))
    console.print(table(rows=questions), "")
    if shown.truth is not None:
        console.print("The truth", style="bold red")
        console.print(table(word(style="bold"), "", rows=_truth_rows(shown.truth, played)))


def show_list() -> None:
    """Print every scenario by its name."""
    console = Console(highlight=False, markup=False)
    rows = ((scenario.name, scenario.title) for scenario in SCENARIOS.values())
    console.print(table(word(style="bold"), "", rows=rows))


def _print_story(console: Console, shown: Tabletop) -> None:
    console.print("What the record says", style="bold")
    if not shown.story:
        console.print("Nothing but steps and checkpoints, as usual.")
    rows = ((wording.stamp(line.at_ns)[11:19], line.what) for line in shown.story)
    console.print(table(word(style="dim"), "", rows=rows), "")


def _print_board(console: Console, shown: Tabletop) -> None:
    console.print("What monitoring shows: of each signal the worst anywhere", style="bold")
    cells = min(max(console.width - BESIDE_SPARK_CHARS, SPARK_CELLS_MIN), SPARK_CELLS_MAX)
    course = word(_hours(shown, cells), style="cyan")
    rows = ((row.label, sparkline(row, cells), *_levels(row, cells), row.unit) for row in shown.board)
    columns = (word(), course, figure("usual"), figure("furthest"), word(style="dim"))
    console.print(table(*columns, rows=rows, header_style="dim"), "")


def _hours(shown: Tabletop, cells: int) -> str:
    """The ends of the axis that all rows share."""
    first, last = (wording.stamp(at_ns)[11:16] for at_ns in (shown.first_ns, shown.last_ns))
    return first + last.rjust(cells - len(first))


def _cells(row: BoardRow, cells: int) -> NDArray[np.float64]:
    """The mean of each slice of the time; NaN if nothing was read in it."""
    numbers = np.array([np.nan if value is None else value for value in row.values])
    parts = np.array_split(numbers, min(cells, len(numbers)))
    return np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])


def sparkline(row: BoardRow, cells: int) -> str:
    """The course of a signal in one line, with a space for times without a reading."""
    means = _cells(row, cells)
    if not np.isfinite(means).any():
        return " " * len(means)
    low = np.nanmin(means)
    reach = max(np.nanmax(means) - low, row.notable)
    marks = np.nan_to_num((means - low) / reach * (len(SPARK) - 1)).round().astype(int)
    seen = np.isfinite(means)
    return "".join(SPARK[mark] if is_seen else " " for mark, is_seen in zip(marks, seen, strict=True))


def _levels(row: BoardRow, cells: int) -> tuple[str, str]:
    """The signal's usual value, and the value furthest from it."""
    means = _cells(row, cells)
    seen = means[np.isfinite(means)]
    if not len(seen):
        return wording.UNKNOWN, wording.UNKNOWN
    usual = float(np.median(seen[:USUAL_CELLS]))
    furthest = float(seen[np.abs(seen - usual).argmax()])
    decimals = 0 if max(usual, furthest) >= 100 else 1 if max(usual, furthest) >= 10 else 2
    told = f"{furthest:,.{decimals}f}" if abs(furthest - usual) >= row.notable else ""
    return f"{usual:,.{decimals}f}", told


def _truth_rows(truth: Truth, played: Played) -> Iterator[tuple[str, str]]:
    cause, surface = truth.cause, truth.surface
    gpus = next(event.gpus for event in played.events if isinstance(event, RunStarted))
    if not truth.is_incident:
        yield "Cause", f"nothing is wrong; {cause.mechanism}"
    else:
        yield "Cause", f"{cause.subject}, in {cause.domain}: {cause.mechanism}"
        yield "Owner", f"{cause.owner}; seam {truth.seam}"
    over = "not over" if truth.ended_ns is None else f"over {wording.stamp(truth.ended_ns)[11:19]}"
    yield "When", f"from {wording.stamp(truth.began_ns)[11:19]}, {over}"
    seen = "" if surface.at_ns is None else f", from {wording.stamp(surface.at_ns)[11:19]}"
    yield "Seen", f"in {surface.domain}{seen}: {surface.what}"
    yield "Members", _named(truth.affected) or "none"
    lost = f"{truth.lost_s:,.0f} s of the run, {truth.lost_s * gpus / 3600:,.1f} GPU-h"
    yield "Cost", f"{truth.slowdown:.2f} times the time per step; {lost}"
    for trace in truth.traces:
        yield "Shows in", f"{trace.metric} of {_named(trace.subjects)}"
    yield "Decides", truth.decides


def _named(names: tuple[str, ...]) -> str:
    """A few names, or the first, the last and how many."""
    if len(names) <= NAMES_SHOWN_MAX:
        return ", ".join(names)
    return f"{len(names)}, {names[0]} to {names[-1]}"
