"""The check-up in the terminal: metrics seen, metrics missing and how to add them, names, runs, doubts."""

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding

from holdfast import wording
from holdfast.cli.tables import table, word
from holdfast.cli.terminal import printable
from holdfast.diagnose.checkup import LOGGED, Checkup, RunSeen, SeenExporter, Spelling
from holdfast.diagnose.findable import FindableCause, Missing
from holdfast.topology.hostlist import fold

OTHER_SOURCES = "Name a server with --prometheus URL, or fill the embedded store with `holdfast collect`."
NAMES_CHARS_MAX = 60
LINES_MAX = 12
RUNS_MAX = 20


def show(found: Checkup) -> None:
    console = Console(highlight=False, markup=False)
    _show_seen(console, found.seen)
    _show_missing(console, found.missing)
    _show_names(console, found.spellings)
    _show_runs(console, found.runs)
    if found.doubts:
        console.print("Topology", style="bold")
        for doubt in found.doubts:
            console.print(f"  {doubt.kind}: {printable(doubt.text)}")
        console.print()
    _show_causes(console, found.causes)
    console.print(found.verdict, style="bold")


def _show_seen(console: Console, seen: Iterable[SeenExporter]) -> None:
    rows = list(seen)
    if not rows:
        console.print("Nothing is seen: the source has no known metric.", style="bold yellow")
        console.print(f"{OTHER_SOURCES}\n")
        return
    console.print("Seen", style="bold")
    exporters = table("  exporter", "metrics", "hosts", "every", "dark", header_style="dim")
    for one in rows:
        every = "" if one.every_s is None else f"{wording.number(one.every_s)} s"
        dark = f"{len(one.dark):,}: {wording.short(fold(one.dark), NAMES_CHARS_MAX)}" if one.dark else ""
        cells = (f"{one.metrics:,}", f"{one.hosts or '-':}", every, printable(dark))
        exporters.add_row(f"  {one.exporter}", *cells)
    console.print(exporters, "")


def _show_missing(console: Console, missing: Iterable[Missing]) -> None:
    for one in missing:
        state = "shows too little" if one.is_there else "is not there"
        console.print(f"Not seen: {one.exporter} {state}", style="bold")
        causes = ", ".join(one.causes) or "nothing by itself"
        console.print(f"  Would show: {'; '.join(one.signs)}.")
        console.print(f"  Helps to find: {causes}.")
        for line in one.how[:LINES_MAX]:
            is_copied = line.startswith(" ")  # a line of a file
            console.print(line if is_copied else Padding(line, (0, 0, 0, 2)), soft_wrap=is_copied)
        if len(one.how) > LINES_MAX:
            console.print(f"  ... and {len(one.how) - LINES_MAX} lines more (--json has all).")
        console.print()


def _show_names(console: Console, spellings: Iterable[Spelling]) -> None:
    unknown: dict[str, list[str]] = {}
    matched: dict[str, list[Spelling]] = {}
    for one in spellings:
        if one.node is None:
            unknown.setdefault(one.exporter, []).append(one.name)
        else:
            matched.setdefault(one.exporter, []).append(one)
    if not unknown and not matched:
        return
    console.print("Names", style="bold")
    for exporter, names in unknown.items():
        which = wording.short(fold(names), NAMES_CHARS_MAX)
        text = f"{exporter} has {which}, which the topology does not know: no run is linked to it."
        console.print(f"  {printable(text)}", style="yellow")
    for exporter, those in matched.items():
        first = those[0]
        many = wording.many(len(those), "host")
        console.print(
            f"  {exporter} spells {many} otherwise: {printable(first.name)} is {printable(first.node or '')}."
        )
    console.print()


def _show_runs(console: Console, runs: Iterable[RunSeen]) -> None:
    listed = list(runs)
    console.print("Runs", style="bold")
    if not listed:
        console.print(
            "  None is known: name the metric of its steps with --step-metric, or its log with --step-log."
        )
    for one in listed[:RUNS_MAX]:
        steps = "" if one.has_steps else _stepless(one)
        nodes = wording.many(one.nodes, "node") if one.nodes else "on unknown nodes"
        console.print(f"  {printable(one.run)}: {nodes}, known by {one.source}{steps}.")
    if len(listed) > RUNS_MAX:
        console.print(f"  ... and {len(listed) - RUNS_MAX:,} more.")
    console.print()


def _show_causes(console: Console, causes: Iterable[FindableCause]) -> None:
    """Those that can be found first."""
    rows = [
        (f"  {one.cause}", one.title, "yes" if one.is_findable else f"needs {' or '.join(one.by)}")
        for one in sorted(causes, key=lambda one: not one.is_findable)
    ]
    console.print(table(word("Causes"), "what it is", "can be found", rows=rows, header_style="bold"), "")


def _stepless(run: RunSeen) -> str:
    if run.last_ns is not None:
        return f", but its pace now is unknown: its last step was at {wording.stamp(run.last_ns)}"
    if run.source == LOGGED:
        return ", but it has no step so far"
    return ", but no step: name its metric with --step-metric"
