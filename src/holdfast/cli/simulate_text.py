"""Simulated runs in the terminal: the policies side by side, and their assumptions."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Column, Table

from holdfast import wording
from holdfast.cli.tables import print_bullets, table
from holdfast.cli.terminal import printable
from holdfast.ledger.split import LOSSES
from holdfast.twin.sweep import Comparison, Spread, Summary

LOSSES_SHOWN_MAX = 5
"""How many of a policy's largest losses are shown; `--json` has all."""


def show(compared: Comparison) -> None:
    console = Console(highlight=False)
    runs = wording.many(compared.runs, "run")
    console.print(
        f"{printable(compared.preset)}: {compared.gpus:,} GPUs and {_spares(compared)} for "
        f"{wording.many(compared.days, 'day')}, {runs} from seed {compared.seed}",
        markup=False,
    )
    expected = wording.rough(compared.expected_interruptions)
    console.print(f"Expected at its failure rates: {expected} interruptions\n", markup=False)
    console.print(_table(compared), "")
    for summary in compared.policies:
        console.print(f"{summary.policy}: {summary.three}.", markup=False)
        console.print(f"{summary.policy} loses most to {_losses(summary)}.", markup=False)
    console.print()
    if compared.is_exact:
        console.print("The ledger of every run agrees with the simulation's own sums to the nanosecond.")
    else:
        console.print("The ledger of some runs does not agree with the simulation: please report this.")
    _show_sources(console, compared)


def _spares(compared: Comparison) -> str:
    """The spare nodes; a range if the policies differ."""
    counts = sorted({one.spare_nodes for one in compared.policies})
    most = wording.many(counts[-1], "spare node")
    return most if len(counts) == 1 else f"{counts[0]:,} to {most}"


def _table(compared: Comparison) -> Table:
    """A line for each policy: the median of its runs, and P10 and P90."""
    # Headings have short lines, so that the table fits a terminal of 80 columns.
    money = (f"{wording.currency()}\n{what}" for what in ("lost", "saved"))
    headings = ("interrupted", "effective\ntime", "useful\nof known", "GPU-h\nlost", *money)
    lines = table("", *(Column(heading, justify="right") for heading in headings))
    for number, one in enumerate(compared.policies):
        cells = _cells(one, with_saved=number > 0)
        lines.add_row(one.policy, *(words(spread.p50) for spread, words in cells))
        if compared.runs > 1:
            lines.add_row("  P10", *(words(spread.p10) for spread, words in cells), style="dim")
            lines.add_row("  P90", *(words(spread.p90) for spread, words in cells), style="dim")
    return lines


def _cells(summary: Summary, *, with_saved: bool) -> list[tuple[Spread, Callable[[float], str]]]:
    saved = [(summary.saved_usd, _money)] if with_saved else []
    return [
        (summary.interruptions, "{:,.0f}".format),
        (summary.effective_time, wording.percent),
        (summary.goodput, wording.percent),
        (summary.lost_gpu_hours, compact),
        (summary.cost_usd, _money),
        *saved,
    ]


def _money(usd: float) -> str:
    return compact(wording.converted(usd))


def compact(value: float) -> str:
    """A number with three digits: 1.87 M, 447 k, −5.67 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{wording.number(value / size, 3)} {unit}"
    return wording.number(value, 3)


def _losses(summary: Summary) -> str:
    parts = [(summary.partition_gpu_hours[category.key], category.key) for category in LOSSES]
    total = sum(hours for hours, _ in parts) or 1.0
    largest = sorted(parts, reverse=True)[:LOSSES_SHOWN_MAX]
    named = [
        f"{key.replace('_', ' ')} ({hours / total:.0%})" for hours, key in largest if hours / total >= 0.01
    ]
    return ", ".join(named) or "nothing"


def _show_sources(console: Console, compared: Comparison) -> None:
    console.print("\nWhat this rests on", style="bold")
    price = f"{wording.usd(compared.usd_per_gpu_hour)} a GPU-hour: {compared.price_source}"
    lines = [compared.source, price, *(f"{one.policy}: {one.source}" for one in compared.policies)]
    print_bullets(console, lines)
