"""`holdfast bench record`: the cost of an event for the training loop, and whether a kill loses any.

The cost is measured against a plain `file.write` of the same bytes to the same filesystem, in alternating
rounds of one run. For the losses, child processes record as fast as they can and vouch for every event once
the call has returned; they are killed in the middle of it, and every event they vouched for has to be in the
journal.
"""

import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from holdfast.record.events import StepCommitted
from holdfast.record.journal import JOURNAL_SUFFIX, ROTATE_BYTES, Damage, read_directory
from holdfast.record.recorder import DRAIN_INTERVAL_S, Recorder
from holdfast.record.spool import SPOOL_BYTES

EVENT_US_MAX = 10.0
"""The highest cost of an event on the hot path."""
ROUNDS = 15
EVENTS_PER_ROUND = 4_000
KILLS = 9
SEED = 1
KILL_AFTER_S = (0.01, 0.5)
"""A child is killed this long after its first event: from before the first drain to after many."""
_SHAPES = ((SPOOL_BYTES, ROTATE_BYTES), (48 * 2**10, ROTATE_BYTES), (SPOOL_BYTES, 128 * 2**10))
"""Sizes of spool and file: as usual, with a ring that wraps around all the time, with files that rotate."""


CHECKOUT = str(Path(__file__).parents[1])


class RecordBench(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds an event, each the median of the rounds, and what the killed processes lost."""

    event_us: float
    event_us_p99: float
    plain_write_us: float
    os_write_us: float
    ratio: float
    dropped: int
    killed_runs: int
    acknowledged: int
    lost: int


def measure(rounds: int, kills: int) -> RecordBench:
    """Run the whole benchmark in a temporary directory of its own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        costs = _costs(Path(directory), rounds, EVENTS_PER_ROUND)
        losses = _losses(Path(directory), kills)
    return RecordBench(
        event_us=round(costs.event_us, 3),
        event_us_p99=round(costs.event_us_p99, 3),
        plain_write_us=round(costs.plain_write_us, 3),
        os_write_us=round(costs.os_write_us, 3),
        ratio=round(costs.event_us / costs.plain_write_us, 2),
        dropped=costs.dropped,
        killed_runs=kills,
        acknowledged=losses.acknowledged,
        lost=losses.lost,
    )


class _Costs(msgspec.Struct, frozen=True, kw_only=True):
    event_us: float
    event_us_p99: float
    plain_write_us: float
    os_write_us: float
    dropped: int


def _costs(directory: Path, rounds: int, events: int) -> _Costs:
    event_us, plain_us, unbuffered_us, call_us = [], [], [], []
    with (
        Recorder(directory / "timed", run="bench") as recorder,
        (directory / "plain").open("wb") as plain,
        (directory / "unbuffered").open("wb", buffering=0) as unbuffered,
    ):
        lines = _same_bytes(directory / "sample", events)

        def record(step: int) -> None:
            recorder.record(StepCommitted, step=step, subject="member-0")

        for _ in range(rounds):
            event_us.append(_each_us(record, events))
            _let_drain()
            plain_us.append(_each_us(lambda step: plain.write(lines[step]), events))
            unbuffered_us.append(_each_us(lambda step: os.write(unbuffered.fileno(), lines[step]), events))
            call_us += _calls_us(record, events)
            _let_drain()
        return _Costs(
            event_us=statistics.median(event_us),
            event_us_p99=statistics.quantiles(call_us, n=100)[98],
            plain_write_us=statistics.median(plain_us),
            os_write_us=statistics.median(unbuffered_us),
            dropped=recorder.dropped,
        )


def _same_bytes(directory: Path, events: int) -> list[bytes]:
    """The lines that recording this many events puts into a journal."""
    with Recorder(directory, run="bench") as recorder:
        for step in range(events):
            recorder.record(StepCommitted, step=step, subject="member-0")
    (file,) = directory.glob(f"*{JOURNAL_SUFFIX}")
    return file.read_bytes().splitlines(keepends=True)


def _each_us(action: Callable[[int], object], times: int) -> float:
    begin_ns = time.perf_counter_ns()
    for step in range(times):
        action(step)
    return (time.perf_counter_ns() - begin_ns) / times / 1000


def _calls_us(action: Callable[[int], object], times: int) -> list[float]:
    durations = []
    for step in range(times):
        begin_ns = time.perf_counter_ns()
        action(step)
        durations.append((time.perf_counter_ns() - begin_ns) / 1000)
    return durations


def _let_drain() -> None:
    """Begin a round with an empty spool: no training loop records a million events in a row."""
    time.sleep(3 * DRAIN_INTERVAL_S)


class _Losses(msgspec.Struct, frozen=True, kw_only=True):
    acknowledged: int
    lost: int


def _losses(directory: Path, kills: int) -> _Losses:
    generator = random.Random(SEED)
    acknowledged = lost = 0
    for number in range(kills):
        spool_bytes, rotate_bytes = _SHAPES[number % len(_SHAPES)]
        journal = directory / f"killed-{number}"
        vouched = _vouched_until_killed(journal, spool_bytes, rotate_bytes, generator.uniform(*KILL_AFTER_S))
        found = {item.id for item in read_directory(journal) if not isinstance(item, Damage)}
        acknowledged += len(vouched)
        lost += len(vouched - found)
    return _Losses(acknowledged=acknowledged, lost=lost)


def _vouched_until_killed(journal: Path, spool_bytes: int, rotate_bytes: int, after_s: float) -> set[str]:
    """The ids that a recording process vouched for before it was killed, `after_s` after the first."""
    found = f"import sys; sys.path.append({CHECKOUT!r})"
    program = f"{found}; from {__name__} import record_for_ever; record_for_ever()"
    arguments = [sys.executable, "-c", program, str(journal), str(spool_bytes), str(rotate_bytes)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        vouched = [child.stdout.readline()]
        timer = threading.Timer(after_s, child.kill)
        timer.start()
        vouched += child.stdout
        timer.join()
    if child.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the recording process ended by itself, with {child.returncode}")
    return {line.strip().decode() for line in vouched if line.endswith(b"\n")}


def record_for_ever() -> NoReturn:
    """Record until killed, and vouch on stdout for every event that was not dropped."""
    logging.disable(logging.WARNING)  # the drops of a ring that is too small on purpose
    journal, spool_bytes, rotate_bytes = sys.argv[1:]
    recorder = Recorder(
        Path(journal), run="bench", spool_bytes=int(spool_bytes), rotate_bytes=int(rotate_bytes)
    )
    step = 0
    while True:
        dropped = recorder.dropped
        identity = recorder.record(StepCommitted, step=step)
        if recorder.dropped == dropped:
            os.write(sys.stdout.fileno(), identity.encode() + b"\n")
        step += 1


@click.command()
@click.option(
    "--rounds", type=click.IntRange(min=1), default=ROUNDS, show_default=True, help="Fewer for a quick look."
)
@click.option("--kills", type=click.IntRange(min=1), default=KILLS, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(rounds: int, kills: int, as_json: bool) -> None:
    """Measure what recording an event costs, and that SIGKILL loses none."""
    result = measure(rounds, kills)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def table(result: RecordBench) -> str:
    """The result for people, a figure a line."""
    rows = (
        ("record an event", f"{result.event_us:.2f} us", f"at most {EVENT_US_MAX:g} us wanted"),
        ("  99th percentile", f"{result.event_us_p99:.2f} us", "a timer around each call included"),
        ("file.write of its bytes", f"{result.plain_write_us:.2f} us", "buffered: SIGKILL loses it"),
        ("os.write of its bytes", f"{result.os_write_us:.2f} us", "waits for storage"),
        ("event : file.write", f"{result.ratio:.1f}", ""),
        ("dropped", f"{result.dropped}", "while timing"),
        ("processes killed", f"{result.killed_runs}", f"{result.acknowledged} events acknowledged before"),
        ("lost", f"{result.lost}", "acknowledged, and not in the journal"),
    )
    return "\n".join(f"{name:<24}{value:>12}   {note}".rstrip() for name, value, note in rows)
