"""What a run's own steps and record tell, in the terminal, beside the incidents of a diagnosis."""

from collections.abc import Iterator

from rich.console import Console

from holdfast import wording
from holdfast.cli.report_text import what
from holdfast.cli.tables import figure, table, word
from holdfast.cli.terminal import printable
from holdfast.diagnose.answering import DiagnoseAnswer
from holdfast.diagnose.reading import RunReading
from holdfast.ledger.remarks import spread_remark
from holdfast.ledger.report import IncidentReport, ReportedPace
from holdfast.topology.graph import in_order
from holdfast.topology.hostlist import fold

PAST_SHOWN_MAX = 8
NAMES_CHARS_MAX = 60
NO_SIGNALS = (
    "There are no signals, so no cause beneath the run (GPUs, hosts, network, storage) can be seen. "
    "Name a Prometheus with --prometheus URL: metrics of dcgm-exporter and node_exporter are enough to begin."
)


def show_past(console: Console, answer: DiagnoseAnswer) -> None:
    """Print what the record says of the run, and what happened in the window that no incident explains."""
    if answer.reading is None:
        return
    rows = [(label, printable(text)) for label, text in _facts(answer, answer.reading)]
    if rows and answer.reading.steps_from in ("record", "nowhere"):
        console.print(table(word(style="bold"), "", rows=rows), "")
    if not answer.past:
        return
    costliest = sorted(answer.past, key=lambda one: -one.lost_gpu_ns)[:PAST_SHOWN_MAX]
    shown = sorted(costliest, key=lambda one: one.began_ns)
    lost = [one.lost_gpu_ns for one in shown]
    amounts = wording.Amounts(max(lost))
    is_counted = bool(answer.reading.gpus)
    hours = "hours lost" if answer.reading.on_cpu else "GPU-h lost"
    columns = (word("began (UTC)"), "what", figure("lasted"), figure(hours if is_counted else "lost"))
    console.print("In that time", style="bold")
    console.print(
        table(
            *columns,
            rows=(
                (
                    wording.moment_of_year(one.began_ns),
                    what(one),
                    _lasted(one),
                    amounts.hours(one.lost_gpu_ns) if is_counted else wording.duration(one.lost_gpu_ns),
                )
                for one in shown
            ),
        )
    )
    if more := len(answer.past) - len(shown):
        console.print(f"... and {wording.many(more, 'smaller one')}: `holdfast report` has all.")
    for one in shown if is_counted else ():
        if said := spread_remark(one, answer.reading.gpus, one.recovered_ns or one.noticed_ns):
            console.print(said, style="dim")
    console.print()


def _lasted(one: IncidentReport) -> str:
    return "not over" if one.recovered_ns is None else wording.duration(one.recovered_ns - one.began_ns)


def _facts(answer: DiagnoseAnswer, reading: RunReading) -> Iterator[tuple[str, str]]:
    if reading.last_ns is not None:
        last = f"the last at {wording.stamp(reading.last_ns)}"
        healthy = "" if reading.pace is None else f"; a healthy one takes {healthy_step(reading.pace)}"
        yield "Steps", f"{reading.steps:,}, {last}{healthy}"
    if answer.members:
        names, nodes = (
            wording.short(fold(in_order({*some})), NAMES_CHARS_MAX)
            for some in (answer.members, answer.members.values())
        )
        yield "Members", f"{len(answer.members):,} on {nodes}: {names}"
    if (ended := reading.ended) is not None:
        told = wording.ending(ended.outcome, ended.reason, ended.survived_errors)
        yield "End", f"{wording.stamp(ended.ended_ns)}: {told}"


def healthy_step(pace: ReportedPace) -> str:
    """How long it takes: two times, if steps became longer for a reason that nothing tells."""
    now = wording.seconds(pace.step_ns / 1e9)
    if pace.was_ns is None or pace.since_ns is None:
        return now
    since = wording.moment_of_year(pace.since_ns)
    return f"{wording.seconds(pace.was_ns / 1e9)}, or {now} if there is more work in each since {since} UTC"
