"""A cost in the terminal: the loss as progress, the five layers as a bar and a table, the assumptions."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.tables import figure, print_bullets, table, word
from holdfast.cli.terminal import printable
from holdfast.economics.pricing import layers
from holdfast.economics.pricing.cost import LEDGER
from holdfast.wording.units import HOUR_NS

BAR_CELLS_MAX = 100
COLUMNS_UNBOUNDED = 1_000
"""Wider than any table: used to measure a table's natural width."""
SOURCES_COLUMNS_MIN = 80
"""On a narrower terminal the sources follow their values in the same line, without a column."""
INCIDENTS_SHOWN_MAX = 8
WHAT_CHARS_MIN = 14
LABEL_MARGIN_CELLS = 4
"""A part of the bar shows its name if at least this many cells are left beside it."""

# Each layer has a colour and a mark, so that the bar can be read without colours as well.
_LOOKS: dict[layers.LayerKey, tuple[str, str, str]] = {
    "direct_compute": ("yellow", "#", "direct"),
    "reserved_capacity": ("cyan", "o", "reserved"),
    "rollback": ("magenta", "x", "rollback"),
    "response_labour": ("green", "l", "labour"),
    "schedule_slip": ("red", ">", "slip"),
}


def show(cost: layers.RunCost | layers.IncidentCost) -> None:
    """Print the cost to stdout, as wide as the terminal and in colour if it has colours."""
    console = Console(highlight=False, markup=False)
    if isinstance(cost, layers.IncidentCost):
        _incident(console, cost)
    else:
        _run(console, cost)
    print_bullets(console, cost.remarks)


def _incident(console: Console, cost: layers.IncidentCost) -> None:
    what = f"{cost.what} ({cost.subject})" if cost.subject else cost.what
    incident = wording.run_label(cost.run, cost.run_name, part=f"/{cost.name}")
    console.print(Text("Incident ", style="bold").append(_named(f"{incident}: {what}")))
    lasted = wording.duration(cost.ended_ns - cost.began_ns) + (
        "" if cost.over or cost.is_cut_off else " so far"
    )
    when = wording.span(cost.began_ns, cost.ended_ns)
    console.print(f"{when}, {lasted}, {wording.many(cost.gpus, 'GPU')}\n")
    lost = wording.resting(f"{wording.rough(cost.stack.lost_gpu_hours)} GPU-hours", cost.stack.basis)
    console.print(f"It lost {lost}{_set_back(cost.stack)}.")
    hours = [layer.gpu_hours for layer in cost.stack.layers]
    _stack(console, cost.stack, {"GPU-h": ["" if one is None else wording.rough(one) for one in hours]})
    _inputs(console, cost.stack)


def _run(console: Console, cost: layers.RunCost) -> None:
    console.print(Text("Run ", style="bold").append(_named(wording.run_label(cost.run, cost.run_name))))
    if not cost.last_ns:
        console.print("The log that it was imported from has no times, so what it cost is not known.")
        return
    lasted = wording.duration(cost.last_ns - cost.first_ns)
    console.print(f"{wording.span(cost.first_ns, cost.last_ns)}, {lasted}, {wording.many(cost.gpus, 'GPU')}")
    if cost.window != (None, None):
        console.print(f"Only {wording.window(*cost.window)}", style="dim")
    console.print()
    total, split = cost.total, cost.split
    lost, paid = wording.rough(total.lost_gpu_hours), f"{wording.rough(cost.paid_gpu_hours)} GPU-hours"
    if split.unknown_matters:
        paid = f"the {wording.rough(split.known_gpu_ns / HOUR_NS)} GPU-hours that are known"
    console.print(f"It lost {wording.resting(f'{lost} of {paid}', total.basis)}{_set_back(total)}.")
    amounts = wording.Amounts(split.paid_gpu_ns)
    three = amounts.three(split.useful_gpu_ns, split.lost_gpu_ns, split.unknown_gpu_ns)
    console.print(three + (f" ({wording.usd(cost.unknown_usd)})" if cost.unknown_usd else ""))
    largest = _largest(total)
    parts = {"in incidents": cost.in_incidents, "elsewhere": cost.elsewhere}
    columns = {
        heading: [wording.usd_cell(layer.usd, largest) for layer in stack.layers]
        for heading, stack in parts.items()
    }
    _stack(console, total, columns)
    _incidents(console, cost.incidents)
    _checkpointing(console, cost.checkpointing)
    _inputs(console, total)


def _set_back(stack: layers.Stack) -> str:
    """The same loss as progress; empty if it is unknown or zero."""
    progress = stack.progress
    if not progress.run_hours:
        return ""
    return f": {wording.set_back(progress.run_hours, progress.steps, progress.tokens)}"


def _stack(console: Console, stack: layers.Stack, columns: dict[str, list[str]]) -> None:
    """The range, the bar, and the layers with these columns beside their amounts."""
    if stack.together is not None:
        least, most = wording.usd(stack.together.usd_min), wording.usd(stack.together.usd_max)
        amount = least if least == most else f"between {least} and {most}"
        console.print(f"In money {wording.resting(amount, stack.basis)}, in five layers:", style="bold")
    if bar := _bar(stack, min(console.width, BAR_CELLS_MAX)):
        console.print(bar, no_wrap=True)
    listed = _layers(stack, columns, with_formulas=True)
    unbounded = console.options.update_width(COLUMNS_UNBOUNDED)
    if console.measure(listed, options=unbounded).maximum <= console.width:
        console.print(listed)
    else:
        console.print(_layers(stack, columns, with_formulas=False))
        for layer in stack.layers:
            console.print(f"{layer.title} = {_formula(layer)}", style="dim")
    if stack.together is not None:
        console.print(stack.together.caveat, style="dim")
    console.print()


def _layers(stack: layers.Stack, columns: dict[str, list[str]], *, with_formulas: bool) -> Table:
    shown = table("", word("layer"), *map(figure, (wording.currency(), *columns)))
    if with_formulas:
        shown.add_column("formula", style="dim", no_wrap=True)
    largest = _largest(stack)
    for layer, *cells in zip(stack.layers, *columns.values(), strict=True):
        colour, mark, _ = _LOOKS[layer.key]
        row = (Text(mark, style=colour), layer.title, wording.usd_cell(layer.usd, largest), *cells)
        shown.add_row(*row, *([_formula(layer)] if with_formulas else []))
    return shown


def _formula(layer: layers.Layer) -> str:
    return f"{layer.formula}, {layer.basis}" if layer.basis else layer.formula


def _largest(stack: layers.Stack) -> float:
    return max(layer.usd or 0.0 for layer in stack.layers)


def _bar(stack: layers.Stack, cells: int) -> Text:
    """The layers side by side, with names if they fit; each layer that is not zero has a cell at least."""
    amounts = {layer.key: layer.usd for layer in stack.layers if layer.usd}
    whole = sum(amounts.values())
    widths = {key: max(1, round(cells * amount / whole)) for key, amount in amounts.items()}
    bar = Text()
    if widths:
        largest = max(widths, key=lambda key: widths[key])
        widths[largest] = max(1, widths[largest] + cells - sum(widths.values()))
    for key, width in widths.items():
        colour, mark, name = _LOOKS[key]
        label = f" {name} " if width >= len(name) + LABEL_MARGIN_CELLS else ""
        bar.append(label.center(width, mark), style=colour)
    return bar


def _incidents(console: Console, incidents: Sequence[layers.IncidentLine]) -> None:
    if not incidents:
        console.print("No incidents are recorded.\n")
        return
    shown = incidents[:INCIDENTS_SHOWN_MAX]
    largest = max(amount or 0.0 for line in shown for amount in line.usd.values())
    what = Column("what", min_width=WHAT_CHARS_MIN)  # shrinks on a narrow terminal
    costs = table(figure("no."), what, *(figure(label) for _, _, label in _LOOKS.values()))
    for line in shown:
        told = _named(f"{line.what} ({line.subject})" if line.subject else line.what)
        costs.add_row(line.name, told, *(wording.usd_cell(usd, largest) for usd in line.usd.values()))
    count = f"{len(shown)} of {len(incidents):,}" if len(incidents) > len(shown) else f"{len(shown)}"
    console.print(f"Costliest incidents ({count}), {wording.currency()} by layer", style="bold")
    console.print(costs, "")


def _checkpointing(console: Console, told: layers.CheckpointThroughput) -> None:
    rows = []
    if told.actual is not None and told.healthy is not None:
        healthy = wording.resting(_per_day(told.healthy), told.basis)
        rows.append(("Throughput", f"{_per_day(told.actual)}; with nothing lost {healthy}"))
    if told.efficiency is not None:
        taken = "" if told.lost_to_saving is None else f", {_per_day(told.lost_to_saving)} lost to waiting"
        rows.append(("Checkpoints", f"{wording.percent(told.efficiency)} efficient{taken}"))
    if told.recovery_gpu_hours is not None:
        each = f"{wording.many(told.recoveries, 'time')}, {wording.rough(told.recovery_gpu_hours)} GPU-h each"
        taken = "" if told.lost_to_recovery is None else f", {_per_day(told.lost_to_recovery)} lost"
        rows.append(("Recovery", each + taken))
    rows.append(("Rollback risk", _risk(told)))
    console.print(table(word(style="bold"), "", rows=rows), "")


def _risk(told: layers.CheckpointThroughput) -> str:
    if told.exposure_now is None:
        return "not known: no checkpoint is recorded"
    named = (("on average", told.exposure_mean), ("at worst", told.exposure_worst))
    parts = [f"now {_exposure(told.exposure_now)}"]
    parts += [f"{name} {_exposure(exposure)}" for name, exposure in named if exposure is not None]
    return "; ".join([*parts, told.basis] if told.basis and told.exposure_worst else parts)


def _per_day(per_day: layers.PerDay) -> str:
    tokens = "" if per_day.tokens is None else f" ({wording.rough(per_day.tokens)} tokens)"
    return f"{_steps(per_day.steps)} a day{tokens}"


def _steps(steps: float) -> str:
    return f"{wording.rough(steps)} {'step' if steps == 1 else 'steps'}"


def _exposure(exposure: layers.Exposure) -> str:
    steps = _steps(exposure.steps)
    if not exposure.steps or exposure.gpu_hours is None or exposure.usd is None:
        return steps
    return f"{steps} ({wording.rough(exposure.gpu_hours)} GPU-h, {wording.usd(exposure.usd)})"


def _inputs(console: Console, stack: layers.Stack) -> None:
    """Every input once: its value, whether it is assumed, and its source."""
    inputs = {one.name: one for layer in stack.layers for one in layer.inputs}.values()
    assumed = [one for one in inputs if one.assumed]
    known = [one for one in inputs if not one.assumed and one.source != LEDGER]
    for heading, rows in (("Assumed", assumed), ("Given", known)):
        if rows:
            console.print(heading, style="bold")
            if console.width >= SOURCES_COLUMNS_MIN:
                cells = ((one.name, _value(one), printable(one.source)) for one in rows)
                console.print(table(word(), figure(), Column(style="dim"), rows=cells))
            else:
                for one in rows:
                    console.print(f"{one.name} {_value(one)}: {printable(one.source)}")
    measured = [one for one in inputs if one.source == LEDGER]
    if measured:
        console.print("Measured", style="bold")
        console.print("; ".join(f"{one.name}: {wording.rough(one.value)} {one.unit}" for one in measured))
    console.print()


def _value(one: layers.Input) -> str:
    return wording.with_unit(one.value, one.unit)


def _named(name: str) -> str:
    return printable(wording.short(name))
