"""The outlets of `holdfast collect`: the record, the store of signals, Prometheus, the terminal.

An outlet that fails says so once and is tried again in the next round.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec

from holdfast.cli.terminal import print_json, printable, say, tell
from holdfast.detect.kernel_faults import PENDING_MAX, FaultRecord, Names
from holdfast.signals.collectors.gathering import Collected
from holdfast.signals.collectors.storing import ComplaintBox, Outlet

FRESH_ROUNDS = 3
"""For how many rounds a collector's last readings are served while it works on the next ones."""


@contextmanager
def recording(record: FaultRecord, names: Callable[[], Names]) -> Iterator[Outlet]:
    """Write faults of the kernel log into the record. names: the devices known by PCI address so far."""
    complaints, told = ComplaintBox(tell), 0

    def outlet(collected: Collected) -> None:
        nonlocal told
        with complaints.caught():
            record.add(list(collected.events), names(), now_ns=collected.at_ns)
        if record.dropped > told:
            told = record.dropped
            tell(f"{told:,} faults were dropped: only the newest {PENDING_MAX:,} wait for the store.")

    yield outlet


@contextmanager
def serving(address: str, *, every_s: float) -> Iterator[Outlet]:
    """Serve readings for Prometheus at http://HOST:PORT/metrics. every_s: the interval of the readings."""
    from holdfast.cli.metrics_page import serving_metrics
    from holdfast.signals.collectors.exposition import Exposition

    exposition = Exposition(fresh_s=FRESH_ROUNDS * every_s)

    def outlet(collected: Collected) -> None:
        for outcome in collected.outcomes:
            exposition.put(outcome.collector, outcome.readings)

    with serving_metrics(address, exposition) as url:
        say(f"Serving the readings at {url}")
        yield outlet


@contextmanager
def printing(*, as_json: bool, once: bool) -> Iterator[Outlet]:
    """Print to stdout: lines, one JSON document, or a document per line if there will be more."""

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
    """The readings as JSON has them."""
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
