"""What live systems know about a topology: Slurm, Kubernetes, Redfish, Prometheus, the embedded store."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.record.clock import SystemClock
from holdfast.record.files import contents
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.redfish_access import redfish_service
from holdfast.signals.collectors.redfish_service import RedfishConnection, Service
from holdfast.signals.collectors.slurm import ask
from holdfast.signals.credentials import access, spelled_out
from holdfast.signals.frame import Labels
from holdfast.signals.prometheus import Prometheus
from holdfast.signals.store import SignalStore
from holdfast.topology.discovery import kubernetes, prometheus, redfish, slurm
from holdfast.topology.survey import Survey

COMMAND_WAIT_S = 30.0
"""Longer than a collector waits: all nodes of a large cluster are many pages."""
SERIES_WITHIN_NS = 600 * 10**9
"""How old a series' last sample may be for the series to count as present."""


class Systems(msgspec.Struct, frozen=True, kw_only=True):
    """The live systems to ask, besides the file. at_ns: the moment to ask for, if not now.

    signals: the embedded store, whose labels tell as much as a Prometheus'.
    """

    slurm: bool = False
    prometheus: str | None = None
    signals: SignalStore | None = None
    at_ns: int | None = None
    redfish: tuple[str, ...] = ()
    kubernetes: Path | None = None


def surveys(systems: Systems) -> list[Survey]:
    found = []
    if systems.slurm:
        found.append(_ask_slurm())
    if systems.kubernetes:
        hint = "Write them with `kubectl get nodes -o json`."
        found.append(kubernetes.survey(contents(systems.kubernetes, what="nodes", hint=hint)))
    for name, series in series_of(systems, prometheus.SELECTORS):
        found.append(prometheus.survey(series, name))
    found.extend(_ask_redfish(redfish_service(text)) for text in systems.redfish)
    return found


def series_of(systems: Systems, selectors: Sequence[str]) -> Iterator[tuple[str, list[Labels]]]:
    """The series that each system with labels has, with its name; `__name__` is among the labels."""
    window_ns = _window_ns(systems.at_ns)
    if systems.prometheus:
        url = spelled_out(systems.prometheus, what="--prometheus")
        with Prometheus(url, access=access("PROMETHEUS")) as server:
            yield prometheus.SOURCE, server.series(selectors, window_ns)
    if systems.signals is not None:
        yield prometheus.STORED, systems.signals.series(prometheus.names_of(selectors), window_ns)


def _ask_slurm() -> Survey:
    nodes = ask("scontrol", "show", "node", timeout_s=COMMAND_WAIT_S)
    try:
        switches = ask("scontrol", "show", "topology", timeout_s=COMMAND_WAIT_S)
    except Unavailable:  # no tree is configured
        switches = ""
    jobs = ask("squeue", "--json", timeout_s=COMMAND_WAIT_S)
    return slurm.survey(nodes=nodes, switches=switches, jobs=jobs.encode())


def _ask_redfish(service: Service) -> Survey:
    with closing(RedfishConnection(service)) as connection:
        found = connection.read(lambda walk: redfish.survey(walk.get, name=service.name))
    if not found.kinds:
        raise Unavailable(
            f"{service.title} has no cooling unit that could be read.",
            hint=f"Holdfast looks for them under {redfish.CDUS_PATH}.",
        )
    return found


def _window_ns(at_ns: int | None) -> tuple[int, int]:
    now_ns = SystemClock().now_ns() if at_ns is None else at_ns
    return now_ns - SERIES_WITHIN_NS, now_ns
