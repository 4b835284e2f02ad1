"""A tabletop scenario for people: what an operator would see, questions, and, only if asked, the truth.

The view is the same for every scenario, so that nothing in its form gives the cause away: the run's own story
from its events, and a board of signals, each with the worst of its subjects.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast import wording
from holdfast.record.errors import InputError
from holdfast.record.events import (
    ActionTaken,
    CheckpointSaved,
    FaultObserved,
    GenerationOpened,
    MemberLost,
    RunStarted,
    StepCommitted,
    encode,
)
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.frame import Frame
from holdfast.twin import openmetrics
from holdfast.twin.levers import Floats
from holdfast.twin.scenarios import SCENARIOS, Played, Truth
from holdfast.twin.telemetry import Telemetry
from holdfast.twin.wiring import topology_file
from holdfast.twin.world import cast

SLOW_SHARE = 0.05
SLOW_STEPS, USUAL_STEPS = 3, 10
"""So many steps in a row that are slower than usual by that share, or not any more, are worth a line."""
LONG_CHECKPOINT = 1.5
"""A checkpoint that takes so many times what the first one took is worth a line as well."""
SPARK = "▁▂▃▄▅▆▇█"
SPARK_CELLS_MIN, SPARK_CELLS_MAX = 16, 60
BESIDE_SPARK_CHARS = 52
"""What a row of the board needs beside its course."""
USUAL_CELLS = 6
"""The usual value of a signal is what it was in the first so many cells."""
WRITE_EVERY = 3
"""Files have every third scrape: a drill is read by people, and OpenMetrics is wordy."""
NAMES_SHOWN_MAX = 6
GENERAL_QUESTIONS = (
    "What changed first, and what came after it? Which of it is a cause, and which only a consequence?",
    "Whose system is it in? Whom do you call, and what do you ask them to look at?",
    "What does it cost an hour, and what would you do before the cause is known?",
)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the story."""

    at_ns: int
    what: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One signal of the board, scrape by scrape; None where nothing was read.

    notable: changes smaller than this are noise, and are not drawn.
    """

    label: str
    unit: str
    notable: float
    values: tuple[float | None, ...]


class Tabletop(msgspec.Struct, frozen=True, kw_only=True):
    """All that is put on the table; `truth` only where it is to be revealed."""

    run: str
    seed: int
    gpus: int
    first_ns: int
    last_ns: int
    told: str
    story: tuple[Line, ...]
    board: tuple[Row, ...]
    questions: tuple[str, ...]
    truth: Truth | None


def tabletop(played: Played, *, reveal: bool) -> Tabletop:
    """The scenario as data: what `--json` prints."""
    return Tabletop(
        run=played.run,
        seed=played.seed,
        gpus=played.layout.gpus,
        first_ns=played.events[0].occurred_ns,
        last_ns=played.events[-1].occurred_ns,
        told=played.scenario.told,
        story=tuple(sorted(_story(played), key=lambda line: line.at_ns)),
        board=tuple(_board(played.telemetry)),
        questions=(*GENERAL_QUESTIONS, *played.scenario.questions),
        truth=played.truth if reveal else None,
    )


# -- the run's story ----------------------------------------------------------------------------------


def _story(played: Played) -> Iterator[Line]:
    yield from _slow_stretches(played)
    usual_ns = 0
    for event in played.events:
        what = ""
        match event:
            case ActionTaken(action=action, subject=subject, reason=reason):
                what = f"{action} {subject}: {reason}"
            case FaultObserved(fault=fault, subject=subject, detail=detail):
                what = f"{subject} reports {fault}: {detail}"
            case MemberLost(subject=subject):
                what = f"member {subject} is lost"
            case GenerationOpened(generation=generation, step=step):
                what = f"the run goes on from step {step:,} as generation {generation}"
            case CheckpointSaved(stall_ns=int(stall_ns)):
                usual_ns = usual_ns or stall_ns
                if stall_ns > LONG_CHECKPOINT * usual_ns:
                    what = (
                        f"a checkpoint took {wording.duration(stall_ns)}, before {wording.duration(usual_ns)}"
                    )
        if what:
            yield Line(at_ns=event.occurred_ns, what=what)


def _slow_stretches(played: Played) -> Iterator[Line]:
    """When steps left what is usual, and when they came back. Checkpoints are no part of a step."""
    saved = {event.step: event.stall_ns or 0 for event in played.events if isinstance(event, CheckpointSaved)}
    commits = [event for event in played.events if isinstance(event, StepCommitted)]
    usual_ns = played.healthy_step_s * 1e9
    slow: list[int] = []
    lines: list[Line] = []
    is_slow = False
    for before, after in pairwise(commits):
        took_ns = after.occurred_ns - before.occurred_ns - saved.get(before.step, 0)
        if (took_ns > (1 + SLOW_SHARE) * usual_ns) == is_slow:
            slow.clear()
            continue
        slow.append(before.occurred_ns)
        if len(slow) == (USUAL_STEPS if is_slow else SLOW_STEPS):
            is_slow = not is_slow
            took = f"steps take {took_ns / 1e9:.2f} s, usually {usual_ns / 1e9:.2f} s"
            lines.append(Line(at_ns=slow[0], what=took if is_slow else "steps are as usual again"))
            slow.clear()
    yield from lines


# -- the board ----------------------------------------------------------------------------------------


class _Gauge(NamedTuple):
    """A row of the board: what it is read from, and how the worst is found in that."""

    label: str
    unit: str
    notable: float
    metrics: tuple[str, ...]
    worst: Callable[..., Floats]


def _highest(samples: Frame) -> Floats:
    return _over(np.nanmax, samples.values)


def _lowest(samples: Frame) -> Floats:
    return _over(np.nanmin, samples.values)


def _over(reduce: Callable[..., Floats], values: Floats) -> Floats:
    """Over the series at each time; NaN where none has a value."""
    seen = np.isfinite(values).any(axis=1)
    result = np.full(len(values), np.nan)
    result[seen] = reduce(values[seen], axis=1)
    return result


def _lowest_in_run(samples: Frame) -> Floats:
    in_run = ["hpc_job" in labels for labels in samples.labels]
    return _over(np.nanmin, samples.values[:, in_run])


def _total_kw(samples: Frame) -> Floats:
    return _over(np.nansum, samples.values) / 1_000


def _fastest_growth(samples: Frame) -> Floats:
    """Of counters: the most that one of them grew in a second; a reset is no growth."""
    step_s = np.diff(samples.times_ns)[:, None] / 1e9
    grown = np.diff(samples.values, axis=0) / step_s
    return np.concatenate([[np.nan], _over(np.nanmax, np.where(grown < 0, np.nan, grown))])


def _growth_m(samples: Frame) -> Floats:
    return _fastest_growth(samples) / 1e6


def _highest_ms(samples: Frame) -> Floats:
    return _highest(samples) * 1_000


def _slowest_reply_ms(waited: Frame, requests: Frame) -> Floats:
    """The mean time of a reply to whoever waits longest; where nobody asked there is none."""
    asked = np.diff(requests.values, axis=0)
    mean_s = np.divide(
        np.diff(waited.values, axis=0), asked, where=asked > 0, out=np.full(asked.shape, np.nan)
    )
    return np.concatenate([[np.nan], _over(np.nanmax, mean_s * 1_000)])


_NFS = "node_mountstats_nfs_operations_"
_CDU = "densewatch_cdu_"

_BOARD = (
    _Gauge("step", "s", 0.3, ("holdfast_run_step_seconds",), _highest),
    _Gauge("checkpoint", "s", 2.0, ("holdfast_run_checkpoint_seconds",), _highest),
    _Gauge("slowest to compute", "s", 0.2, ("holdfast_member_compute_seconds",), _highest),
    _Gauge("longest wait for data", "s", 0.2, ("holdfast_member_data_seconds",), _highest),
    _Gauge("slowest exchange", "s", 0.1, ("holdfast_member_exchange_seconds",), _highest),
    _Gauge("slowest pair of engines", "ms", 10.0, ("holdfast_pool_transfer_seconds",), _highest_ms),
    _Gauge("fullest cache", "", 0.1, ("vllm:kv_cache_usage_perc",), _highest),
    _Gauge("hottest GPU", "C", 6.0, ("DCGM_FI_DEV_GPU_TEMP",), _highest),
    _Gauge("lowest clock", "MHz", 60.0, ("DCGM_FI_DEV_SM_CLOCK",), _lowest_in_run),
    _Gauge("power of all GPUs", "kW", 10.0, ("DCGM_FI_DEV_POWER_USAGE",), _total_kw),
    _Gauge("most memory errors", "/s", 1.0, ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",), _fastest_growth),
    _Gauge("narrowest PCIe link", "lanes", 1.0, ("node_pcidevice_current_link_width",), _lowest),
    _Gauge("worst power supply", "", 0.5, ("redfish_chassis_power_powersupply_health",), _highest),
    _Gauge("lowest coolant flow", "L/min", 10.0, (_CDU + "coolant_flow_lpm",), _lowest),
    _Gauge("warmest coolant", "C", 2.0, (_CDU + "coolant_supply_temp_celsius",), _highest),
    _Gauge("most symbol errors", "/s", 2.0, ("node_infiniband_symbol_error_total",), _fastest_growth),
    _Gauge("longest wait to send", "M/s", 1.0, ("infiniband_switch_port_transmit_wait_total",), _growth_m),
    _Gauge(
        "slowest storage reply",
        "ms",
        2.0,
        (_NFS + "response_time_seconds_total", _NFS + "requests_total"),
        _slowest_reply_ms,
    ),
    _Gauge("most retransmissions", "/s", 0.2, ("node_nfs_rpc_retransmissions_total",), _fastest_growth),
    _Gauge("most CPU pressure", "s/s", 0.05, ("node_pressure_cpu_waiting_seconds_total",), _fastest_growth),
)


def _board(telemetry: Telemetry) -> Iterator[Row]:
    for gauge in _BOARD:
        if telemetry.has(gauge.metrics):
            values = gauge.worst(*telemetry.samples(gauge.metrics)).tolist()
            seen = tuple(value if np.isfinite(value) else None for value in values)
            yield Row(label=gauge.label, unit=gauge.unit, notable=gauge.notable, values=seen)


# -- in the terminal ----------------------------------------------------------------------------------


def show(played: Played, reveal: bool) -> None:
    """Print the tabletop to stdout."""
    shown = tabletop(played, reveal=reveal)
    console = Console(highlight=False, markup=False)
    console.print(Text("Tabletop ", style="bold").append(shown.run))
    nodes = wording.many(played.layout.nodes, "node")
    console.print(
        f"{wording.span(shown.first_ns, shown.last_ns)}, {wording.many(shown.gpus, 'GPU')} on {nodes}"
    )
    console.print()
    console.print(shown.told)
    console.print()
    _print_story(console, shown)
    _print_board(console, shown)
    _print_questions(console, shown)
    if shown.truth is not None:
        _print_truth(console, shown.truth, played)


def show_list() -> None:
    """Print every scenario by its name."""
    console = Console(highlight=False, markup=False)
    table = _table()
    table.add_column(no_wrap=True)
    table.add_column()
    for scenario in SCENARIOS.values():
        table.add_row(Text(scenario.name, style="bold"), scenario.title)
    console.print(table)


def _table() -> Table:
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def _print_story(console: Console, shown: Tabletop) -> None:
    console.print("What the record says", style="bold")
    if not shown.story:
        console.print("Nothing but steps and checkpoints, as usual.")
    table = _table()
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for line in shown.story:
        table.add_row(wording.stamp(line.at_ns)[11:19], line.what)
    console.print(table)
    console.print()


def _print_board(console: Console, shown: Tabletop) -> None:
    console.print("What monitoring shows: of each signal the worst anywhere", style="bold")
    cells = min(max(console.width - BESIDE_SPARK_CHARS, SPARK_CELLS_MIN), SPARK_CELLS_MAX)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column(_hours(shown, cells), no_wrap=True, style="cyan")
    table.add_column("usual", no_wrap=True, justify="right")
    table.add_column("furthest", no_wrap=True, justify="right")
    table.add_column("", no_wrap=True, style="dim")
    for row in shown.board:
        table.add_row(row.label, sparkline(row, cells), *_levels(row, cells), row.unit)
    console.print(table)
    console.print()


def _hours(shown: Tabletop, cells: int) -> str:
    """The ends of the axis that all rows share."""
    first, last = (wording.stamp(at_ns)[11:16] for at_ns in (shown.first_ns, shown.last_ns))
    return first + last.rjust(cells - len(first))


def _cells(row: Row, cells: int) -> NDArray[np.float64]:
    """The mean of each share of the time; NaN where nothing was read."""
    numbers = np.array([np.nan if value is None else value for value in row.values])
    parts = np.array_split(numbers, min(cells, len(numbers)))
    return np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])


def sparkline(row: Row, cells: int) -> str:
    """The course of a signal in one line, a space where nothing was read."""
    means = _cells(row, cells)
    if not np.isfinite(means).any():
        return " " * len(means)
    low = np.nanmin(means)
    reach = max(np.nanmax(means) - low, row.notable)
    marks = np.nan_to_num((means - low) / reach * (len(SPARK) - 1)).round().astype(int)
    seen = np.isfinite(means)
    return "".join(SPARK[mark] if is_seen else " " for mark, is_seen in zip(marks, seen, strict=True))


def _levels(row: Row, cells: int) -> tuple[str, str]:
    """What the signal was at first, and what was furthest from that."""
    means = _cells(row, cells)
    seen = means[np.isfinite(means)]
    if not len(seen):
        return wording.UNKNOWN, wording.UNKNOWN
    usual = float(np.median(seen[:USUAL_CELLS]))
    furthest = float(seen[np.abs(seen - usual).argmax()])
    decimals = 0 if max(usual, furthest) >= 100 else 1 if max(usual, furthest) >= 10 else 2
    told = f"{furthest:,.{decimals}f}" if abs(furthest - usual) >= row.notable else ""
    return f"{usual:,.{decimals}f}", told


def _print_questions(console: Console, shown: Tabletop) -> None:
    console.print("Questions for the table", style="bold")
    table = _table()
    for number, question in enumerate(shown.questions, 1):
        table.add_row(f"{number}.", question)
    console.print(table)
    console.print()


def _print_truth(console: Console, truth: Truth, played: Played) -> None:
    console.print("The truth", style="bold red")
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for heading, what in _truth_rows(truth, played):
        table.add_row(heading, what)
    console.print(table)


def _truth_rows(truth: Truth, played: Played) -> Iterator[tuple[str, str]]:
    cause, surface = truth.cause, truth.surface
    gpus = next(event.gpus for event in played.events if isinstance(event, RunStarted))
    if not truth.is_incident:
        yield "Cause", f"nothing is wrong; {cause.mechanism}"
    else:
        yield "Cause", f"{cause.subject}, in {cause.domain}: {cause.mechanism}"
        yield "Owner", f"{cause.owner}; seam {truth.seam}"
    over = "not over" if truth.ended_ns is None else f"over {wording.stamp(truth.ended_ns)[11:19]}"
    yield "When", f"from {wording.stamp(truth.began_ns)[11:19]}, {over}"
    seen = "" if surface.at_ns is None else f", from {wording.stamp(surface.at_ns)[11:19]}"
    yield "Seen", f"in {surface.domain}{seen}: {surface.what}"
    yield "Members", _named(truth.affected) or "none"
    lost = f"{truth.lost_s:,.0f} s of the run, {truth.lost_s * gpus / 3600:,.1f} GPU-h"
    yield "Cost", f"{truth.slowdown:.2f} times the time per step; {lost}"
    for trace in truth.traces:
        yield "Shows in", f"{trace.metric} of {_named(trace.subjects)}"
    yield "Decides", truth.decides


def _named(names: tuple[str, ...]) -> str:
    """A few names, or the first, the last and how many."""
    if len(names) <= NAMES_SHOWN_MAX:
        return ", ".join(names)
    return f"{len(names)}, {names[0]} to {names[-1]}"


# -- on disk ------------------------------------------------------------------------------------------


def write(played: Played, directory: Path) -> tuple[Path, ...]:
    """Write events, signals and, in a file of its own, the truth; what was written.

    `holdfast import` reads events.jsonl, `promtool tsdb create-blocks-from openmetrics` signals.om.
    """
    casting = cast(played.layout, with_pools=played.scenario.with_pools)
    samples = (_thinned(played.telemetry.sample(name)) for name in played.telemetry.metrics)
    files: dict[str, Iterator[bytes]] = {
        "events.jsonl": (encode(event) + b"\n" for event in played.events),
        "signals.om": openmetrics.write(samples),
        "redfish.jsonl": _redfish(played.telemetry),
        "topology.yaml": iter([topology_file(casting, played.run).encode()]),
        "truth.json": iter([msgspec.json.format(msgspec.json.encode(played.truth), indent=2) + b"\n"]),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, pieces in files.items():
            with (directory / name).open("wb") as file:
                file.writelines(pieces)
    except OSError as error:
        raise InputError(
            f"The scenario cannot be written to {directory}: {error.strerror}.",
            hint="Name a directory that you may write to, on a disk with room.",
        ) from None
    return tuple(directory / name for name in files)


def _thinned(samples: Frame) -> Frame:
    return msgspec.structs.replace(
        samples, times_ns=samples.times_ns[::WRITE_EVERY], values=samples.values[::WRITE_EVERY], words=()
    )


def _redfish(telemetry: Telemetry) -> Iterator[bytes]:
    """The readings of every coolant connector, as Redfish gives them: numbers, and words in their place."""
    names = [name for name in telemetry.metrics if CATALOGUE[name].scope == "connector"]
    readings = {name: telemetry.sample(name) for name in names}
    words = {(name, word.time, word.series): word.text for name in names for word in readings[name].words}
    any_one = readings[names[0]]
    for time, at_ns in enumerate(any_one.times_ns.tolist()):
        for index, labels in enumerate(any_one.labels):
            values: dict[str, float | str] = {}
            for name in names:
                value = float(readings[name].values[time, index])
                if (word := words.get((name, time, index))) is not None:
                    values[name] = word
                elif np.isfinite(value):
                    values[name] = round(value, 2)
            yield msgspec.json.encode({"time_ns": at_ns, **labels, **values}) + b"\n"
