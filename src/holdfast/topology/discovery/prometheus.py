"""Prometheus: the topology from the labels of exporters' series.

dcgm-exporter has a node's GPUs and the job that holds them; node_exporter its name, ports and mounts;
infiniband_exporter the cables between ports and switches; densewatch the rack of a node, and the unit that
cools it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.topology.hosts import Hosts
from holdfast.topology.names import gpu_of, host_names_of, job_of, port_name, port_of
from holdfast.topology.survey import Survey

SOURCE = "Prometheus"
STORED = "the embedded store"
SELECTORS = (
    "DCGM_FI_DEV_GPU_TEMP",
    '{__name__=~"(amd_)?gpu_(junction|edge)_temperature"}',
    "node_uname_info",
    "kube_node_info",
    "holdfast_member_compute_seconds",
    "node_infiniband_state_id",
    'node_mountstats_nfs_operations_requests_total{operation="READ"}',
    '{__name__=~"infiniband_(switch|hca)_uplink_info"}',
    "densewatch_topology_info",
)
"""The series to ask for: each has a part of the topology, and no more series than needed."""
_SELECTOR = re.compile(r'\{__name__=~"(?P<names>[^"]*)"\}|(?P<name>\w+)(?:\{[^}]*\})?')
SPEAKERS = (
    "kube_node_info",
    "node_uname_info",
    "DCGM_FI_DEV_GPU_TEMP",
    "gpu_junction_temperature",
    "gpu_edge_temperature",
)
"""The metrics that name machines, in order of precedence."""

Labels = Mapping[str, str]


def names_of(selectors: Iterable[str]) -> str:
    """The metrics that the selectors choose, as one regular expression: for sources without selectors."""
    found = (_SELECTOR.fullmatch(selector) for selector in selectors)
    return "|".join(one["names"] or one["name"] for one in found if one is not None)


def survey(series: Iterable[Labels], source: str = SOURCE) -> Survey:
    """series: their labels with `__name__`, in any order. source: the name of the system that has them."""
    found = Survey(source)
    neighbours: dict[str, set[str]] = {}
    leaves: set[str] = set()
    listed = list(series)
    hosts = _hosts(found, listed)
    for labels in listed:
        name = labels.get("__name__", "")
        host = hosts.of(labels)
        if name.startswith("DCGM_") or name.endswith("_temperature"):
            _add_gpu(found, host, labels)
        elif name.startswith("node_infiniband_"):
            _add_port(found, host, labels)
        elif name.startswith("node_mountstats_"):
            _add_mount(found, host, labels)
        elif name == "node_uname_info":
            found.kinds.setdefault(host, "node")
        elif name == "holdfast_member_compute_seconds":
            _add_member(found, hosts, labels)
        elif name == "densewatch_topology_info":
            _add_rack(found, hosts, labels)
        elif name.endswith("_uplink_info"):
            _add_cable(found, labels, neighbours, leaves)
    _add_tiers(found, neighbours, leaves)
    return found


def _hosts(found: Survey, series: Sequence[Labels]) -> Hosts:
    """The machines by all of their names: two names in one series mean one machine."""
    named = [
        _names(labels) for who in SPEAKERS for labels in series if labels.get("__name__", "").endswith(who)
    ]
    found.spellings |= {(names[0], other) for names in named for other in names[1:]}
    hosts = Hosts((), found.spellings)
    for names in named:
        hosts.grow(names)
    return hosts


def _names(labels: Labels) -> tuple[str, ...]:
    """The names of the machine. kube-state-metrics describes machines other than the one it is scraped
    from."""
    if labels.get("__name__") == "kube_node_info":
        return tuple(name for label in ("node", "internal_ip") if (name := labels.get(label)))
    return host_names_of(labels)


def _add_gpu(found: Survey, host: str, labels: Labels) -> None:
    gpu = gpu_of(labels.get("gpu") or labels.get("gpu_id", ""))
    if not host or not gpu:
        return
    found.add_gpus(host, [gpu])
    if job := job_of(labels):
        found.add_member(job, host)


def _add_port(found: Survey, host: str, labels: Labels) -> None:
    if host and (port := port_of(labels)):
        found.add_ports(host, [port])


def _add_mount(found: Survey, host: str, labels: Labels) -> None:
    mount = labels.get("mountaddr")
    if host and mount:
        found.kinds[host] = "node"
        found.place(host, "mount", mount)


def _add_member(found: Survey, hosts: Hosts, labels: Labels) -> None:
    """Add a member: its labels name its node and the machine that this is, or its own name does."""
    run, member = labels.get("run", ""), labels.get("member", "")
    machine, named = labels.get("hostname", ""), labels.get("node", "")
    node = hosts.node(machine) or hosts.node(named or member) or machine or named
    if run and member and node:
        found.kinds[run], found.kinds[node] = "run", "node"
        found.members.setdefault(run, {})[member] = node


def _add_rack(found: Survey, hosts: Hosts, labels: Labels) -> None:
    host = labels.get("Hostname") or labels.get("hostname")
    rack, unit = labels.get("rack"), labels.get("cdu")
    if host and rack:
        host = hosts.node(host) or host
        found.kinds[host] = "node"
        found.place(host, "rack", rack)
    if rack and unit:
        found.kinds[rack] = "rack"
        found.place(rack, "loop", unit)


def _add_cable(found: Survey, labels: Labels, neighbours: dict[str, set[str]], leaves: set[str]) -> None:
    """Add a cable, given from either end: a switch and its neighbour, or a node's adapter and its switch."""
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
    """Add an adapter's host and device; if it only has a number, the whole node is meant."""
    host, _, device = adapter.partition(" ")
    found.kinds[host] = "node"
    if "_" in device:
        found.add_ports(host, [device])
        found.place(port_name(host, device), "leaf", leaf)
    else:
        found.place(host, "leaf", leaf)


def _add_tiers(found: Survey, neighbours: dict[str, set[str]], leaves: set[str]) -> None:
    """Give cables a direction by their distance from the nodes: the nearer switch depends on the farther."""
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


def labelled_runs(survey: Survey) -> frozenset[str]:
    """The runs that are known only from labels of series: jobs of Slurm, pods."""
    labels = (SOURCE, STORED)
    return frozenset(run for run in survey.members if survey.source_of(run, "members") in labels)
