"""A report in the terminal: the partition as a bar and a table, the ratios, the costliest incidents."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.words import duration, gpu_hours, moment, percent
from holdfast.ledger.categories import Category
from holdfast.ledger.report import IncidentReport, Report

INCIDENTS_SHOWN_MAX = 8
BAR_CELLS_MAX = 100

# One colour and one mark a category, so that the bar can be read without colours as well.
_LOOKS: dict[Category, tuple[str, str]] = {
    Category.USEFUL: ("green", "█"),
    Category.RECOMPUTED: ("blue", "r"),
    Category.DISCARDED: ("magenta", "x"),
    Category.SLOWDOWN: ("cyan", "~"),
    Category.CHECKPOINT_STALL: ("bright_blue", "c"),
    Category.DATA_STALL: ("bright_cyan", "d"),
    Category.MISSING_MEMBERS: ("bright_magenta", "m"),
    Category.STARTING: ("yellow", "s"),
    Category.DEAD_UNDETECTED: ("red", "!"),
    Category.LOCALISING: ("bright_red", "?"),
    Category.RECOVERING: ("bright_yellow", "+"),
    Category.QUEUED: ("white", "q"),
    Category.PLANNED_STOP: ("white", "p"),
    Category.CHECKS: ("white", "e"),
    Category.IDLE: ("bright_black", "."),
    Category.SPARE: ("bright_black", ":"),
    Category.DRAINED: ("bright_black", "-"),
    Category.UNATTRIBUTED: ("bright_white", "u"),
}


def show(told: Report) -> None:
    """Print the report to stdout, as wide as the terminal and with colours where it has them."""
    console = Console(highlight=False, markup=False)
    _head(console, told)
    if told.paid_gpu_ns:
        _partition(console, told)
        _ratios(console, told)
    _incidents(console, told)
    for remark in told.remarks:
        console.print(f"• {remark}")


def _head(console: Console, told: Report) -> None:
    title = told.run if told.name in ("", told.run) else f"{told.run} ({told.name})"
    console.print(Text("Run ", style="bold").append(title))
    span = duration(told.last_ns - told.first_ns)
    console.print(f"{moment(told.first_ns)} to {moment(told.last_ns)}, {span}, {told.gpus:,} GPUs")
    console.print()


def _partition(console: Console, told: Report) -> None:
    paid = f"{gpu_hours(told.paid_gpu_ns)} GPU-hours paid for"
    if told.goodput.total is None:
        console.print(f"Nothing recorded says how the {paid} were used.", style="bold")
    else:
        console.print(f"{percent(told.goodput.total)} of {paid} were useful.", style="bold")
    parts = [(category, told.partition[category.key]) for category in _LOOKS]
    console.print(_bar(parts, told.paid_gpu_ns, min(console.width, BAR_CELLS_MAX)), no_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for category, gpu_ns in parts:
        if gpu_ns:
            colour, mark = _LOOKS[category]
            share = percent(gpu_ns / told.paid_gpu_ns)
            hours = gpu_hours(gpu_ns) + " GPU-h"
            table.add_row(Text(mark, style=colour), category.label, share, hours, category.meaning)
    table.add_row("", "sum", "100.0 %", gpu_hours(told.paid_gpu_ns) + " GPU-h", "to the nanosecond")
    console.print(table)
    console.print()


def _bar(parts: list[tuple[Category, int]], whole: int, cells: int) -> Text:
    """The parts side by side; what is there at all has a cell, and the largest gives way for it."""
    widths = {category: max(1, round(cells * part / whole)) for category, part in parts if part}
    largest = max(widths, key=lambda category: widths[category])
    widths[largest] = max(1, widths[largest] + cells - sum(widths.values()))
    bar = Text()
    for category, width in widths.items():
        colour, mark = _LOOKS[category]
        bar.append(mark * width, style=colour)
    return bar


def _ratios(console: Console, told: Report) -> None:
    goodput, ettr, counts = told.goodput, told.ettr, told.counts
    product = f"scheduling {percent(goodput.scheduling)} × runtime {percent(goodput.runtime)}"
    rows = [
        ("Goodput", f"{percent(goodput.total)} = {product}; program {percent(goodput.program)}"),
        (
            "ETTR",
            f"{percent(ettr.cumulative)}; over {duration(ettr.sliding_window_ns)}: "
            f"last {percent(ettr.sliding)}, worst {percent(ettr.sliding_min)}",
        ),
        (
            "Counts",
            f"{counts.steps:,} steps kept, {counts.restarts:,} restarts, {counts.loads:,} loads, "
            f"{counts.saves:,} saves, {counts.members_lost:,} members lost",
        ),
        (
            "MFU",
            told.mfu.sentence if told.mfu else "unknown; declare the model's FLOPs per step and the chip",
        ),
        (
            "Bandwidth",
            told.bandwidth.sentence if told.bandwidth else "unknown; record collective.timed events",
        ),
    ]
    if told.reference is not None:
        step = duration(told.reference.step_ns)
        rows.insert(
            2, ("Reference", f"{step} a step on {told.reference.gpus:,} GPUs, {told.reference.origin}")
        )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def _mfu(told: Report) -> str:
    if told.mfu is None:
        return "unknown; declare the model's FLOPs per step and the chip"
    return f"{told.mfu.sentence}; HFU {told.hfu_percent:.1f} %"


def _incidents(console: Console, told: Report) -> None:
    if not told.incidents:
        return
    shown = told.incidents[:INCIDENTS_SHOWN_MAX]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("began (UTC)", no_wrap=True)
    table.add_column("what")
    table.add_column("lasted", justify="right", no_wrap=True)
    table.add_column("GPU-h lost", justify="right", no_wrap=True)
    table.add_column("mostly", no_wrap=True)
    for incident in shown:
        table.add_row(*_incident_cells(incident))
    count = f"{len(shown)} of {len(told.incidents)}" if len(told.incidents) > len(shown) else f"{len(shown)}"
    console.print(f"Costliest incidents ({count})", style="bold")
    console.print(table)
    console.print()


def _incident_cells(incident: IncidentReport) -> tuple[str, ...]:
    lasted = duration(incident.recovered_ns - incident.began_ns) if incident.recovered_ns else "not over"
    key, most = max(incident.losses.items(), key=lambda item: item[1], default=("", 0))
    mostly = f"{percent(most / incident.lost_gpu_ns)} {key.replace('_', ' ')}" if most else "-"
    began = moment(incident.began_ns)[len("2026-") : -len(":00Z")]
    return began, _what(incident), lasted, gpu_hours(incident.lost_gpu_ns), mostly


def _what(incident: IncidentReport) -> str:
    parts = [f"{incident.what} ({incident.subject})" if incident.subject else incident.what]
    if incident.members_lost > 1:
        parts.append(f"{incident.members_lost:,} members lost")
    if incident.steps_rolled_back:
        parts.append(f"{incident.steps_rolled_back:,} steps rolled back")
    if incident.restarts:
        parts.append(f"{incident.restarts:,} restart{'s' * (incident.restarts > 1)}")
    return ", ".join(parts)
