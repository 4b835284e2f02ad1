"""`holdfast plan run` in the terminal: the end and its methods, what would help, what bad GPUs cost."""

from rich.console import Console
from rich.table import Column, Table

from holdfast import wording
from holdfast.cli.plan.losses_text import loss_rows
from holdfast.cli.tables import figure, table, word
from holdfast.cli.terminal import printable
from holdfast.twin.foresight import BadGpus, Forecast
from holdfast.wording.units import DAY_S

LABEL_CHARS = 24
RUNS_FEW = 10
"""With fewer simulated, their quantiles are those of chance."""
WIDE_DAYS = 1.0
"""Between P10 and P90; below this, days have a second decimal."""


def show(told: Forecast) -> None:
    """Print the answer to stdout, as wide as the terminal."""
    console = Console(highlight=False, markup=False)
    _headline(console, told)
    _sides(console, told)
    _worth(console, told)
    _bad(console, told)
    _assumed(console, told)


def _headline(console: Console, told: Forecast) -> None:
    best, days = told.best, _Days(told)
    console.print(printable(told.title))
    work = f"{wording.many(round(told.work_days, 2), 'day')} of training"
    console.print(
        f"{work} {'takes' if told.work_days == 1 else 'take'} {days(best.p50_days)} (P50), "
        f"{days(best.p10_days)} to {days(best.p90_days)} (P10 to P90).",
        style="bold",
    )
    if told.done_ns is not None:
        p10, p50, p90 = map(wording.moment, told.done_ns)
        console.print(f"Done on {p50} UTC (P50), between {p10} (P10) and {p90} (P90).", style="bold")
    often = f"A failure every {told.mtbf_h:,.1f} h, {wording.rough(told.interruptions)} interruptions in all"
    console.print(f"{often}; recovery: {printable(told.policy)}.\n")
    if told.losses:
        console.print(table(rows=loss_rows(told.losses)), "")


def _sides(console: Console, told: Forecast) -> None:
    days = _Days(told)
    sided = _table("", "goodput", "mean", "P10", "P50", "P90")
    if told.ettr is not None:
        mean = days(told.work_days / told.ettr) if told.ettr > 0 else "never"
        sided.add_row("ETTR, Kokolis et al.", wording.percent(told.ettr), mean)
    sides = {
        "formula": told.formula,
        f"twin, {wording.many(told.twin_runs, 'run')}": told.twin,
        "formula, rate uncertain": told.unsure,
    }
    for label, side in sides.items():
        if side is not None:
            moments = (side.mean_days, side.p10_days, side.p50_days, side.p90_days)
            sided.add_row(label, wording.percent(side.goodput), *map(days, moments))
    console.print(sided)
    if told.ettr_remark:
        console.print(told.ettr_remark, style="dim")
    if told.twin_unfinished:
        console.print(
            f"{told.twin_unfinished} of the twin's runs were given up unfinished, so its days are too few.",
            style="dim",
        )
    if told.twin is not None and told.twin_runs < RUNS_FEW:
        console.print(
            "So few runs of the twin may all be lucky or unlucky: --runs 10 tells more. What would help is "
            "computed by the formula.",
            style="dim",
        )
    if told.is_rough:
        console.print("So few interruptions are expected that the quantiles are rough.", style="dim")
    console.print()


def _worth(console: Console, told: Forecast) -> None:
    if not told.worth:
        return
    helping = _table("what would help, each alone", "goodput", "sooner", "GPU-hours", wording.currency())
    largest = max(abs(one.usd) for one in told.worth)
    for one in told.worth:
        helping.add_row(
            one.name,
            wording.percent(one.goodput),
            wording.duration(round(one.days_sooner * DAY_S * 1e9)),
            wording.rough(one.gpu_hours),
            wording.usd_cell(one.usd, largest),
        )
    console.print(helping)
    console.print(f"at {wording.usd(told.usd_per_gpu_hour)} a GPU-hour\n", style="dim")


def _bad(console: Console, told: Forecast) -> None:
    bad = told.bad_gpus
    of, effect = bad.degraded, bad.effect
    share = f"{wording.number(100 * of.share)} %"
    console.print(
        f"If {share} of the GPUs ({of.share * of.gpus:,.0f}) are bad at any time, they are in "
        f"{wording.percent(effect.nodes_hit)} of the nodes and {wording.percent(effect.members_hit)} of the "
        f"replicas of {of.member_gpus}:",
        style="bold",
    )
    outputs = _table("", "output", "lost")
    for way, output in _ways(bad):
        outputs.add_row(way, wording.percent(output), wording.percent(1 - output))
    console.print(outputs)
    console.print(
        f"{share} costs a tenth or more where {bad.tenth_unit_gpus} GPUs go together, or where all wait for "
        f"one that is {bad.tenth_slowdown:.2f} times as slow.\n"
    )


def _ways(bad: BadGpus) -> list[tuple[str, float]]:
    effect, slow = bad.effect, f"{wording.number(bad.degraded.slowdown)} times as slow"
    return [
        (f"{slow}, all wait for them", effect.waiting),
        (f"{slow}, lanes dealt by speed", effect.rebalanced),
        ("... and their nodes brought into the same replicas", effect.gathered),
        ("dead, the run needs all", effect.dead_waiting),
        ("dead, without their replicas", effect.without_members),
        ("dead, without their nodes, replicas formed anew", effect.without_nodes),
    ]


def _assumed(console: Console, told: Forecast) -> None:
    if not told.assumed:
        return
    console.print("Assumed", style="bold")
    rows = ((one.what, f"{printable(one.value)}: {printable(one.source)}") for one in told.assumed)
    console.print(table(word(), "", rows=rows))


def _table(first: str, *others: str) -> Table:
    return table(Column(first, min_width=LABEL_CHARS), *map(figure, others), header_style="dim")


class _Days:
    """Days with as many decimals as needed to tell the quantiles apart."""

    def __init__(self, told: Forecast) -> None:
        self._decimals = 1 if told.best.p90_days - told.best.p10_days >= WIDE_DAYS else 2

    def __call__(self, days: float) -> str:
        return f"{days:,.{self._decimals}f} d"
