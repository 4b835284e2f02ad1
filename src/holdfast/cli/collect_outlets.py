"""Where `holdfast collect` brings its readings: the record, the store of signals, Prometheus, the terminal.

An outlet that fails says so once and is tried again in the next round.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from holdfast.cli.collect_faults import FaultRecord, Names
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import HoldfastError, InputError, complaint
from holdfast.signals.collectors.kernel_log import KernelEvent
from holdfast.signals.collectors.redfish import CoolingLink, is_facility_water
from holdfast.signals.collectors.rounds import Outcome
from holdfast.signals.collectors.slurm import SlurmView
from holdfast.signals.reading import Reading

PORT_MAX = 65_535


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a round brought."""

    at_ns: int
    outcomes: tuple[Outcome, ...]
    events: tuple[KernelEvent, ...] = ()
    cooling: tuple[CoolingLink, ...] = ()
    slurm: SlurmView | None = None

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(reading for outcome in self.outcomes for reading in outcome.readings or ())


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The same for programs."""

    at_ns: int
    readings: tuple[Reading, ...]
    events: tuple[KernelEvent, ...]
    cooling: tuple[CoolingLink, ...]
    slurm: SlurmView | None
    problems: tuple[str, ...]


Outlet = Callable[[Collected], None]


@contextmanager
def recording(record: FaultRecord, names: Callable[[], Names]) -> Iterator[Outlet]:
    """Faults of the kernel log into the record. names: what is known behind PCI addresses by then."""
    complaints = _Complaints()

    def outlet(collected: Collected) -> None:
        with complaints.caught():
            record.add(list(collected.events), names(), now_ns=collected.at_ns)

    yield outlet


@contextmanager
def storing(path: Path, *, step_s: float, keep_s: float | None) -> Iterator[Outlet]:
    """Readings into the store of signals, but for the facility's water, which is no coolant of a rack.

    keep_s: what is older than this is deleted; None: nothing is.
    """
    from holdfast.signals.store import Store

    complaints = _Complaints()
    with Store(path, step_s=step_s) as store:

        def outlet(collected: Collected) -> None:
            with complaints.caught():
                store.append(reading for reading in collected.readings if not is_facility_water(reading))
                if keep_s is not None:
                    store.forget(collected.at_ns - round(keep_s * 1e9))

        yield outlet


@contextmanager
def serving(address: str) -> Iterator[Outlet]:
    """Readings for Prometheus, at http://HOST:PORT/metrics."""
    from prometheus_client import CollectorRegistry, start_http_server

    from holdfast.signals.collectors.exposition import Exposition

    host, port = _host_and_port(address)
    exposition = Exposition()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exposition)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, UnicodeError) as error:  # the latter for a host that is no name
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"Nobody can listen at {address}: {reason}.", hint="Is the host this one, and the port free?"
        ) from None
    click.echo(f"holdfast: Serving the readings at http://{host}:{server.server_port}/metrics", err=True)

    def outlet(collected: Collected) -> None:
        for outcome in collected.outcomes:
            exposition.put(outcome.collector, outcome.readings)

    try:
        yield outlet
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else PORT_MAX + 1
    if not host or number > PORT_MAX:
        raise InputError(f"{address!r} is no address to listen at.", hint="Write 127.0.0.1:9470.")
    return host.strip("[]"), number


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


def _told(collected: Collected) -> Told:
    return Told(
        at_ns=collected.at_ns,
        readings=collected.readings,
        events=collected.events,
        cooling=collected.cooling,
        slurm=collected.slurm,
        problems=tuple(outcome.problem for outcome in collected.outcomes if outcome.problem),
    )


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
