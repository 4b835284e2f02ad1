"""Stragglers in the terminal: the verdict, the figures, the heat map, the slow workers and operations."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.tables import table
from holdfast.cli.terminal import printable
from holdfast.stragglers.report import StragglerReport
from holdfast.stragglers.verdict import seconds
from holdfast.stragglers.whatif import Analysis

WORKERS_SHOWN_MAX = 6
OPERATIONS_SHOWN_MAX = 6
ROWS_SHOWN_MAX = 16
"""The most rows of a heat map: the hottest are shown, `--html` shows all."""
CELL_WIDTH = 8
NAME_WIDTH_MAX = 24
BLOCKS = " ░▒▓█"
FAINT = 0.02
"""A score that exceeds 1 by less than this has no block."""


def show(report: StragglerReport) -> None:
    console = Console(highlight=False)
    analysis = report.analysis
    _print(console, _heading(report))
    console.print()
    _print(console, report.verdict.sentence, style="bold")
    _print(console, report.verdict.basis)
    _print(console, f"Next: {report.verdict.advice}")
    rows = ((what, Text(figure, justify="right"), why) for what, figure, why in _figure_rows(analysis))
    console.print("", table(rows=rows), "")
    _show_heat(console, report)
    console.print(_workers(analysis), "", _operations(analysis))


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text)), style=style)


def _heading(report: StragglerReport) -> str:
    analysis = report.analysis
    replicas, stages = len(report.dp_ranks), len(report.stages)
    grid = f"{wording.many(replicas, 'data-parallel rank')} x {wording.many(stages, 'stage')}"
    return (
        f"{wording.short(report.title)}: {wording.many(analysis.worker_count, 'worker')} ({grid}), "
        f"{wording.many(analysis.steps, 'step')}, {wording.many(analysis.operation_count, 'operation')}"
    )


def _figure_rows(analysis: Analysis) -> Iterator[tuple[str, str, str]]:
    recorded = seconds(analysis.recorded_s)
    yield "step", seconds(analysis.step_s), f"simulated from its operations ({recorded} recorded)"
    yield "ideal", seconds(analysis.ideal_s), "with every operation at its ideal"
    yield "slowdown", f"{analysis.slowdown:.3f}", "the step over its ideal"
    if analysis.m_w is not None:
        yield "M_W", f"{analysis.m_w:.3f}", "of the slowdown is explained by the slowest 3 % of the workers"
    if analysis.m_s is not None:
        yield "M_S", f"{analysis.m_s:.3f}", "by the last stage"


# -- the heat map ------------------------------------------------------------------------------------------


def _show_heat(console: Console, report: StragglerReport) -> None:
    """Data-parallel ranks down, stages across; each cell shows how much that worker alone slows the step."""
    hottest = max((score for row in report.heat for score in row if score is not None), default=1.0)
    rows = sorted(range(len(report.heat)), key=lambda row: -max(score or 0.0 for score in report.heat[row]))
    shown = sorted(rows[:ROWS_SHOWN_MAX])
    names = [wording.short(printable(report.dp_ranks[row]), NAME_WIDTH_MAX) for row in shown]
    width = max(len(name) for name in names) + 2
    with_numbers = width + CELL_WIDTH * len(report.stages) <= console.width
    left_out = "" if len(shown) == len(rows) else f", the slowest {len(shown)} of {len(rows)} rows"
    _print(console, f"Slowdown by worker{left_out}", style="bold")
    if len(report.stages) > 1:
        _print(console, " " * width + _stage_names(report.stages, with_numbers))
    for name, row in zip(names, shown, strict=True):
        cells = [_cell(score, hottest, with_numbers) for score in report.heat[row]]
        _print(console, f"{name:{width}}" + "".join(cells))
    console.print()


def _stage_names(stages: tuple[int, ...], with_numbers: bool) -> str:
    if with_numbers:
        return "".join(f"{f'stage {stage}':{CELL_WIDTH}}" for stage in stages)
    return f"stages {stages[0]} to {stages[-1]}"


def _cell(score: float | None, hottest: float, with_numbers: bool) -> str:
    if score is None:
        return f"{'·':{CELL_WIDTH if with_numbers else 1}}"
    heat = max(0.0, score - 1) / max(hottest - 1, FAINT)
    block = BLOCKS[0] if score - 1 < FAINT else BLOCKS[max(1, round(heat * (len(BLOCKS) - 1)))]
    return f"{f'{block} {score:.2f}':{CELL_WIDTH}}" if with_numbers else block


# -- tables ------------------------------------------------------------------------------------------------


def _workers(analysis: Analysis) -> Table:
    has_grid = len(analysis.stages) > 1
    rows = _headed("worker", *(("dp rank", "stage") if has_grid else ()), "alone", "explains")
    for one in analysis.workers[:WORKERS_SHOWN_MAX]:
        name = Text(wording.short(printable(one.name), NAME_WIDTH_MAX))
        place = (f"{one.dp_rank}", f"{one.stage}") if has_grid else ()
        rows.add_row(name, *place, f"{one.slowdown:.3f}", _share(one.share))
    return rows


def _operations(analysis: Analysis) -> Table:
    rows = _headed("operation", "ideal", "count", "alone", "explains")
    for one in analysis.operations[:OPERATIONS_SHOWN_MAX]:
        figures = (seconds(one.ideal_s), f"{one.count:,}", f"{one.slowdown:.3f}", _share(one.share))
        rows.add_row(Text(printable(one.type)), *figures)
    return rows


def _headed(first: str, *others: str) -> Table:
    return table(first, *(Column(name, justify="right") for name in others))


def _share(share: float | None) -> str:
    """A percentage, such as `100.2 %`; one that rounds to zero has no sign."""
    if share is None:
        return wording.UNKNOWN
    return f"{0.0 if abs(share) < 0.0005 else 100 * share:.1f} %"
