"""`holdfast collect`: one process for a node or a site that reads metrics that exporters lack."""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import get_args

import click
import msgspec

from holdfast import wording
from holdfast.cli.collect_outlets import printing, recording, serving
from holdfast.cli.ending import StopRequest, interrupt, on_signal
from holdfast.cli.flags import option, shared, takes
from holdfast.cli.pulse import Pulse
from holdfast.cli.record import home, json_option, store_option
from holdfast.cli.signal_sources import url_option
from holdfast.cli.terminal import tell
from holdfast.cli.xid_policy import load_xids
from holdfast.detect.kernel_faults import FaultRecord, Names
from holdfast.detect.xids import CATALOGUE, Source
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.signals.collectors.gathering import AskedCollectors, Collected, CollectorSet
from holdfast.signals.collectors.infiniband import SYSFS
from holdfast.signals.collectors.rounds import Rounds
from holdfast.signals.collectors.storing import Outlet, storing
from holdfast.signals.opening import SIGNALS_DIRECTORY
from holdfast.wording.parsing import some_seconds

DEFAULT_SIGNALS = ""
"""`--signals` without a directory: the one that the other verbs read."""


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    infiniband: str | None = option(
        f"Ports of InfiniBand and RoCE adapters.  [path: {SYSFS}]",
        is_flag=False,
        flag_value=str(SYSFS),
        metavar="[PATH]",
    )
    scrape: tuple[str, ...] = option(
        "A page of metrics, as Prometheus scrapes it: a run's --metrics-port, say.",
        "May be repeated; @FILE holds a URL.",
        envvar="HOLDFAST_SCRAPE",
        callback=url_option,
        metavar="URL",
    )
    redfish: tuple[str, ...] = option(
        "Cooling units and power shelves of a Redfish service. May be repeated.",
        "NAME: of the unit.",
        metavar="[NAME=]URL",
    )
    redfish_session: bool = option("Log in once, instead of at every request.")
    redfish_insecure: bool = option("Trust any certificate.")
    redfish_ca: str | None = option("Trust certificates that this authority has signed.", metavar="FILE")
    nvml: bool = option("This machine's GPUs, under dcgm-exporter's names.")
    node: bool = option("This machine's pressure, memory, disks, fans: node_exporter's.")
    kernel_log: str | None = option(
        "XIDs and the like from this log: /dev/kmsg, a file, or -.", metavar="PATH"
    )
    slurm: bool = option("States of nodes, jobs and maintenance.")
    host: str | None = option("This machine's name.  [default: its host name]", metavar="NAME")
    every_s: float = option(
        "--every", "How often.", type=some_seconds, metavar="TIME", default="10s", show_default=True
    )
    once: bool = option("Read everything once and end.")
    listen: str | None = option("Serve the readings for Prometheus, at /metrics.", metavar="HOST:PORT")
    signals: str | None = option(
        "Keep the readings in the embedded store. ",
        "[dir: $HOLDFAST_SIGNALS, or signals in $HOLDFAST_HOME]",
        is_flag=False,
        flag_value=DEFAULT_SIGNALS,
        metavar="[DIR]",
    )
    keep_s: float | None = option(
        "--keep", "Delete stored readings older than this: 30d, say.", type=some_seconds, metavar="TIME"
    )
    record: bool = option("Record faults of the kernel log.")
    store_url: str | None = shared(store_option)
    xid_source: Source = option(
        "The source that decides how grave an XID is.",
        type=click.Choice(get_args(Source)),
        default=CATALOGUE,
        show_default=True,
    )
    xid_policy: Path | None = option(
        "This site's own severities of XIDs, as TOML.  [default: xids.toml in $HOLDFAST_HOME]"
    )
    as_json: bool = shared(json_option)


@click.command("collect")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Read metrics that exporters lack: cooling units, kernel log, fabric ports, GPUs, Slurm.

    Run one process for a node, or for a site's cooling. Readings have the names, units and labels that common
    exporters use. They are printed, served for Prometheus (--listen) or stored (--signals). Credentials come
    from $HOLDFAST_REDFISH_USER and $HOLDFAST_REDFISH_PASSWORD, and for scraped pages from
    $HOLDFAST_SCRAPE_TOKEN, or _USER and _PASSWORD.
    """
    if given.once and given.listen is not None:
        raise InputError("--listen serves nothing with --once.", hint="Leave out --once or --listen.")
    if given.keep_s is not None and given.signals is None:
        raise InputError("--keep needs stored readings.", hint="Store them with --signals.")
    with ExitStack() as stack:
        asked = msgspec.convert(given, AskedCollectors, from_attributes=True)
        sources = CollectorSet(asked, SystemClock(), tell)
        rounds = Rounds(sources.all, tell)
        stack.callback(rounds.close)
        outlets = [stack.enter_context(outlet) for outlet in _outlets(given, sources)]
        if given.once:
            outcomes = rounds.play(None)
            _hand_out(sources.collected(outcomes), outlets)
            return 2 if all(outcome.readings is None for outcome in outcomes) else 0
        # A signal ends the loop by an exception, so that sessions are logged out.
        ending = StopRequest()
        stack.enter_context(on_signal(ending, interrupt))
        pulse = stack.enter_context(Pulse("Collecting", given.every_s).shown())
        while True:
            begun_s = time.monotonic()
            collected = sources.collected(rounds.play(given.every_s))
            with _uninterrupted(ending):
                pulse.clear()
                _hand_out(collected, outlets)
                pulse.beat(_read(collected), collected.at_ns)
            time.sleep(max(0.0, begun_s + given.every_s - time.monotonic()))


def _read(collected: Collected) -> str:
    """What the round read."""
    names = ", ".join(one.collector for one in collected.outcomes if one.readings is not None)
    metrics = wording.many(len({one.metric for one in collected.readings}), "metric")
    return f"{metrics}, {wording.many(len(collected.readings), 'reading')} ({names or 'nothing answers'})"


def _hand_out(collected: Collected, outlets: list[Outlet]) -> None:
    for outlet in outlets:
        outlet(collected)


@contextmanager
def _uninterrupted(ending: StopRequest) -> Iterator[None]:
    """Delay an interrupt until the block is done: a database would turn it into an error of its own."""
    with on_signal(ending, lambda: None):
        yield
    if ending.asked.is_set():
        raise KeyboardInterrupt


def _outlets(given: _Flags, sources: CollectorSet) -> Iterator[AbstractContextManager[Outlet]]:
    """The outlets of the readings: stdout if no other was asked for, or if they are read once."""
    if given.record:
        overrides = load_xids(given.xid_policy)
        faults = FaultRecord(given.store_url, home(), source=given.xid_source, overrides=overrides)
        yield recording(faults, lambda: Names(gpus=sources.gpus(), ports=sources.ports()))
    if given.signals is not None:
        place = Path(given.signals or os.environ.get("HOLDFAST_SIGNALS") or home() / SIGNALS_DIRECTORY)
        yield storing(place, tell, step_s=given.every_s, keep_s=given.keep_s)
    if given.listen is not None:
        yield serving(given.listen, every_s=given.every_s)
    kept = given.record or given.signals is not None or given.listen is not None
    if given.once or not kept:
        yield printing(as_json=given.as_json, once=given.once)
