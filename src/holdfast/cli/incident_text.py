"""Incidents in the terminal: why a run is slow, who owns the problem, what it costs and what to do."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console, JustifyMethod
from rich.table import Column, Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.past_text import NO_SIGNALS, healthy_step, show_past
from holdfast.cli.tables import table
from holdfast.cli.terminal import printable
from holdfast.diagnose.alerts import AlertWorth, cost, severity, slowness, stands, summary
from holdfast.diagnose.answering import DiagnoseAnswer
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.diagnose.reading import RunReading
from holdfast.diagnose.wording import BLIND, members, share
from holdfast.ledger.report import IncidentReport, ReportedPace
from holdfast.ledger.reporting import SLOW_SHARE_MIN
from holdfast.record.events import IncidentState
from holdfast.signals.quality import Flaw

FLAWS_SHOWN_MAX = 5
LABEL_CHARS = 11
CONTINUED = " \\"
"""The end of a line whose command continues in the next line."""
_COLOURS = {"critical": "red", "warning": "yellow", "info": "cyan"}


def show(answer: DiagnoseAnswer) -> None:
    """Print the answer to stdout, as wide as the terminal."""
    console = Console(highlight=False, markup=False)
    console.print(Text("Run ", style="bold").append(printable(wording.run_label(answer.run, answer.name))))
    lasted = wording.duration(answer.at_ns - answer.since_ns)
    console.print(f"{wording.span(answer.since_ns, answer.at_ns)}, {lasted}\n")
    if not answer.sees_run:
        console.print(f"{printable(answer.blindness)}\n", style="bold yellow")
    elif not answer.incidents and answer.past:
        console.print(f"{_passing(answer.past, answer.reading)}\n", style="bold yellow")
    elif not answer.incidents and (answer.unshown or _is_slow(answer.pace)):
        console.print("Nothing that is wrong is seen in that time.\n", style="bold green")
    elif not answer.incidents and answer.misnamed:
        console.print("Nothing wrong is seen, but not all beneath the run is.\n", style="bold yellow")
    elif not answer.incidents and not answer.sees_machines:
        console.print("The steps are as they should be; nothing else is seen.\n", style="bold yellow")
    elif not answer.incidents and answer.unmeasured:
        console.print("Nothing wrong is seen in what is measured.\n", style="bold green")
        missing = ", ".join(f"{what} ({team})" for what, team in answer.unmeasured)
        console.print(f"Not measured here: {missing}.\n")
    elif not answer.incidents:
        console.print(
            "Nothing is wrong: the run and all beneath it are as they should be.\n", style="bold green"
        )
    if answer.pace is not None and _is_slow(answer.pace):
        console.print(_told(answer.pace), end="\n\n")
    show_past(console, answer)
    if not answer.sees_machines:
        console.print(f"{BLIND if answer.sees_signals else NO_SIGNALS}\n", style="yellow")
    for text in answer.misnamed:
        console.print(f"{printable(text)}\n", style="yellow")
    for incident in answer.unshown:
        opened = f"{incident.name} open since {wording.stamp(incident.began_ns)}"
        console.print(printable(f"The record has {opened}; this window does not show it."), end="\n\n")
    for incident in answer.incidents:
        own = tuple(flaw for flaw in incident.flaws if flaw not in answer.misnamed)  # told above
        incident = msgspec.structs.replace(incident, flaws=own)
        _show_incident(console, incident, before=() if incident.name in answer.recorded else answer.again)
    _show_flaws(console, [flaw for flaw in answer.flaws if flaw.text not in answer.misnamed])


def _passing(past: Sequence[IncidentReport], reading: RunReading | None) -> str:
    still = [one for one in past if one.recovered_ns is None]
    last_ns = 0 if reading is None else reading.last_ns or 0
    stepless = [one for one in still if one.began_ns >= last_ns]
    if any(one.severity == "fatal" for one in stepless):
        return "The run has made no step since it was disturbed."
    if still:
        are = "is" if len(still) == 1 else "are"
        since = "" if stepless else ", and the run has made steps since"
        return f"{wording.many(len(still), 'fault')} {are} still open{since}."
    return "Nothing is wrong any more; what happened before is listed."


def _is_slow(pace: ReportedPace | None) -> bool:
    return pace is not None and pace.slowdown_share >= SLOW_SHARE_MIN


def _told(pace: ReportedPace) -> str:
    """The run's pace as its report has it: both are compared with the same reference."""
    origin = {
        "declared": "as declared",
        "estimated": "estimated from its own steps",
        "members": "by its quicker members",
    }[pace.origin]
    return (
        f"Over the whole run, {share(pace.slowdown_share)} of the time in steps was slowdown: a healthy step "
        f"takes {healthy_step(pace)}, {origin}."
    )


def _show_incident(console: Console, incident: Incident, *, before: Sequence[str]) -> None:
    """before: the command that makes the incident known to `runbook`; empty if it is known."""
    grave = severity(incident)
    console.print(Text(_headline(incident), style=f"bold {_COLOURS[grave]}"))
    _print_pairs(
        console,
        Why=_why(incident),
        Whose=_whose(incident),
        Cost=cost(incident).removeprefix("Money: "),
        Do=printable(incident.action),
    )
    for command in filter(None, (before, ("holdfast", "runbook", incident.name))):
        _show_command(console, command)
    console.print()
    _show_evidence(console, incident)
    _show_alternatives(console, incident)
    closing = {"Settled by": printable(incident.decides)} if incident.decides else {}
    _print_pairs(console, **closing, Telemetry=f"{share(incident.quality)} trusted" + _flaws_of(incident))
    console.print()


def _show_command(console: Console, words: Sequence[str]) -> None:
    """Print a command as a shell takes it, on several continued lines if it is too long for one.

    A table's cell would not do: a blank after the backslash would end the command.
    """
    margin = " " * (LABEL_CHARS + 1)
    first, *others = (printable(shlex.quote(word)) for word in words)
    lines = [margin + first]
    for word in others:
        if len(f"{lines[-1]} {word}{CONTINUED}") > console.width:
            lines[-1] += CONTINUED
            lines.append(f"{margin}  {word}")
        else:
            lines[-1] += f" {word}"
    console.print("\n".join(lines), soft_wrap=True)


def _headline(incident: Incident) -> str:
    began, slow = wording.stamp(incident.began_ns), slowness(incident)
    if incident.ended_ns is not None:
        return printable(
            f"{incident.name}: {slow} from {began} to {wording.stamp(incident.ended_ns)}, now over"
        )
    since = f"{slow} since {began}" if incident.slowdown > 1 else f"began {began}, the run is {slow}"
    return printable(f"{incident.name}: {since}")


def _why(incident: Incident) -> str:
    cause = incident.cause
    match incident.verdict:
        case "unknown":
            answer = "Unknown: no signal explains why some members are late and others are not."
        case "not-hardware":
            answer = f"{wording.opening(cause.title)}. Not hardware: nothing is wrong beneath the run."
        case "cause":
            answer = f"{wording.opening(cause.title)}: {cause.subject} ({cause.kind})."
    who = f" Late: {members(incident.affected)}." if incident.affected else ""
    seen = f" {wording.opening(incident.what)}." if incident.what else ""
    sure = "" if incident.verdict == "unknown" else f" {share(incident.confidence)} sure."
    return printable(f"{answer}{sure}{seen}{who}")


def _whose(incident: Incident) -> str:
    owner = incident.owner or "no owner yet"
    if incident.seam == "none":
        return printable(owner)
    path = " → ".join(incident.path)
    return printable(f"{owner}, across the seam {incident.seam}: {path}")


def _flaws_of(incident: Incident) -> str:
    """The flaws, which are sentences of their own, as parts of one sentence."""
    return "".join(f"; {printable(flaw.rstrip('.'))}" for flaw in incident.flaws)


def _show_evidence(console: Console, incident: Incident) -> None:
    if not incident.evidence:
        return
    console.print("Evidence (+1: ten to one for it; −1: against)", style="bold")
    rows = _rows_beside(justify="right")
    for one in sorted(incident.evidence, key=lambda one: -one.weight):
        against = one.weight < 0
        weight = f"{'−' if against else '+'}{abs(one.weight):.1f}"
        since = "" if one.since_ns is None else f" (since {wording.stamp(one.since_ns)[-9:]})"
        rows.add_row(Text(weight, style="red" if against else "green"), printable(one.text) + since)
    console.print(rows, "")


def _show_alternatives(console: Console, incident: Incident) -> None:
    if not incident.alternatives:
        return
    console.print("Other causes, and why they lost", style="bold")
    rows = _rows_beside(justify="right")
    for other in incident.alternatives:
        cause = f"{other.cause.subject}: {other.cause.title}"
        rows.add_row(share(other.confidence), printable(f"{cause}; {other.lost_because}"))
    console.print(rows, "")


def _show_flaws(console: Console, flaws: Sequence[Flaw]) -> None:
    if not flaws:
        return
    console.print(
        f"Telemetry: {wording.many(len(flaws), 'flaw')} found, and taken into account", style="bold"
    )
    rows = _rows_beside(justify="left")
    for kind, count in Counter(flaw.kind for flaw in flaws).most_common(FLAWS_SHOWN_MAX):
        example = next(flaw for flaw in flaws if flaw.kind == kind)
        rows.add_row(f"{count:,} {kind}", printable(example.text))
    console.print(rows)


def show_list(incidents: Sequence[tuple[IncidentState, Incident]], names: Mapping[str, str]) -> None:
    """Print one row for each incident, the newest first. names: of the runs."""
    console = Console(highlight=False, markup=False)
    rows = [_row(state, incident, names.get(incident.run, "")) for state, incident in incidents]
    headings = ("incident", "state", "began (UTC)", "slower", "GPU-h", "owner", "cause")
    columns = [_column(heading, cells) for heading, *cells in zip(headings, *rows, strict=True)]
    console.print(table(*columns, rows=rows), crop=False)


def _column(heading: str, cells: Sequence[Text]) -> Column:
    """A column. On a narrow terminal times, owners and causes wrap; names and figures do not."""
    is_figure = heading in ("slower", "GPU-h")
    is_whole = is_figure or heading in ("incident", "state")
    parts = [*map(Text, heading.split()), *(cells if is_whole else ())]
    return Column(
        heading,
        justify="right" if is_figure else "left",
        no_wrap=is_whole,
        min_width=max(part.cell_len for part in parts),
        overflow="fold",
    )


def _row(state: IncidentState, incident: Incident, name: str) -> tuple[Text, ...]:
    slower = share(incident.slowdown - 1) if incident.knows_pace else "–"
    lost = "–" if incident.cost is None or incident.cost.on_cpu else f"{incident.cost.lost_gpu_hours:,.1f}"
    told = f"{incident.cause.mechanism} ({incident.cause.subject})"
    cause = "unknown" if incident.verdict == "unknown" else told
    return (
        Text(printable(wording.run_label(incident.run, name, part=incident.name.removeprefix(incident.run)))),
        Text("over") if state == "resolved" else Text("open", style=_COLOURS[severity(incident)]),
        Text(wording.moment_of_year(incident.began_ns)),
        Text("stopped" if stands(incident) else slower),
        Text(lost),
        Text(printable(incident.owner)),
        Text(printable(cause)),
    )


def change_line(change: IncidentChange, name: str, worth: AlertWorth | None = None) -> str:
    """A change in one line, as `watch` prints it. name: of its run. worth: of alerts, if they are sent."""
    incident = change.incident
    about = wording.run_label(incident.run, name, part=incident.name.removeprefix(incident.run))
    told = f"{wording.stamp(change.at_ns)}  {change.state:8}  {severity(incident):8}  {about}"
    return printable(f"{told}  {summary(incident)}{_unsent(change, worth)}")


def _unsent(change: IncidentChange, worth: AlertWorth | None) -> str:
    """That no receiver was told, and why."""
    if worth is None or change.is_worth:
        return ""
    least = f"{share(worth.slowdown_min - 1)} slower, {wording.usd(worth.usd_per_hour_min)} an hour"
    return f" [not sent: under {least}]"


def _print_pairs(console: Console, **pairs: str) -> None:
    label = Column(style="bold", no_wrap=True, width=LABEL_CHARS)
    console.print(table(label, "", rows=pairs.items(), gap=1))


def _rows_beside(justify: JustifyMethod) -> Table:
    return table(Column(justify=justify, no_wrap=True, min_width=5), "")
