"""`holdfast collect`: one process for a node or a site that reads what exporters do not give."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import get_args

import click
import msgspec

from holdfast.cli.collect_outlets import Collected, Outlet, printing, recording, serving, storing, tell
from holdfast.cli.ending import StopRequest, interrupt, on_signal
from holdfast.cli.flags import option, shared, takes
from holdfast.cli.record import home, json_option, store_option
from holdfast.cli.signal_sources import SIGNALS_DIRECTORY, url_option
from holdfast.cli.values import some_seconds
from holdfast.cli.xid_policy import load_xids
from holdfast.detect.kernel_faults import FaultRecord, Names
from holdfast.detect.xids import CATALOGUE, Source
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import InputError
from holdfast.signals.collectors import Collector
from holdfast.signals.collectors.host import HostCollector
from holdfast.signals.collectors.infiniband import SYSFS, InfinibandCollector, ports_by_address
from holdfast.signals.collectors.kernel_log_collector import KernelLogCollector
from holdfast.signals.collectors.nvml import NvmlCollector
from holdfast.signals.collectors.redfish import RedfishCollector
from holdfast.signals.collectors.redfish_access import redfish_service
from holdfast.signals.collectors.rounds import RoundOutcome, Rounds
from holdfast.signals.collectors.scrape import ScrapeCollector
from holdfast.signals.collectors.slurm import SlurmCollector
from holdfast.signals.credentials import access
from holdfast.signals.frame import Labels

STDIN = "-"
DEFAULT_SIGNALS = ""
"""`--signals` without a directory: the one that the other verbs read."""

UNPROVEN = "Lines of the kernel log that read like faults are left out: any user could have written them."
UNPROVEN_HINT = "Read /dev/kmsg, the output of dmesg, or that of journalctl --dmesg --output=json."


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    infiniband: str | None = option(
        f"Ports of InfiniBand and RoCE adapters.  [path: {SYSFS}]",
        is_flag=False,
        flag_value=str(SYSFS),
        metavar="[PATH]",
    )
    scrape: tuple[str, ...] = option(
        "A page that Prometheus would scrape: a run's --metrics-port.",
        "May be repeated; @FILE holds a URL.",
        multiple=True,
        envvar="HOLDFAST_SCRAPE",
        callback=url_option,
        metavar="URL",
    )
    redfish: tuple[str, ...] = option(
        "Cooling units and power shelves of a service; may be given again.",
        "NAME: what the unit is called.",
        multiple=True,
        metavar="[NAME=]URL",
    )
    redfish_session: bool = option("Log in once, instead of at every request.", is_flag=True)
    redfish_insecure: bool = option("Trust any certificate.", is_flag=True)
    redfish_ca: str | None = option("Trust certificates that this authority has signed.", metavar="FILE")
    nvml: bool = option("This machine's GPUs, under dcgm-exporter's names.", is_flag=True)
    node: bool = option("This machine's pressure, memory, disks, fans: node_exporter's.", is_flag=True)
    kernel_log: str | None = option(
        "XIDs and the like from this log: /dev/kmsg, a file, or -.", metavar="PATH"
    )
    slurm: bool = option("States of nodes, jobs and maintenance.", is_flag=True)
    host: str | None = option("What this machine is called.  [default: its host name]", metavar="NAME")
    every_s: float = option(
        "--every", "How often.", type=some_seconds, metavar="TIME", default="10s", show_default=True
    )
    once: bool = option("Read everything once and end.", is_flag=True)
    listen: str | None = option("Serve the readings for Prometheus, at /metrics.", metavar="HOST:PORT")
    signals: str | None = option(
        "Keep the readings in the embedded store. ",
        "[dir: $HOLDFAST_SIGNALS, or signals in $HOLDFAST_HOME]",
        is_flag=False,
        flag_value=DEFAULT_SIGNALS,
        metavar="[DIR]",
    )
    keep_s: float | None = option(
        "--keep", "Delete stored readings that are older: 30d, say.", type=some_seconds, metavar="TIME"
    )
    record: bool = option("Record faults of the kernel log.", is_flag=True)
    store_url: str | None = shared(store_option)
    xid_source: Source = option(
        "Whose word counts on how grave an XID is.",
        type=click.Choice(get_args(Source)),
        default=CATALOGUE,
        show_default=True,
    )
    xid_policy: Path | None = option(
        "What this site thinks of XIDs, as TOML.  [default: xids.toml in $HOLDFAST_HOME]",
        type=click.Path(path_type=Path),
    )
    as_json: bool = shared(json_option)


@click.command("collect")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Read what exporters do not give: cooling units, kernel log, fabric ports, GPUs, Slurm.

    One process for a node, or for a site's cooling. Readings have the names, units and labels of the
    exporters that would have them. They are printed, served for Prometheus (--listen) or kept (--signals).
    Who logs in is taken from $HOLDFAST_REDFISH_USER and $HOLDFAST_REDFISH_PASSWORD, and for pages that are
    scraped from $HOLDFAST_SCRAPE_TOKEN, or _USER and _PASSWORD.
    """
    if given.once and given.listen is not None:
        raise InputError("--listen serves nothing with --once.", hint="Leave out --once or --listen.")
    if given.keep_s is not None and given.signals is None:
        raise InputError("--keep is about stored readings.", hint="Store them with --signals.")
    with ExitStack() as stack:
        sources = _Sources(given, SystemClock())
        rounds = Rounds(sources.all, tell)
        stack.callback(rounds.close)
        outlets = [stack.enter_context(outlet) for outlet in _outlets(given, sources.names)]
        if given.once:
            outcomes = rounds.play(None)
            _hand_out(sources.collected(outcomes), outlets)
            return 2 if all(outcome.readings is None for outcome in outcomes) else 0
        # On a signal, log out of what was logged in to.
        ending = StopRequest()
        stack.enter_context(on_signal(ending, interrupt))
        while True:
            begun_s = time.monotonic()
            collected = sources.collected(rounds.play(given.every_s))
            with _uninterrupted(ending):
                _hand_out(collected, outlets)
            time.sleep(max(0.0, begun_s + given.every_s - time.monotonic()))


def _hand_out(collected: Collected, outlets: list[Outlet]) -> None:
    for outlet in outlets:
        outlet(collected)


@contextmanager
def _uninterrupted(ending: StopRequest) -> Iterator[None]:
    """An interrupt waits until what was begun is done: a database would make an error of its own of it."""
    with on_signal(ending, lambda: None):
        yield
    if ending.asked.is_set():
        raise KeyboardInterrupt


def _outlets(given: _Flags, names: Callable[[], Names]) -> Iterator[AbstractContextManager[Outlet]]:
    """Where the readings go: to stdout where nothing else was asked for, or they are read once."""
    if given.record:
        overrides = load_xids(given.xid_policy)
        faults = FaultRecord(given.store_url, home(), source=given.xid_source, overrides=overrides)
        yield recording(faults, names)
    if given.signals is not None:
        place = Path(given.signals or os.environ.get("HOLDFAST_SIGNALS") or home() / SIGNALS_DIRECTORY)
        yield storing(place, step_s=given.every_s, keep_s=given.keep_s)
    if given.listen is not None:
        yield serving(given.listen, every_s=given.every_s)
    kept = given.record or given.signals is not None or given.listen is not None
    if given.once or not kept:
        yield printing(as_json=given.as_json, once=given.once)


class _Sources:
    """The collectors that were asked for, and what they know beside their readings."""

    def __init__(self, given: _Flags, clock: Clock) -> None:
        host = given.host or socket.gethostname()
        self._clock = clock
        self._has_told = False
        self._sysfs = Path(given.infiniband or SYSFS)
        self._nvml = NvmlCollector(clock=clock, host=host) if given.nvml else None
        self._log = _kernel_log(given, clock, host, self._gpus)
        self._slurm = SlurmCollector(clock=clock) if given.slurm else None
        self._redfish = _redfish(given, clock)
        ports = InfinibandCollector(self._sysfs, clock=clock, host=host) if given.infiniband else None
        pages = _pages(given.scrape, clock)
        node = HostCollector(clock=clock, host=host) if given.node else None
        own: list[Collector | None] = [ports, self._nvml, node, self._log, self._slurm]
        chosen = [*own, *self._redfish, *pages]
        self.all = [collector for collector in chosen if collector is not None]
        if not self.all:
            raise InputError(
                "Nothing was asked for.",
                hint="Name one: --infiniband, --redfish, --nvml, --node, --kernel-log, --slurm or --scrape.",
            )

    def names(self) -> Names:
        return Names(gpus=self._gpus(), ports=ports_by_address(self._sysfs))

    def collected(self, outcomes: Sequence[RoundOutcome]) -> Collected:
        if self._log is not None and self._log.unproven and not self._has_told:
            self._has_told = True
            tell(UNPROVEN, UNPROVEN_HINT)
        return Collected(
            at_ns=self._clock.now_ns(),
            outcomes=tuple(outcomes),
            events=tuple(self._log.take_events()) if self._log else (),
            cooling=tuple(link for collector in self._redfish for link in collector.links()),
            slurm=self._slurm.view() if self._slurm else None,
        )

    def _gpus(self) -> dict[str, Labels]:
        return self._nvml.gpus() if self._nvml else {}


def _pages(urls: Sequence[str], clock: Clock) -> list[ScrapeCollector]:
    """Pages of one server are told apart by a number: their paths may be secrets."""
    pages: list[ScrapeCollector] = []
    for url in dict.fromkeys(urls):
        page = ScrapeCollector(url, clock=clock, access=access("SCRAPE"))
        earlier = sum(other.place == page.place for other in pages)
        page.name += f" #{earlier + 1}" if earlier else ""
        pages.append(page)
    return pages


def _redfish(given: _Flags, clock: Clock) -> list[RedfishCollector]:
    services = [
        redfish_service(
            text,
            session=given.redfish_session,
            verify=not given.redfish_insecure,
            authority=given.redfish_ca,
        )
        for text in given.redfish
    ]
    titles = [service.title for service in services]
    if twice := [title for title in titles if titles.count(title) > 1]:
        raise InputError(
            f"--redfish: {twice[0]} occurs twice.", hint="Give each service a name: NAME=https://HOST."
        )
    return [RedfishCollector(service, clock=clock) for service in services]


def _kernel_log(
    given: _Flags, clock: Clock, host: str, gpus: Callable[[], dict[str, Labels]]
) -> KernelLogCollector | None:
    if given.kernel_log is None:
        return None
    path = None if given.kernel_log == STDIN else Path(given.kernel_log)
    return KernelLogCollector(path, clock=clock, host=host, gpus=gpus, whole=given.once)
