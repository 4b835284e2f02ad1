"""Incidents in the terminal: why a run is slow, whose problem that is, what it costs and what to do."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.terminal import printable
from holdfast.dashboard import wording
from holdfast.diagnose.alerts import cost, severity, slowness, summary
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Change
from holdfast.diagnose.wording import members, share
from holdfast.record.events import IncidentState
from holdfast.signals.quality import Flaw

FLAWS_SHOWN_MAX = 5
LABEL_CHARS = 11
_COLOURS = {"critical": "red", "warning": "yellow", "info": "cyan"}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `diagnose` found.

    sees_run  whether the signals tell anything of the run in the window at all
    recorded  the names of those incidents that `runbook` will find
    """

    run: str
    at_ns: int
    window_s: float
    sees_run: bool
    incidents: tuple[Incident, ...]
    recorded: frozenset[str]
    flaws: tuple[Flaw, ...]


def show(answer: Answer) -> None:
    """Print the answer to stdout, as wide as the terminal."""
    console = Console(highlight=False, markup=False)
    console.print(Text("Run ", style="bold").append(printable(answer.run)))
    since_ns = answer.at_ns - round(answer.window_s * 10**9)
    console.print(f"{wording.span(since_ns, answer.at_ns)}, {wording.duration(answer.at_ns - since_ns)}\n")
    if not answer.sees_run:
        console.print(
            "Nothing can be said: the signals have no step of this run in that time.\n", style="bold yellow"
        )
    elif not answer.incidents:
        console.print(
            "Nothing is wrong: the run and all beneath it are as they should be.\n", style="bold green"
        )
    for incident in answer.incidents:
        _show_incident(console, incident, is_recorded=incident.name in answer.recorded)
    _show_flaws(console, answer.flaws)


def _show_incident(console: Console, incident: Incident, *, is_recorded: bool) -> None:
    grave = severity(incident)
    console.print(Text(_headline(incident), style=f"bold {_COLOURS[grave]}"))
    table = _pairs()
    table.add_row("Why", _why(incident))
    table.add_row("Whose", _whose(incident))
    table.add_row("Cost", cost(incident).removeprefix("Money: "))
    table.add_row("Do", printable(incident.action))
    first = "" if is_recorded else "holdfast diagnose --record ...; "
    table.add_row("", f"{first}holdfast runbook {printable(incident.name)}")
    console.print(table)
    console.print()
    _show_evidence(console, incident)
    _show_alternatives(console, incident)
    closing = _pairs()
    if incident.decides:
        closing.add_row("Settled by", printable(incident.decides))
    closing.add_row("Telemetry", f"{share(incident.quality)} trusted" + _flaws_of(incident))
    console.print(closing)
    console.print()


def _headline(incident: Incident) -> str:
    began, slow = wording.stamp(incident.began_ns), slowness(incident.slowdown)
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
            answer = "Unknown: nothing that was looked at explains who is late and who is not."
        case "not-hardware":
            answer = f"{wording.opening(cause.title)}. Not hardware: nothing is wrong beneath the run."
        case "cause":
            answer = f"{wording.opening(cause.title)}: {cause.subject} ({cause.kind})."
    who = f" Late: {members(incident.affected)}." if incident.affected else ""
    seen = f" {wording.opening(incident.what)}." if incident.what else ""
    sure = "" if incident.verdict == "unknown" else f" {share(incident.confidence)} sure."
    return printable(f"{answer}{sure}{seen}{who}")


def _whose(incident: Incident) -> str:
    owner = incident.owner or "nobody's yet"
    if incident.seam == "none":
        return printable(owner)
    path = " → ".join(incident.path)
    return printable(f"{owner}, across the seam {incident.seam}: {path}")


def _flaws_of(incident: Incident) -> str:
    return "".join(f"; {printable(flaw)}" for flaw in incident.flaws)


def _show_evidence(console: Console, incident: Incident) -> None:
    if not incident.evidence:
        return
    console.print("Evidence (+1: ten to one for it; −1: against)", style="bold")
    table = _table("right")
    for one in sorted(incident.evidence, key=lambda one: -one.weight):
        against = one.weight < 0
        weight = f"{'−' if against else '+'}{abs(one.weight):.1f}"
        since = "" if one.since_ns is None else f" (since {_clock(one.since_ns)})"
        table.add_row(Text(weight, style="red" if against else "green"), printable(one.text) + since)
    console.print(table)
    console.print()


def _clock(at_ns: int) -> str:
    return wording.stamp(at_ns)[-9:]


def _show_alternatives(console: Console, incident: Incident) -> None:
    if not incident.alternatives:
        return
    console.print("Other causes, and why they lost", style="bold")
    table = _table("right")
    for other in incident.alternatives:
        cause = f"{other.cause.subject}: {other.cause.title}"
        table.add_row(share(other.confidence), printable(f"{cause}; {other.lost_because}"))
    console.print(table)
    console.print()


def _show_flaws(console: Console, flaws: Sequence[Flaw]) -> None:
    if not flaws:
        return
    console.print(
        f"Telemetry: {wording.many(len(flaws), 'flaw')} found, and taken into account", style="bold"
    )
    table = _table("left")
    for kind, count in Counter(flaw.kind for flaw in flaws).most_common(FLAWS_SHOWN_MAX):
        example = next(flaw for flaw in flaws if flaw.kind == kind)
        table.add_row(f"{count:,} {kind}", printable(example.text))
    console.print(table)


def show_list(incidents: Sequence[tuple[IncidentState, Incident]]) -> None:
    """One row an incident, the newest first."""
    console = Console(highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("incident", "state", "began (UTC)", "slower", "GPU-h", "owner", "cause"):
        flush: Literal["left", "right"] = "right" if heading in ("slower", "GPU-h") else "left"
        # In a narrow terminal names and times go on below; nothing is cut.
        is_whole = heading in ("state", "slower", "GPU-h")
        width_min = max(map(len, heading.split()))
        table.add_column(heading, justify=flush, no_wrap=is_whole, min_width=width_min, overflow="fold")
    for state, incident in incidents:
        lost = "–" if incident.cost is None else f"{incident.cost.lost_gpu_hours:,.1f}"
        cause = "unknown" if incident.verdict == "unknown" else _cause(incident)
        table.add_row(
            printable(incident.name),
            "over" if state == "resolved" else Text("open", style=_COLOURS[severity(incident)]),
            wording.moment_of_year(incident.began_ns),
            share(incident.slowdown - 1),
            lost,
            printable(incident.owner),
            printable(cause),
        )
    console.print(table)


def _cause(incident: Incident) -> str:
    return f"{incident.cause.mechanism} ({incident.cause.subject})"


def change_line(change: Change) -> str:
    """A change in one line, as `watch` prints it."""
    incident = change.incident
    told = f"{wording.stamp(change.at_ns)}  {change.state:8}  {severity(incident):8}  {incident.name}"
    return printable(f"{told}  {summary(incident)}")


def _pairs() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(style="bold", no_wrap=True, width=LABEL_CHARS)
    table.add_column()
    return table


def _table(flush: Literal["left", "right"]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify=flush, no_wrap=True, min_width=5)
    table.add_column()
    return table
