"""`holdfast bench ledger`: how fast events fold into accounts, in how much memory, and the cost of one more.

The peer is the least any fold in this language can do: a loop over the same events that looks up a function
by the event's type and calls it, doing nothing.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec

from holdfast.cli.record import json_option
from holdfast.ledger.fold import Fold
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.events import (
    AnyEvent,
    CheckpointBegun,
    CheckpointLoaded,
    CheckpointSaved,
    FaultObserved,
    PhaseEntered,
    RunEnded,
    RunStarted,
    StepBegun,
    StepCommitted,
    decode,
    encode,
)
from holdfast.wording.units import SECOND_NS

SHORT_RUN_EVENTS = 10_000
APPENDS = 2_000
READS = 20
ROUNDS = 3
_START_NS = 1_750_000_000 * SECOND_NS


class LedgerBench(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. Rates are events a second, the best of the rounds.

    events_per_s         events in memory to accounts, through the ledger
    fold_events_per_s    the same without the ledger's care for order, twins and late comers
    bytes_events_per_s   encoded events to accounts: decoding included
    loop_events_per_s    the peer: a loop that looks up and calls an empty function for each event
    loop_ratio           loop_events_per_s / events_per_s: how many such calls an event costs
    peak_bytes           what folding a stream of them added to a fresh process's memory
    append_us_10k, _1m   one more event to a run that has so many, median
    read_us_10k, _1m     the whole report of such a run, median
    """

    events: int
    events_per_s: float
    fold_events_per_s: float
    bytes_events_per_s: float
    loop_events_per_s: float
    loop_ratio: float
    peak_bytes: int
    append_us_10k: float
    append_us_1m: float
    read_us_10k: float
    read_us_1m: float


@click.command("ledger")
@click.option("--events", type=click.IntRange(min=20_000), default=1_000_000, show_default=True)
@json_option
def command(events: int, as_json: bool) -> None:
    """Fold a long run's events: events a second, memory, and the cost of one more event."""
    bench = measure(events)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(bench), indent=2).decode())
        return
    click.echo(f"{bench.events:,} events folded at {bench.events_per_s:,.0f} events/s", nl=False)
    click.echo(
        f" ({bench.bytes_events_per_s:,.0f} from encoded bytes, {bench.fold_events_per_s:,.0f} fold alone)"
    )
    click.echo(
        f"a loop that does nothing: {bench.loop_events_per_s:,.0f} events/s, {bench.loop_ratio:.1f} x that"
    )
    click.echo(f"memory added by folding a stream of them: {bench.peak_bytes / 2**20:,.1f} MiB")
    click.echo(
        f"one more event: {bench.append_us_10k:.2f} us after 10k, {bench.append_us_1m:.2f} us after all"
    )
    click.echo(
        f"the whole report: {bench.read_us_10k:,.0f} us after 10k, {bench.read_us_1m:,.0f} us after all"
    )


def measure(count: int) -> LedgerBench:
    events = list(islice(history(), count))
    bodies = [encode(event) for event in events]
    gc.collect()
    gc.freeze()  # so that the collector does not walk through the measurement's own objects
    try:
        rate = _rate(count, lambda: Ledger().add(events))
        fold_rate = _rate(count, lambda: _fold(events))
        bytes_rate = _rate(count, lambda: Ledger().add(map(decode, bodies)))
        loop_rate = _rate(count, lambda: _loop(events))
    finally:
        gc.unfreeze()
    append_short, read_short = _one_more(SHORT_RUN_EVENTS)
    append_long, read_long = _one_more(count)
    return LedgerBench(
        events=count,
        events_per_s=rate,
        fold_events_per_s=fold_rate,
        bytes_events_per_s=bytes_rate,
        loop_events_per_s=loop_rate,
        loop_ratio=loop_rate / rate,
        peak_bytes=peak_bytes(count),
        append_us_10k=append_short,
        append_us_1m=append_long,
        read_us_10k=read_short,
        read_us_1m=read_long,
    )


def history() -> Iterator[AnyEvent]:
    """A run without end: two events a step, jitter, data waits, checkpoints, failures, rollbacks."""
    count, now_ns = 0, _START_NS

    def tell(kind: Callable[..., AnyEvent], **fields: object) -> AnyEvent:
        nonlocal count
        count += 1
        return kind(
            id=f"bench0bench0-{count:010x}",
            occurred_ns=now_ns,
            recorded_ns=now_ns,
            source="bench/1",
            run="bench",
            **fields,
        )

    yield tell(RunStarted, gpus=1024)
    step = commits = 0
    while True:
        step += 1
        commits += 1
        yield tell(StepBegun, step=step)
        now_ns += SECOND_NS + (step * 2_654_435_761) % 50_000_000  # up to 5 % of jitter, the same each time
        yield tell(StepCommitted, step=step)
        if step % 50 == 0:
            yield tell(PhaseEntered, phase="data")
            now_ns += SECOND_NS // 10
        if step % 500 == 0:
            yield tell(CheckpointBegun, step=step)
            now_ns += 2 * SECOND_NS
            yield tell(CheckpointSaved, step=step)
        if commits % 10_000 == 9_750:
            now_ns += 30 * SECOND_NS
            yield tell(FaultObserved, fault="hang", subject="node-7", onset_ns=now_ns - 25 * SECOND_NS)
            yield tell(RunEnded, outcome="failed")
            now_ns += 60 * SECOND_NS
            yield tell(RunStarted, gpus=1024)
            now_ns += 90 * SECOND_NS
            step -= step % 500
            yield tell(CheckpointLoaded, step=step)


def _rate(count: int, work: Callable[[], object]) -> float:
    """Times are this process's own, not the machine's: a neighbour's load is not ours to report."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - begun_s)
    return count / best_s


def _fold(events: Iterable[AnyEvent]) -> None:
    apply = Fold().apply
    for event in events:
        apply(event)


def _loop(events: Iterable[AnyEvent]) -> None:
    functions = dict.fromkeys(_KINDS, _nothing)
    for event in events:
        functions[type(event)](event)


def _nothing(event: AnyEvent) -> None:
    pass


_KINDS: tuple[type, ...] = (
    RunStarted,
    RunEnded,
    StepBegun,
    StepCommitted,
    PhaseEntered,
    FaultObserved,
    CheckpointBegun,
    CheckpointSaved,
    CheckpointLoaded,
)


def _one_more(count: int) -> tuple[float, float]:
    """Microseconds to add one event to a run of `count`, and to read the report of it."""
    told = history()
    ledger = Ledger()
    ledger.add(islice(told, count))
    appends_us = []
    for event in islice(told, APPENDS):
        begun_ns = time.perf_counter_ns()
        ledger.add((event,))
        appends_us.append((time.perf_counter_ns() - begun_ns) / 1000)
    reads_us = []
    for _ in range(READS):
        begun_ns = time.perf_counter_ns()
        report("bench", ledger.fold)
        reads_us.append((time.perf_counter_ns() - begun_ns) / 1000)
    return statistics.median(appends_us), statistics.median(reads_us)


def peak_bytes(count: int) -> int:
    """The growth of memory while a process of its own folds a stream."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_growth_bytes, (count,))


def _growth_bytes(count: int) -> int:
    before = _memory_bytes_max()
    ledger = Ledger()
    ledger.add(islice(history(), count))
    return _memory_bytes_max() - before


def _memory_bytes_max() -> int:
    """Not `getrusage`: its maximum is inherited from the parent process."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024
