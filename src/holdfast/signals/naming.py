"""From the labels of exporters to the names of subjects, by the scope of each metric.

Names are those of the topology: a GPU is `host.index`, a port `host/device`. A host has the name that it
gives itself (`hostname`), else the one that it is scraped under (`instance`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import get_args

from holdfast.signals.catalogue import Metric, OfHosts, Scope
from holdfast.signals.frame import Labels
from holdfast.topology.names import gpu_name, gpu_of, host_of, link_name, member_name, port_name, port_of

Buses = Mapping[tuple[str, str], str]
"""Host and PCI address to the GPU at that address."""
NO_BUSES: Buses = MappingProxyType({})
SLURM = "slurm"
RESOLVER = "dns"
"""The name service, whichever of its servers answers."""

_ADDRESS = re.compile(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.([0-9a-fA-F]+)")
_CDU = re.compile(r"/CDUs/([^/]+)")


def subject_of(metric: Metric, labels: Labels, buses: Buses = NO_BUSES) -> str | None:
    """The subject of a series; None if its labels do not tell.

    buses: from `buses_of`. A PCI device that is not one of these GPUs belongs to its host.
    """
    if metric.scope == "pci":
        host = host_of(labels)
        return buses.get((host, _pci_address(labels)), host) if host else None
    if metric.scope == "amd_smi":
        # amd_smi_exporter has the number of a GPU in a label with the metric's name.
        return _gpu({**labels, "gpu": labels.get(metric.name.removeprefix("amd_"), "")}) or None
    return _NAMERS[metric.scope](labels) or None


def buses_of(series: Iterable[Labels]) -> dict[tuple[str, str], str]:
    """The PCI addresses of the GPUs, from the labels of any of dcgm-exporter's metrics."""
    found = {}
    for labels in series:
        host, gpu = host_of(labels), _gpu(labels)
        if host and gpu and (address := _ADDRESS.fullmatch(labels.get("pci_bus_id", ""))):
            found[host, _address(*address.groups())] = gpu
    return found


def _address(domain: str, bus: str, device: str, function: str) -> str:
    """One common spelling: DCGM writes a domain of eight digits and capitals."""
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function, 16):x}"


def _pci_address(labels: Labels) -> str:
    parts = [labels.get(part, "") for part in ("segment", "bus", "device", "function")]
    found = _ADDRESS.fullmatch("{}:{}:{}.{}".format(*parts))
    return _address(*found.groups()) if found else ""


def _gpu(labels: Labels) -> str:
    """dcgm-exporter has `gpu`; Redfish's exporters have a system and `gpu_id`, NCCL's inspector a `node`."""
    host = host_of(labels)
    if "system_id" in labels or "slurm_job_id" in labels:
        host = labels.get("system_id") or labels.get("node", "")
    gpu = gpu_of(labels.get("gpu") or labels.get("gpu_id", ""))
    return gpu_name(host, gpu) if host and gpu else ""


def _port(labels: Labels) -> str:
    host, port = host_of(labels), port_of(labels)
    return port_name(host, port) if host and port else ""


def _loop(labels: Labels) -> str:
    """densewatch gives its name, Redfish its path."""
    if "cdu" in labels:
        return labels["cdu"]
    place = _CDU.search(labels.get("@odata.id", ""))
    return place[1] if place else ""


def _chassis(labels: Labels) -> str:
    return labels.get("chassis_id", "")


def _switch(labels: Labels) -> str:
    return labels.get("switch", "")


def _member(labels: Labels) -> str:
    """A member with its node's name is that node's; any other name is unique only within its run."""
    member, run = labels.get("member", ""), labels.get("run", "")
    if not member or member == labels.get("node"):
        return member
    return member_name(run, member) if run else member


def _pair(labels: Labels) -> str:
    source, target = labels.get("source", ""), labels.get("target", "")
    return link_name(source, target) if source and target else ""


_NAMERS: dict[Scope, Callable[[Labels], str]] = {
    **dict.fromkeys(get_args(OfHosts), host_of),
    "gpu": _gpu,
    "clock_event": _gpu,
    "xid": _gpu,
    "port": _port,
    "resolver": lambda labels: RESOLVER,
    "loop": _loop,
    "connector": _loop,
    "supply": _chassis,
    "chassis": _chassis,
    "switch": _switch,
    "uplink": _switch,
    "slurm": lambda labels: SLURM,
    "run": lambda labels: labels.get("run", ""),
    "member": _member,
    "worker": lambda labels: labels.get("worker_id", ""),
    "pair": _pair,
}
