"""The collectors that a node or a site asks for, and the results of one round."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.record.clock import Clock
from holdfast.record.errors import InputError
from holdfast.signals.collectors import Collector
from holdfast.signals.collectors.host import HostCollector
from holdfast.signals.collectors.infiniband import SYSFS, InfinibandCollector, ports_by_address
from holdfast.signals.collectors.kernel_log import KernelEvent
from holdfast.signals.collectors.kernel_log_collector import KernelLogCollector
from holdfast.signals.collectors.nvml import NvmlCollector
from holdfast.signals.collectors.redfish import CoolingLink, RedfishCollector
from holdfast.signals.collectors.redfish_access import redfish_service
from holdfast.signals.collectors.rounds import RoundOutcome, Tell
from holdfast.signals.collectors.scrape import ScrapeCollector
from holdfast.signals.collectors.slurm import SlurmCollector, SlurmView
from holdfast.signals.credentials import access
from holdfast.signals.frame import Labels, Reading

STDIN = "-"
UNPROVEN = "Lines of the kernel log that read like faults are left out: any user could have written them."
UNPROVEN_HINT = "Read /dev/kmsg, the output of dmesg, or that of journalctl --dmesg --output=json."


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a round."""

    at_ns: int
    outcomes: tuple[RoundOutcome, ...]
    events: tuple[KernelEvent, ...] = ()
    cooling: tuple[CoolingLink, ...] = ()
    slurm: SlurmView | None = None

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(reading for outcome in self.outcomes for reading in outcome.readings or ())


class AskedCollectors(msgspec.Struct, frozen=True, kw_only=True):
    """What to read.

    host         the name of this machine; None: its host name
    infiniband   where the kernel shows its ports; None: read no ports
    kernel_log   a path, or STDIN
    once         read everything once: the whole kernel log
    """

    host: str | None = None
    infiniband: str | None = None
    scrape: tuple[str, ...] = ()
    redfish: tuple[str, ...] = ()
    redfish_session: bool = False
    redfish_insecure: bool = False
    redfish_ca: str | None = None
    nvml: bool = False
    node: bool = False
    kernel_log: str | None = None
    slurm: bool = False
    once: bool = False


class CollectorSet:
    """The requested collectors, and what they know besides their readings."""

    def __init__(self, asked: AskedCollectors, clock: Clock, tell: Tell) -> None:
        host = asked.host or socket.gethostname()
        self._clock = clock
        self._tell = tell
        self._has_told = False
        self._sysfs = Path(asked.infiniband or SYSFS)
        self._nvml = NvmlCollector(clock=clock, host=host) if asked.nvml else None
        self._log = _kernel_log(asked, clock, host, self.gpus)
        self._slurm = SlurmCollector(clock=clock) if asked.slurm else None
        self._redfish = _redfish(asked, clock)
        ports = InfinibandCollector(self._sysfs, clock=clock, host=host) if asked.infiniband else None
        pages = _pages(asked.scrape, clock)
        node = HostCollector(clock=clock, host=host) if asked.node else None
        own: list[Collector | None] = [ports, self._nvml, node, self._log, self._slurm]
        chosen = [*own, *self._redfish, *pages]
        self.all = [collector for collector in chosen if collector is not None]
        if not self.all:
            raise InputError(
                "No collector was requested.",
                hint="Name one: --infiniband, --redfish, --nvml, --node, --kernel-log, --slurm or --scrape.",
            )

    def gpus(self) -> dict[str, Labels]:
        """The GPUs by PCI address, as are the ports."""
        return self._nvml.gpus() if self._nvml else {}

    def ports(self) -> dict[str, str]:
        return ports_by_address(self._sysfs)

    def collected(self, outcomes: Sequence[RoundOutcome]) -> Collected:
        if self._log is not None and self._log.unproven and not self._has_told:
            self._has_told = True
            self._tell(UNPROVEN, UNPROVEN_HINT)
        return Collected(
            at_ns=self._clock.now_ns(),
            outcomes=tuple(outcomes),
            events=tuple(self._log.take_events()) if self._log else (),
            cooling=tuple(link for collector in self._redfish for link in collector.links()),
            slurm=self._slurm.view() if self._slurm else None,
        )


def _pages(urls: Sequence[str], clock: Clock) -> list[ScrapeCollector]:
    """The pages to scrape. A number tells pages of one server apart: their paths may be secrets."""
    pages: list[ScrapeCollector] = []
    for url in dict.fromkeys(urls):
        page = ScrapeCollector(url, clock=clock, access=access("SCRAPE"))
        earlier = sum(other.place == page.place for other in pages)
        page.name += f" #{earlier + 1}" if earlier else ""
        pages.append(page)
    return pages


def _redfish(asked: AskedCollectors, clock: Clock) -> list[RedfishCollector]:
    services = [
        redfish_service(
            text,
            session=asked.redfish_session,
            verify=not asked.redfish_insecure,
            authority=asked.redfish_ca,
        )
        for text in asked.redfish
    ]
    titles = [service.title for service in services]
    if twice := [title for title in titles if titles.count(title) > 1]:
        raise InputError(
            f"--redfish: {twice[0]} occurs twice.", hint="Give each service a name: NAME=https://HOST."
        )
    return [RedfishCollector(service, clock=clock) for service in services]


def _kernel_log(
    asked: AskedCollectors, clock: Clock, host: str, gpus: Callable[[], dict[str, Labels]]
) -> KernelLogCollector | None:
    if asked.kernel_log is None:
        return None
    path = None if asked.kernel_log == STDIN else Path(asked.kernel_log)
    return KernelLogCollector(path, clock=clock, host=host, gpus=gpus, whole=asked.once)
