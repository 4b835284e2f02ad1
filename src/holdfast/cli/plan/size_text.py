"""`holdfast plan size` in the terminal: the answer, the table behind it, and the assumptions."""

from collections.abc import Sequence
from itertools import zip_longest

import msgspec
from rich.console import Console

from holdfast import wording
from holdfast.cli.plan.losses_text import loss_rows
from holdfast.cli.tables import figure, table, word
from holdfast.economics.sizing.pace import setup_of
from holdfast.economics.sizing.sizing import GIB, Sized, range_gib
from holdfast.economics.sizing.starting import Printed
from holdfast.economics.sizing.survival import Survival
from holdfast.ledger.references import differences, published

MAY_RUN_OUT = "*: may run out of memory; measure one step first."
WIDE_COLUMNS_MIN = 100
"""On a narrower terminal the ranking leaves out columns that `--json` and a check of the layout have."""
_ONLY_WIDE = ("micro", "accum", "recompute", "MFU")
_FLUSH_LEFT = ("layout", "recompute")

_PACE = {
    "compute_s": "the model's FLOPs",
    "recompute_s": "computed again",
    "tensor_s": "tensor parallel exchange",
    "context_s": "context parallel exchange",
    "expert_s": "expert parallel exchange",
    "pipeline_s": "to the next stage and back",
    "imbalance_s": "waiting for the fullest stage",
    "bubble_s": "pipeline bubble",
    "data_s": "data parallel exchange, not hidden",
    "unexplained_s": "down to the published MFU",
}
_HIDDEN = {"expert_hidden_s": "expert parallel exchange", "data_hidden_s": "data parallel exchange"}


def show_ranked(told: Printed, rows: int) -> None:
    """The best layout in words, then the table."""
    console = Console(highlight=False, markup=False)
    best = told.sized[0]
    fit = "may fit" if best.may_run_out else "fit"
    which = f"is the quickest of {len(told.sized)} layouts that {fit}"
    if len(told.sized) == 1:
        which = f"is all that {fit if best.may_run_out else 'fits'}"
    console.print(f"{_where(told)}: {best.layout} {which}.", style="bold")
    _say(console, told, best)
    _ranking(console, told.sized[:rows])
    if len(told.sized) > rows:
        console.print(f"and {len(told.sized) - rows:,} more; see --limit", style="dim")
    equal = sum(one.pace.step_s == best.pace.step_s for one in told.sized)
    if equal > 1:
        console.print(
            f"{equal:,} layouts are equally quick: none is credited with more than the published MFU.",
            style="dim",
        )
    console.print(f"Ranked by the {told.ranked_by}.", style="dim")
    if any(one.may_run_out for one in told.sized[:rows]):
        console.print(MAY_RUN_OUT, style="dim")
    console.print()
    _assumptions(console, told)


def show_checked(told: Printed) -> None:
    """One layout: that it fits, and the memory and time that it takes."""
    console = Console(highlight=False, markup=False)
    sized = told.sized[0]
    verdict = "may run out of memory" if sized.may_run_out else "fits"
    room = f"{range_gib(sized.memory_range)} of {_gib(told.memory_bytes)} GiB a GPU"
    console.print(f"{_where(told)}: {sized.layout} {verdict}, with {room}.", style="bold")
    _say(console, told, sized)
    _breakdown(console, sized)
    _assumptions(console, told)


def _where(told: Printed) -> str:
    cluster = told.case.cluster
    return f"{told.case.name} on {cluster.gpus:,} {cluster.chip.upper()}"


def _say(console: Console, told: Printed, sized: Sized) -> None:
    """The layout's cost, its settings, and the effect of losing a node."""
    tokens = f"{told.case.training.tokens / 1e9:,.0f} billion tokens"
    rate = f"{_seconds(sized.pace.step_s)} a step, MFU {sized.pace.mfu_percent:.1f} %"
    rows = [
        ("cost", f"{_days(sized.days)} and {wording.usd(sized.usd)} for {tokens}; {rate}"),
        ("set-up", _set_up(told, sized)),
        *(loss_rows(sized.losses) or [("node lost", _loss(sized.survival))]),
    ]
    console.print(table(rows=rows), "")


def _set_up(told: Printed, sized: Sized) -> str:
    training, layout = told.case.training, sized.layout
    if training.lanes is None:
        product = f"{sized.micro_batches} accumulated x micro-batch {layout.micro_batch} x DP {layout.dp}"
    else:
        most = -(-training.lanes // layout.dp)
        product = f"{training.lanes} lanes, {most} on a member at most, micro-batch {layout.micro_batch}"
    if layout.shard is not None:
        replicas = wording.many(layout.copies, "replica")
        product += f"; {replicas} of {wording.many(layout.copy_gpus, 'GPU')}"
    stages = f", {layout.interleave} pipeline stages a GPU" if layout.interleave > 1 else ""
    memory = f"ZeRO {layout.zero}, {layout.recompute} recomputation{stages}"
    return f"global batch {training.global_batch:,} = {product}; {memory}"


def _loss(after: Survival) -> str:
    if not after.survives:
        return f"the run stops: {after.sentence}"
    slower = f", a step takes {_longer(after)} longer" if after.slowdown and after.slowdown > 1 else ""
    idle = f", {wording.many(after.idle_gpus, 'GPU')} idle" if after.idle_gpus else ""
    state = "a snapshot or checkpoint" if after.needs_saved else "a peer's memory"
    return f"{after.sentence}{slower}{idle}; state comes from {state}"


def _longer(after: Survival) -> str:
    return f"{100 * ((after.slowdown or 1) - 1):.1f} %"


def _ranking(console: Console, sized: Sequence[Sized]) -> None:
    rows = [_cells(one) for one in sized]
    shown = [one for one in rows[0] if console.width >= WIDE_COLUMNS_MIN or one not in _ONLY_WIDE]
    columns = [word(heading) if heading in _FLUSH_LEFT else figure(heading) for heading in shown]
    console.print(table(*columns, rows=[[row[heading] for heading in shown] for row in rows]))


def _cells(sized: Sized) -> dict[str, str]:
    """The cells, by their headings."""
    layout, after, span = sized.layout, sized.survival, sized.memory_range
    star = "*" if sized.may_run_out else " "
    return {
        "layout": str(layout),
        "micro": str(layout.micro_batch),
        "accum": f"{sized.micro_batches:,}",
        "ZeRO": str(layout.zero),
        "recompute": layout.recompute,
        "GiB": f"{span.low_bytes / GIB:.0f} to {span.high_bytes / GIB:.0f}{star}",
        "MFU": f"{sized.pace.mfu_percent:.1f} %",
        "s/step": f"{sized.pace.step_s:,.2f}",
        "days": f"{sized.days:,.1f}",
        wording.currency(): f"{wording.converted(sized.usd):,.0f}",
        "node lost": f"+{_longer(after)}" if after.survives else "stops",
    }


def _breakdown(console: Console, sized: Sized) -> None:
    """Memory and step time, part by part, side by side."""
    used = ((key.removesuffix("_bytes"), size) for key, size in msgspec.structs.asdict(sized.memory).items())
    memory = [(label, f"{_gib(size)} GiB") for label, size in used if size]
    parts = ((label, getattr(sized.pace, field)) for field, label in _PACE.items())
    step = [(label, _seconds(seconds)) for label, seconds in parts if seconds]
    rows = [(*left, *right) for left, right in zip_longest(memory, step, fillvalue=("", ""))]
    console.print(table(word("memory of a GPU"), figure(), word("a step"), figure(), rows=rows), "")


def _hidden(sized: Sized) -> str:
    """The exchanges of the first layout that computing hides."""
    hidden = ((label, getattr(sized.pace, name)) for name, label in _HIDDEN.items())
    parts = [f"{_seconds(time_s)} of {label}" for label, time_s in hidden if time_s]
    return f"computing hides {' and '.join(parts)} in a step of {sized.layout}" if parts else ""


def _assumptions(console: Console, told: Printed) -> None:
    row = told.rate.reference
    where = f"{row.model} on {row.gpus:,} {row.chip.upper()}"
    rate = f"the rate of {where}: {row.mfu_percent:.1f} % MFU ({published().sources[row.source].cite()})"
    if told.rate.runs > 1:
        low, high = told.rate.low_percent, told.rate.high_percent
        rate += f", the median of {told.rate.runs} published near this size: {low:.1f} to {high:.1f} %"
    unlike = differences(setup_of(told.case), row)
    rate = f"{rate}, which has {', '.join(unlike)}" if unlike else rate
    precision = told.case.cluster.precision
    if row.precision != precision:
        slower = f"steps are taken to be as quick as in {row.precision}"
        rate += f"; no run in {precision} is published: its {slower}"
    memory = f"memory: {told.sized[0].memory_range.basis}"
    lines = filter(None, (rate, memory, _hidden(told.sized[0]), *told.assumed))
    console.print("Assumed", style="bold")
    console.print(table(rows=[("•", line) for line in lines], gap=1))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:,.1f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.2f} s"


def _days(days: float) -> str:
    return f"{days:,.1f} days" if days >= 1 else f"{days * 24:,.1f} hours"
