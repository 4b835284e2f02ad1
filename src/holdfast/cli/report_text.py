"""A report in the terminal: the partition as a bar and a table, the ratios, the costliest incidents."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column
from rich.text import Text

from holdfast import wording
from holdfast.cli.tables import GAP_CHARS, figure, table, word
from holdfast.cli.terminal import printable
from holdfast.ledger.categories import Category
from holdfast.ledger.opinions import SLOWER_RATIO_MIN
from holdfast.ledger.report import CheckpointCosts, CheckpointReach, IncidentReport, Report, StepReference

INCIDENTS_SHOWN_MAX = 8
BAR_CELLS_MAX = 100
MEANINGS_COLUMNS_MIN = 80
"""On a narrower terminal the meanings of categories would wrap, so they are left out."""
BASIS_COLUMNS_MIN = 100
"""On a narrower terminal a mark says which figures are estimated."""
ABOUT = "~"
WHAT_CHARS_MIN = 14
"""The least width of the column `what`: on a narrow terminal the other columns shrink first."""
UNEXPLAINED_RESTART = "unexplained restart"
"""The ledger's name for restarts without a recorded reason."""

# Each category has a colour and a mark, so that the bar can be read without colours as well. No mark is `?`,
# which stands for █ in encodings that lack it.
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
    Category.LOCALISING: ("bright_red", "l"),
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
    """Print the report to stdout, as wide as the terminal and in colour if it has colours."""
    console = Console(highlight=False, markup=False)
    _head(console, told)
    _dangers(console, told)
    if told.paid_gpu_ns:
        _partition(console, told)
        _ratios(console, told)
    _incidents(console, told)
    console.print(table(rows=(("•", printable(remark)) for remark in told.remarks), gap=1))


def _head(console: Console, told: Report) -> None:
    console.print(Text("Run ", style="bold").append(printable(told.label)))
    length = wording.duration(told.last_ns - told.first_ns)
    gpus = wording.many(told.gpus, told.counted)
    when = "times not known" if told.is_untimed else f"{wording.span(told.first_ns, told.last_ns)}, {length}"
    console.print(f"{when}, {gpus}")
    if (ended := told.ended) is not None:
        words = wording.ending(ended.outcome, ended.reason, ended.survived_errors)
        console.print(printable(words), style="red" if ended.outcome == "failed" else "")
    if told.window != (None, None):
        console.print(f"Only {wording.window(*told.window)}", style="dim")
    if (accrued := told.accrued) is not None:
        hours = wording.Amounts(accrued.gpu_ns).hours(accrued.gpu_ns)
        since = wording.duration(accrued.to_ns - accrued.from_ns)
        console.print(
            f"Still running: {hours} {told.counted}-hours accrued in the {since} since its last event, "
            "on top of these"
        )
    console.print()


def _dangers(console: Console, told: Report) -> None:
    """What endangered the run, and may still."""
    if told.dangers:
        rows = ((Text("!", style="red"), printable(one.sentence)) for one in told.dangers)
        console.print("What endangered it", style="bold")
        console.print(table(rows=rows, gap=1), "")


def _partition(console: Console, told: Report) -> None:
    amounts = told.amounts
    console.print(_headline(told, amounts), style="bold")
    split = told.split
    console.print(amounts.three(split.useful_gpu_ns, split.lost_gpu_ns, split.unknown_gpu_ns))
    parts = [(category, told.partition[category.key]) for category in _LOOKS]
    console.print(_bar(parts, told.paid_gpu_ns, min(console.width, BAR_CELLS_MAX)), no_wrap=True)
    is_wide = console.width >= BASIS_COLUMNS_MIN
    columns = [word(), word(), figure(), figure()]
    if told.estimated and is_wide:
        columns.append(word())
    if console.width >= MEANINGS_COLUMNS_MIN:
        columns.append(Column(style="dim"))
    parts_table = table(*columns)
    rows = [
        (
            Text(_LOOKS[category][1], style=_LOOKS[category][0]),
            category.label,
            gpu_ns,
            told.basis if category.key in told.estimated else "",
            category.meaning,
        )
        for category, gpu_ns in parts
        if gpu_ns
    ]
    whole = (Text(), "sum", told.paid_gpu_ns, "", "to the nanosecond")
    for mark, label, gpu_ns, basis, meaning in (*rows, whole):
        rests = (basis,) if told.estimated and is_wide else ()
        share = amounts.share(gpu_ns) if is_wide or not basis else f"{ABOUT}{amounts.share(gpu_ns)}"
        cells = (
            mark,
            label,
            share,
            amounts.hours(gpu_ns) + (" h" if told.on_cpu else " GPU-h"),
            *rests,
            meaning,
        )
        parts_table.add_row(*cells[: len(columns)])
    console.print(parts_table)
    if told.estimated and not is_wide:
        console.print(f"{ABOUT} {told.basis}", style="dim")
    console.print()


def _headline(told: Report, amounts: wording.Amounts) -> str:
    paid = f"{amounts.hours(told.paid_gpu_ns)} {told.counted}-hours paid for"
    if told.paid_usd is not None:
        paid += f" ({wording.usd(told.paid_usd)})"
    if told.goodput.total is None:
        return f"Nothing recorded says how the {paid} were used."
    useful = wording.resting(wording.percent(told.goodput.total), told.goodput.basis)
    split, bounds = told.split, told.goodput.bounds
    of_known = f"{useful} of {paid} were useful."
    if split.is_partly_known and bounds is not None:
        known = amounts.hours(split.known_gpu_ns)
        of_known = f"{useful} of the {known} {told.counted}-hours that are known were useful. "
        of_known += f"Of all {paid}, {wording.between(bounds)} were."
    least = told.goodput.total_min
    doubt = "" if least is None else f" If the longer steps are a slowdown, {wording.percent(least)} were."
    slower = [one for one in told.opinions if one.ratio >= SLOWER_RATIO_MIN and one.source != "published"]
    other = ""
    if slower:
        other = f" But it is {slower[0].ratio:.1f} times slower than {_named(slower[0].source)}."
    return f"{of_known}{doubt}{other}"


def _bar(parts: list[tuple[Category, int]], whole: int, cells: int) -> Text:
    """The parts side by side. Each part that is not zero has a cell, at the expense of the largest."""
    widths = {category: max(1, round(cells * part / whole)) for category, part in parts if part}
    largest = max(widths, key=lambda category: widths[category])
    widths[largest] = max(1, widths[largest] + cells - sum(widths.values()))
    bar = Text()
    for category, width in widths.items():
        colour, mark = _LOOKS[category]
        bar.append(mark * width, style=colour)
    return bar


def _ratios(console: Console, told: Report) -> None:
    bandwidth = told.bandwidth.sentence if told.bandwidth else "unknown; record collective.timed events"
    rows = [
        ("Goodput", _goodput(told)),
        ("ETTR", _ettr(told)),
        *((("Reference", _reference(told.reference, told.counted)),) if told.reference is not None else ()),
        ("Counts", _counts(told)),
        *((("Checkpoints", said),) if (said := _checkpoints(told.saved)) else ()),
        ("MFU", _mfu(told)),
        ("Bandwidth", printable(bandwidth)),
    ]
    console.print(table(word(style="bold"), "", rows=rows), "")


def _reference(reference: StepReference, counted: str) -> str:
    step, gpus = wording.duration(reference.step_ns), wording.many(reference.gpus, counted)
    said = f"{step} a step on {gpus}, {reference.basis}"
    steps_ns = {one.step_ns for one in reference.stretches}
    if len(steps_ns) < 2:
        return said
    least, most = wording.duration(min(steps_ns)), wording.duration(max(steps_ns))
    return f"{said}; {len(steps_ns)} in the run, from {least} to {most}"


def _goodput(told: Report) -> str:
    goodput = told.goodput
    product = f"scheduling {_ratio(goodput.scheduling)} × runtime {_ratio(goodput.runtime)}"
    total = wording.resting(_ratio(goodput.total), goodput.basis)
    return f"{total} = {product}; program {_ratio(goodput.program)}"


def _ettr(told: Report) -> str:
    ettr = told.ettr
    if ettr.sliding is ettr.sliding_min is None and ettr.cumulative is not None:
        return _ratio(ettr.cumulative)
    window = f"over {wording.duration(ettr.sliding_window_ns)}"
    return (
        f"{_ratio(ettr.cumulative)}; {window}: last {_ratio(ettr.sliding)}, worst {_ratio(ettr.sliding_min)}"
    )


def _counts(told: Report) -> str:
    counts = told.counts
    failed = counts.saves_failed
    return ", ".join(
        (
            wording.kept(counts.steps),
            wording.many(counts.restarts, "restart"),
            wording.many(counts.loads, "load"),
            wording.many(counts.saves, "save") + (f" ({failed:,} failed)" if failed else ""),
            f"{wording.many(counts.members_lost, 'member')} lost",
            *([wording.many(counts.takeovers, "takeover")] if counts.takeovers else ()),
        )
    )


def _checkpoints(saved: CheckpointReach) -> str:
    """The cost and the value of checkpoints; empty if neither was recorded."""
    said = [] if saved.costs is None else _checkpoint_costs(saved.costs)
    if saved.restore_s_mean is not None:
        said.append(f"a restore took {_seconds(saved.restore_s_mean)}")
    if said or saved.proven_ns is not None:
        said.append(f"{wording.many(saved.since_steps, 'step')} since the last")
    for verdict, step, at_ns in (
        ("proven", saved.proven_step, saved.proven_ns),
        ("found wrong", saved.refuted_step, saved.refuted_ns),
    ):
        if step is not None and at_ns is not None:
            said.append(f"step {step} {verdict} {wording.stamp(at_ns)}")
    if said and saved.proven_ns is None:
        said.append("none was ever proven")
    for copy in saved.copies:
        newest = "no checkpoint" if copy.step is None else f"step {copy.step}"
        trouble = f", and no newer one: {printable(copy.reason)}" if copy.reason else ""
        said.append(f"{newest} in {printable(copy.place)}{trouble}")
    return "; ".join(said)


def _checkpoint_costs(costs: CheckpointCosts) -> list[str]:
    """The recorded costs; what was not recorded is not said."""
    new = "" if costs.written_bytes is None else f"{_size(costs.written_bytes)}"
    size = "" if costs.size_bytes is None else f"{_size(costs.size_bytes)} each"
    written = f"{new} of it new" if size and new else f"{new} new each" if new else ""
    waited = "" if costs.stall_s is None else f"training waited {_seconds(costs.stall_s)}"
    durable = "" if costs.write_s is None else f"durable {_seconds(costs.write_s)} later"
    stake = "" if costs.exposed_s_max is None else f"at most {_seconds(costs.exposed_s_max)} of work at stake"
    pairs = (", ".join(filter(None, pair)) for pair in ((size, written), (waited, durable), (stake,)))
    return list(filter(None, pairs))


def _seconds(seconds: float) -> str:
    return wording.duration(round(seconds * 1e9))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def _mfu(told: Report) -> str:
    if told.mfu is None:
        return f"unknown; {printable(told.mfu_unknown)}"
    hfu = "" if told.hfu_percent is None else f"; HFU {told.hfu_percent:.1f} %"
    return printable(told.mfu.sentence) + hfu


def _ratio(ratio: float | None) -> str:
    """The value, or the word `unknown`: dashes are for cells."""
    return "unknown" if ratio is None else wording.percent(ratio)


def _incidents(console: Console, told: Report) -> None:
    if not told.incidents:
        return
    shown = told.incidents[:INCIDENTS_SHOWN_MAX]
    amounts = wording.Amounts(told.paid_gpu_ns)
    cells = zip(*(_incident_cells(incident, amounts) for incident in shown), strict=True)
    lost = "hours lost" if told.on_cpu else "GPU-h lost"
    columns = dict(zip(("no.", "began (UTC)", "what", "lasted", lost, "mostly"), cells, strict=True))
    for heading in ("mostly", "lasted", "began (UTC)", "no."):
        if _room_for_what(columns, console.width) < WHAT_CHARS_MIN:
            del columns[heading]
    shapes = {"what": Column("what"), "mostly": word("mostly")}
    headed = [shapes.get(heading) or figure(heading) for heading in columns]
    count = f"{len(shown)} of {len(told.incidents)}" if len(told.incidents) > len(shown) else f"{len(shown)}"
    console.print(f"Costliest incidents ({count})", style="bold")
    console.print(table(*headed, rows=zip(*columns.values(), strict=True)), "")


def _room_for_what(columns: Mapping[str, Sequence[str]], width: int) -> int:
    others = [max(map(len, (heading, *cells))) for heading, cells in columns.items() if heading != "what"]
    return width - sum(others) - GAP_CHARS * len(others)


def _incident_cells(incident: IncidentReport, amounts: wording.Amounts) -> tuple[str, ...]:
    began, over_ns = wording.moment_of_year(incident.began_ns), incident.recovered_ns
    lasted = "not over" if over_ns is None else wording.duration(over_ns - incident.began_ns)
    key, most = max(incident.losses.items(), key=lambda item: item[1], default=("", 0))
    mostly = f"{wording.percent(most / incident.lost_gpu_ns)} {key.replace('_', ' ')}" if most else "-"
    mostly += " (est.)" if most and incident.basis else ""
    return incident.name, began, what(incident), lasted, amounts.hours(incident.lost_gpu_ns), mostly


def what(incident: IncidentReport) -> str:
    """What happened, to whom, and what it led to."""
    told, restarts = _named(incident.what), incident.restarts
    if incident.what == UNEXPLAINED_RESTART and restarts > 1:
        told = wording.many(restarts, told)
    parts = [f"{told} ({_named(incident.subject)})" if incident.subject else told]
    if incident.members_lost > 1:
        parts.append(f"{wording.many(incident.members_lost, 'member')} lost")
    if restarts and incident.what != UNEXPLAINED_RESTART:
        parts.append(wording.many(restarts, "restart"))
    if incident.steps_rolled_back:
        parts.append(f"{wording.many(incident.steps_rolled_back, 'step')} rolled back")
    return ", ".join(parts)


def _named(name: str) -> str:
    return printable(wording.short(name))
