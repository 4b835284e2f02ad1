"""A fit in the terminal: the rate, the verdicts, then classes, the worst nodes and the assumptions."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.tables import figure, print_bullets, table, word
from holdfast.cli.terminal import printable
from holdfast.economics.fitting.fitting import FailureFit
from holdfast.economics.fitting.lemons import JOB_NODES, Removal
from holdfast.economics.fitting.outages import Source
from holdfast.economics.fitting.repairs import Repairs
from holdfast.economics.fitting.verdict import Interval
from holdfast.wording.units import DAY_NS

CLASSES_SHOWN_MAX = 10
NODES_SHOWN_MAX = 5
NAME_CHARS_MAX = 36
"""The length of a UUID, which fits beside the numbers on 80 columns."""

HOURS_AS_DAYS_MIN = 48.0
NODE_DAYS_WHOLE_MIN = 10.0
NODE_DAYS_MIN = 0.1
"""A shorter watch is written as a duration."""
RATE_DECIMALS_MAX = 100.0
RATE_BOUND_MAX = 1_000.0
"""An upper bound above one fault a day on every node says only that the record is short."""
WATCHED_SHARE_MIN = 0.95
"""The least share of the nodes' time that must be watched for the rate to cover all of it."""

_STYLES = {"yes": "yellow", "no": "cyan", "unknown": "dim"}
_SOURCES: dict[Source, str] = {
    "given": "as you say",
    "declared": "as the record declares",
    "paid": "as runs paid for",
    "seen": "assumed from the nodes that had faults",
}


def show(told: FailureFit) -> None:
    """Print the fit to stdout, as wide as the terminal and in colour if it has colours."""
    console = Console(highlight=False, markup=False)
    console.print(_headline(told), style="bold")
    console.print(table(word(style="bold"), "", rows=_named_figures(told)))
    if any(verdict.answer != "unknown" for verdict in told.verdicts):
        console.print("\nVerdicts", style="bold")
        console.print(_verdicts(told))
    else:
        console.print("\nThere are too few faults, or too little time, to say more.")
    if told.advice:
        console.print(f"\n{told.advice}", style="bold")
    if told.classes:
        console.print(f"\nClasses{_of(len(told.classes), CLASSES_SHOWN_MAX)}", style="bold")
        console.print(_classes(told))
    if told.worst_nodes:
        lemon = "" if told.lemon_nodes else ", which chance may have made so"
        console.print(f"\nWorst nodes{_of(len(told.worst_nodes), NODES_SHOWN_MAX)}{lemon}", style="bold")
        console.print(_worst(told))
    if told.lemon_nodes and told.repeats is not None and told.repeats.removal is not None:
        console.print(_without(told, told.repeats.removal))
    print_bullets(console, told.assumptions, "\nAssumed")


def _headline(told: FailureFit) -> str:
    if told.faults:
        rate = f"{_rate(told.faults_per_1000_node_days)} faults per 1000 node-days"
        return f"{rate} ({_between(told.faults_interval)} with 95 %)"
    highest = told.faults_interval[1]
    if highest > RATE_BOUND_MAX:
        return "There are no faults in this record, but it is too short to tell how rare they are."
    most = f"at most {_rate(highest)} faults per 1000 node-days with 95 %"
    return f"There are no faults in this record. That does not mean a rate of zero: {most}."


def _named_figures(told: FailureFit) -> Iterator[tuple[str, str]]:
    span = wording.duration(told.until_ns - told.from_ns)
    every = "" if told.hours_between_faults is None else f"; {_every(told, told.hours_between_faults)}"
    yield "Faults", f"{told.faults:,} on {wording.many(told.nodes, 'node')} in {span}{every}"
    yield "Watched", f"{_watched(told.node_days)}, {_SOURCES[told.nodes_source]}"
    if (alone := round(told.faults_independent)) < told.faults:
        yield "Clusters", f"the intervals allow for it: the faults tell as much as {alone:,} that came singly"
    if told.hardware_per_1000_node_days is not None and told.hardware_interval is not None:
        hardware = f"{_rate(told.hardware_per_1000_node_days)} per 1000 node-days"
        yield "Hardware", f"{hardware} ({_between(told.hardware_interval)})"
    if told.repairs is not None:
        yield "Outages", _outages(told.repairs)


def _every(told: FailureFit, hours: float) -> str:
    """Say what the interval refers to, if nodes were not watched all the time."""
    span_node_days = told.nodes * (told.until_ns - told.from_ns) / DAY_NS
    is_watched = told.node_days >= WATCHED_SHARE_MIN * span_node_days
    return f"one every {_hours(hours)}" + ("" if is_watched else " while all of them are at work")


def _outages(repairs: Repairs) -> str:
    median = "unknown" if repairs.median_h is None else _hours(repairs.median_h)
    if repairs.median_interval_h is not None:
        low, high = repairs.median_interval_h
        median += f" ({_hours(low)} to {_hours(high)})"
    parts = [f"median {median}", f"mean {_hours(repairs.mean_h)}"]
    if repairs.p90_h is not None:
        parts.append(f"one in ten over {_hours(repairs.p90_h)}")
    if repairs.open:
        parts.append(f"{repairs.open:,} of {repairs.outages:,} not over")
    return ", ".join(parts)


def _verdicts(told: FailureFit) -> Table:
    rows = (
        (one.question, Text(one.answer, style=_STYLES[one.answer]), printable(one.sentence))
        for one in told.verdicts
    )
    return table(word(), word(), "", rows=rows)


def _of(count: int, shown_max: int) -> str:
    return f" ({shown_max} of {count:,})" if count > shown_max else ""


def _classes(told: FailureFit) -> Table:
    rows = (
        (
            printable(wording.short(row.name, NAME_CHARS_MAX)),
            f"{row.faults:,}",
            _rate(row.rate_per_1000_node_days),
            _between(row.interval),
            wording.UNKNOWN if row.outage_median_h is None else _hours(row.outage_median_h),
        )
        for row in told.classes[:CLASSES_SHOWN_MAX]
    )
    figures = map(figure, ("faults", "rate", "95 %", "median outage"))
    return table("class", *figures, rows=rows, header_style="dim")


def _worst(told: FailureFit) -> Table:
    """rate: the node's expected rate."""
    rows = (
        (
            printable(wording.short(node.node, NAME_CHARS_MAX)),
            f"{node.faults:,}",
            f"{node.episodes:,}",
            f"{node.rate:.1f}",
            f"{node.interval[0]:.1f} to {node.interval[1]:.1f}",
        )
        for node in told.worst_nodes[:NODES_SHOWN_MAX]
    )
    figures = map(figure, ("faults", "flaps once", "rate", "95 %"))
    return table("node", *figures, rows=rows, header_style="dim")


def _without(told: FailureFit, removal: Removal) -> str:
    bad = sum(node.is_bad for node in told.lemon_nodes)
    return (
        f"{bad} of the {removal.nodes} are worse than chance even each by itself. Without the {removal.nodes}"
        f" the rate would have been {removal.rate_without:.2f} ({removal.rate_without_expected:.2f} is to be"
        f" expected of the rest), and {removal.job_percent_without:.0f} % instead of"
        f" {removal.job_percent:.0f} % of jobs on {JOB_NODES} nodes would have met a fault within a day."
    )


def _between(interval: Interval) -> str:
    return f"{_rate(interval[0])} to {_rate(interval[1])}"


def _rate(value: float) -> str:
    """`4.20`, `369`, `17.5 million`."""
    return f"{value:.2f}" if value < RATE_DECIMALS_MAX else wording.rough(value)


def _watched(node_days: float) -> str:
    """`139,200 node-days`, `2.50 node-days`, `2 min 26 s of node time`."""
    if node_days < NODE_DAYS_MIN:
        return f"{wording.duration(round(node_days * DAY_NS))} of node time"
    return f"{node_days:,.{0 if node_days >= NODE_DAYS_WHOLE_MIN else 2}f} node-days"


def _hours(hours: float) -> str:
    """`12 min`, `20.4 h`, `5.5 d`."""
    if hours < 1:
        return f"{60 * hours:.0f} min"
    return f"{hours:.1f} h" if hours < HOURS_AS_DAYS_MIN else f"{hours / 24:,.1f} d"
