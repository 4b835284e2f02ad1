"""Prometheus: what the labels of exporters' series tell about where things are.

dcgm-exporter has a node's GPUs and the job that holds them; node_exporter its ports and mounts;
infiniband_exporter which port and switch is connected to which; densewatch which rack a node stands in, and
which unit cools that.
"""

from collections.abc import Iterable, Mapping

from holdfast.topology.names import gpu_of, host_of, port_name, port_of
from holdfast.topology.survey import Survey

SOURCE = "Prometheus"
SELECTORS = (
    "DCGM_FI_DEV_GPU_TEMP",
    "node_infiniband_state_id",
    'node_mountstats_nfs_operations_requests_total{operation="READ"}',
    '{__name__=~"infiniband_(switch|hca)_uplink_info"}',
    "densewatch_topology_info",
)
"""The series to ask for: each says where something is, and there are no more of them than needed."""

Labels = Mapping[str, str]


def survey(series: Iterable[Labels]) -> Survey:
    """series: their labels with `__name__`, in any order."""
    found = Survey(SOURCE)
    neighbours: dict[str, set[str]] = {}
    leaves: set[str] = set()
    for labels in series:
        name = labels.get("__name__", "")
        if name.startswith("DCGM_"):
            _add_gpu(found, labels)
        elif name.startswith("node_infiniband_"):
            _add_port(found, labels)
        elif name.startswith("node_mountstats_"):
            _add_mount(found, labels)
        elif name == "densewatch_topology_info":
            _add_rack(found, labels)
        elif name.endswith("_uplink_info"):
            _add_cable(found, labels, neighbours, leaves)
    _add_tiers(found, neighbours, leaves)
    return found


def _add_gpu(found: Survey, labels: Labels) -> None:
    host, gpu = host_of(labels), gpu_of(labels.get("gpu", ""))
    if not host or not gpu:
        return
    found.add_gpus(host, [gpu])
    if job := labels.get("hpc_job"):
        found.add_member(job, host)


def _add_port(found: Survey, labels: Labels) -> None:
    host, port = host_of(labels), port_of(labels)
    if host and port:
        found.add_ports(host, [port])


def _add_mount(found: Survey, labels: Labels) -> None:
    host, mount = host_of(labels), labels.get("mountaddr")
    if host and mount:
        found.kinds[host] = "node"
        found.place(host, "mount", mount)


def _add_rack(found: Survey, labels: Labels) -> None:
    host = labels.get("Hostname") or labels.get("hostname")
    rack, unit = labels.get("rack"), labels.get("cdu")
    if host and rack:
        found.kinds[host] = "node"
        found.place(host, "rack", rack)
    if rack and unit:
        found.kinds[rack] = "rack"
        found.place(rack, "loop", unit)


def _add_cable(found: Survey, labels: Labels, neighbours: dict[str, set[str]], leaves: set[str]) -> None:
    """Either end may be told: a switch and what is plugged into it, or a node's adapter and its switch."""
    here, there = labels.get("switch") or labels.get("hca"), labels.get("uplink")
    if not here or not there:
        return
    switches = ["switch" in labels, labels.get("uplink_type") == "SW"]
    if all(switches):
        neighbours.setdefault(here, set()).add(there)
        neighbours.setdefault(there, set()).add(here)
    elif any(switches):
        switch, adapter = (here, there) if switches[0] else (there, here)
        leaves.add(switch)
        neighbours.setdefault(switch, set())
        _add_adapter(found, adapter, switch)


def _add_adapter(found: Survey, adapter: str, leaf: str) -> None:
    """An adapter tells its host and device; where it only has a number, all of the node is meant."""
    host, _, device = adapter.partition(" ")
    found.kinds[host] = "node"
    if "_" in device:
        found.add_ports(host, [device])
        found.place(port_name(host, device), "leaf", leaf)
    else:
        found.place(host, "leaf", leaf)


def _add_tiers(found: Survey, neighbours: dict[str, set[str]], leaves: set[str]) -> None:
    """A cable has no direction; distance from the nodes gives it one: who is nearer needs who is farther."""
    tier, seen = leaves, set(leaves)
    for leaf in leaves:
        found.kinds[leaf] = "leaf"
    while tier:
        above = {other for switch in tier for other in neighbours[switch]} - seen
        for switch in sorted(tier):
            for other in sorted(neighbours[switch] & above):
                found.place(switch, "spine", other)
        seen |= above
        tier = above
