"""Where `holdfast collect` brings its readings: the record, the store of signals, Prometheus, the terminal.

An outlet that fails says so once and is tried again in the next round.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from holdfast.cli.terminal import print_json, printable
from holdfast.detect.kernel_faults import PENDING_MAX, FaultRecord, Names
from holdfast.record.errors import HoldfastError, complaint
from holdfast.signals.collectors.kernel_log import KernelEvent
from holdfast.signals.collectors.redfish import CoolingLink, is_facility_water
from holdfast.signals.collectors.rounds import RoundOutcome
from holdfast.signals.collectors.slurm import SlurmView
from holdfast.signals.frame import Reading

WAITING_MAX = 100_000
"""Readings that wait for a store that cannot be written: some 100 MB. The oldest are let go, and counted."""
FRESH_ROUNDS = 3
"""So many rounds long a collector's last readings are served while it is at work on the next ones."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a round brought."""

    at_ns: int
    outcomes: tuple[RoundOutcome, ...]
    events: tuple[KernelEvent, ...] = ()
    cooling: tuple[CoolingLink, ...] = ()
    slurm: SlurmView | None = None

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(reading for outcome in self.outcomes for reading in outcome.readings or ())


Outlet = Callable[[Collected], None]


@contextmanager
def recording(record: FaultRecord, names: Callable[[], Names]) -> Iterator[Outlet]:
    """Faults of the kernel log into the record. names: what is known behind PCI addresses by then."""
    complaints = _Complaints()
    told = 0

    def outlet(collected: Collected) -> None:
        nonlocal told
        with complaints.caught():
            record.add(list(collected.events), names(), now_ns=collected.at_ns)
        if record.dropped > told:
            told = record.dropped
            tell(f"The record lacks {told:,} faults: only the newest {PENDING_MAX:,} wait for the store.", "")

    yield outlet


@contextmanager
def storing(path: Path, *, step_s: float, keep_s: float | None) -> Iterator[Outlet]:
    """Readings into the store of signals, but for the facility's water, which is no coolant of a rack. What
    the store refuses, because the disk is full say, is offered again in the next round.

    keep_s: what is older than this is deleted; None: nothing is.
    """
    from holdfast.signals.store import SignalStore

    complaints = _Complaints()
    waiting: list[Reading] = []
    dropped = 0
    with SignalStore(path, step_s=step_s) as store:

        def outlet(collected: Collected) -> None:
            nonlocal dropped
            waiting.extend(reading for reading in collected.readings if not is_facility_water(reading))
            with complaints.caught():
                store.append(waiting)
                waiting.clear()
                if dropped:
                    tell(f"The signals lack {dropped:,} readings: only the newest {WAITING_MAX:,} wait.", "")
                    dropped = 0
                store.merge()
                if keep_s is not None:
                    store.forget(collected.at_ns - round(keep_s * 1e9))
            if len(waiting) > WAITING_MAX:
                dropped += len(waiting) - WAITING_MAX
                del waiting[:-WAITING_MAX]

        try:
            yield outlet
        finally:
            if lost := dropped + len(waiting):
                tell(f"The signals lack the last {lost:,} readings: the store took none of them.", "")


@contextmanager
def serving(address: str, *, every_s: float) -> Iterator[Outlet]:
    """Readings for Prometheus, at http://HOST:PORT/metrics. every_s: how often they come."""
    from holdfast.cli.metrics_page import serving_metrics
    from holdfast.signals.collectors.exposition import Exposition

    exposition = Exposition(fresh_s=FRESH_ROUNDS * every_s)

    def outlet(collected: Collected) -> None:
        for outcome in collected.outcomes:
            exposition.put(outcome.collector, outcome.readings)

    with serving_metrics(address, exposition) as url:
        click.echo(f"holdfast: Serving the readings at {url}", err=True)
        yield outlet


@contextmanager
def printing(*, as_json: bool, once: bool) -> Iterator[Outlet]:
    """On stdout: lines, a document, or a document a line where there will be more."""

    def outlet(collected: Collected) -> None:
        if not as_json:
            _print_lines(collected)
        elif once:
            print_json(_told(collected))
        else:
            click.echo(msgspec.json.encode(_told(collected)))
        sys.stdout.flush()

    yield outlet


def _told(collected: Collected) -> dict[str, object]:
    """For programs."""
    fields = ("at_ns", "readings", "events", "cooling", "slurm")
    problems = [outcome.problem for outcome in collected.outcomes if outcome.problem]
    return {name: getattr(collected, name) for name in fields} | {"problems": problems}


def _print_lines(collected: Collected) -> None:
    for reading in collected.readings:
        labels = ",".join(f'{name}="{value}"' for name, value in reading.labels.items())
        value = f'"{reading.word}"' if reading.value is None else f"{reading.value:.15g}"
        click.echo(printable(f"{reading.metric}{{{labels}}} {value}"))
    for event in collected.events:
        what = f"{event.source}-{event.sign if event.code is None else event.code}"
        click.echo(printable(f"{what} on {event.host or '-'} at {event.device or '-'}: {event.message}"))


class _Complaints:
    """What an outlet fails with, told once until it works again."""

    def __init__(self) -> None:
        self._told = ""

    @contextmanager
    def caught(self) -> Iterator[None]:
        try:
            yield
        except HoldfastError as error:
            if error.sentence != self._told:
                tell(error.sentence, error.hint)
            self._told = error.sentence
        else:
            self._told = ""


def tell(sentence: str, hint: str) -> None:
    """On stderr, as every mistake and failure is told."""
    click.echo(complaint(sentence, hint), err=True)
