"""Simulated runs for a reader at a terminal: the policies side by side, and what they rest on."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from holdfast.cli.terminal import printable
from holdfast.dashboard import wording
from holdfast.twin.sweep import Comparison, Spread, Summary

LOSSES_SHOWN_MAX = 5
"""The largest losses of a policy; the rest is in `--json`."""
_KEPT = ("useful",)


def show(compared: Comparison) -> None:
    console = Console(highlight=False)
    runs = wording.many(compared.runs, "run")
    console.print(
        f"{printable(compared.preset)}: {compared.gpus:,} GPUs for {compared.days:g} days, {runs} "
        f"from seed {compared.seed}",
        markup=False,
        soft_wrap=True,
    )
    console.print()
    console.print(_table(compared))
    console.print()
    for summary in compared.policies:
        console.print(f"{summary.policy} loses most to {_losses(summary)}.", markup=False, soft_wrap=True)
    console.print()
    if compared.is_exact:
        console.print("The ledger of every run agrees with the simulation's own sums to the nanosecond.")
    else:
        console.print("The ledger of some runs does not agree with the simulation: please report this.")
    _show_sources(console, compared)


def _table(compared: Comparison) -> Table:
    """One line a policy; with several runs a second one, for where four of five of them lie."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    columns = ("", "interrupted", "effective time", "useful of paid", "GPU-h lost", "USD lost", "USD saved")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for number, one in enumerate(compared.policies):
        cells: list[tuple[Spread, Callable[[float], str]]] = [
            (one.interruptions, _whole),
            (one.effective_time, _percent),
            (one.goodput, _percent),
            (one.lost_gpu_hours, compact),
            (one.cost_usd, compact),
        ]
        if number:
            cells.append((one.saved_usd, compact))
        table.add_row(one.policy, *(words(spread.p50) for spread, words in cells))
        if compared.runs > 1:
            ranges = [f"{words(spread.p10)} … {words(spread.p90)}" for spread, words in cells]
            table.add_row("", *ranges, style="dim")
    return table


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def compact(value: float) -> str:
    """Three figures: 1.87 M, 447 k, -5.67 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _losses(summary: Summary) -> str:
    parts = [(hours, key) for key, hours in summary.partition_gpu_hours.items() if key not in _KEPT]
    total = sum(hours for hours, _ in parts) or 1.0
    largest = sorted(parts, reverse=True)[:LOSSES_SHOWN_MAX]
    named = [
        f"{key.replace('_', ' ')} ({hours / total:.0%})" for hours, key in largest if hours / total >= 0.01
    ]
    return ", ".join(named) or "nothing"


def _show_sources(console: Console, compared: Comparison) -> None:
    console.print()
    console.print("What this rests on", style="bold")
    price = f"{compared.usd_per_gpu_hour:g} USD a GPU-hour: {compared.price_source}"
    lines = [compared.source, price, *(f"{one.policy}: {one.source}" for one in compared.policies)]
    for line in lines:
        console.print(f"  {printable(line)}", markup=False, style="dim", soft_wrap=True)
