"""A cadence in the terminal: the answer in two lines, then every rule, the levels, and the assumptions."""

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.tables import figure, print_bullets, table, word
from holdfast.cli.terminal import printable
from holdfast.economics.cadence.advice import EXPONENTIAL, Advice, Choice, LevelAdvice, Rule
from holdfast.economics.cadence.inputs import PRESENT_INTERVAL
from holdfast.economics.pricing.layers import Input

_LABELS: dict[Rule, str] = {
    "now": "now",
    "whole_steps": "optimum, whole steps",
    "optimum": "optimum",
    "daly": "Daly",
    "young": "Young",
    "rfo": "Aupy, first order",
    "daly_first_order": "Daly, first order",
}
"""The rules' labels, in the order in which they are shown."""


def show(advice: Advice) -> None:
    """Print the cadence to stdout, as wide as the terminal and in colour if it has colours."""
    console = Console(highlight=False, markup=False)
    choices = {choice.rule: choice for choice in advice.choices}
    _answer(console, advice, choices)
    console.print("", _rules(advice, choices))
    if advice.distribution != EXPONENTIAL and advice.efficiency_stderr is not None:
        points = f"{100 * advice.efficiency_stderr:.2f}"
        how = f"times between failures are {printable(advice.distribution)}"
        console.print(
            f"Simulated: {how}. The standard error of what is kept is {points} points.", style="dim"
        )
    if advice.levels is not None:
        _levels(console, advice.levels)
    _inputs(console, advice.inputs)
    print_bullets(console, advice.remarks)


def _answer(console: Console, advice: Advice, choices: dict[Rule, Choice]) -> None:
    best, now = choices.get("whole_steps", choices["optimum"]), choices["now"]
    steps = "" if advice.optimum_steps is None else f", {wording.many(advice.optimum_steps, 'step')}"
    kept = f"{wording.percent(best.efficiency)} of the time is kept"
    console.print(f"Checkpoint every {_duration(best.interval_s)}{steps}: {kept}.", style="bold")
    lost = f"{wording.rough(advice.regret_gpu_hours_per_day)} GPU-hours a day less"
    present = f"Every {_duration(now.interval_s)}, as now"
    for one in advice.inputs:
        if one.name == PRESENT_INTERVAL and one.assumed:
            present = f"Every {_duration(now.interval_s)}, as is assumed of now"
        elif one.name == PRESENT_INTERVAL and one.value < now.interval_s:
            present = (
                f"Every {_duration(now.interval_s)}, the least possible in place of {_duration(one.value)}"
            )
    worth = f"{wording.percent(now.efficiency)}: {lost}, {wording.usd(advice.regret_usd_per_day)}"
    console.print(f"{present}, it is {worth}.")


def _rules(advice: Advice, choices: dict[Rule, Choice]) -> Table:
    with_steps = advice.optimum_steps is not None
    figures = ("every", *(("steps",) if with_steps else ()), "kept", "GPU-h lost a day")
    rules = table(word("rule"), *map(figure, (*figures, f"{wording.currency()} a day")))
    largest = max(choice.lost_usd_per_day for choice in advice.choices)
    for rule, label in _LABELS.items():
        if (choice := choices.get(rule)) is None:
            continue
        steps = (wording.rough(choice.steps),) if with_steps and choice.steps is not None else ()
        rules.add_row(
            Text(label, style="bold" if rule in ("now", "optimum") else ""),
            _duration(choice.interval_s),
            *steps,
            f"{100 * choice.efficiency:.2f} %",
            wording.rough(choice.lost_gpu_hours_per_day),
            wording.usd_cell(choice.lost_usd_per_day, largest),
        )
    return rules


def _levels(console: Console, levels: LevelAdvice) -> None:
    gained = f"{wording.rough(levels.gained_gpu_hours_per_day)} GPU-hours a day"
    kept, alone = wording.percent(levels.efficiency), wording.percent(levels.efficiency_of_one)
    console.print(
        f"\nWith levels {kept} would be kept instead of {alone}, to first order: {gained}.", style="bold"
    )
    listed = table(word("level"), *map(figure, ("every", "steps", "for failures every", "overhead")))
    for level in levels.levels:
        steps = wording.UNKNOWN if level.steps is None else f"{level.steps:,}"
        row = (_duration(level.interval_s), steps, _duration(level.mtbf_s), f"{100 * level.overhead:.2f} %")
        listed.add_row(printable(level.name), *row)
    console.print(listed)
    for name in levels.dropped:
        console.print(f"{printable(name)} is left out: it would cost more than it saves.")


def _inputs(console: Console, inputs: tuple[Input, ...]) -> None:
    for heading, assumed in (("Assumed", True), ("Known", False)):
        rows = [one for one in inputs if one.assumed is assumed]
        if not rows:
            continue
        console.print(f"\n{heading}", style="bold")
        cells = ((one.name, _amount(one), printable(one.source)) for one in rows)
        console.print(table(word(), figure(), Column(style="dim"), rows=cells))


def _amount(one: Input) -> str:
    if one.unit == "s":
        return _duration(one.value)
    if one.unit == "USD":
        return wording.usd(one.value)
    return f"{wording.number(one.value, 4)} {one.unit}".rstrip() if one.unit else f"{one.value:,.0f}"


def _duration(duration_s: float) -> str:
    return wording.duration(round(duration_s * 1e9))
