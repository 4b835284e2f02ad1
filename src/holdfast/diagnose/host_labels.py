"""Which labels name an incident's hosts in the series of this cluster's exporters, for a runbook's queries.

dcgm-exporter names a host in `Hostname`, some sites in `hostname`, node_exporter only by the address that it
is scraped at. The series themselves tell, as far as they can be read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.topology.discovery.prometheus import SELECTORS, survey
from holdfast.topology.hosts import Hosts

GPU_METRIC, NODE_METRIC, TARGET_METRIC = "DCGM_FI_DEV_GPU_TEMP", "node_memory_MemAvailable_bytes", "up"
NEEDED = (*SELECTORS, NODE_METRIC, TARGET_METRIC)
"""The series to read: they also tell which names mean the same machine."""
HOST_LABELS = ("Hostname", "hostname", "nodename", "kubernetes_node", "node_name", "node", "instance")
HOSTS_IN_QUERIES_MAX = 16
"""A query for more hosts than this returns more lines than anyone reads."""
GPU_LABEL, NODE_LABEL = "Hostname", "instance"
"""What dcgm-exporter and node_exporter have unless a site has changed it."""

_REGEX_SIGNS = re.compile(r"([\\.^$*+?{}\[\]|()])")

Series = Mapping[str, str]


class HostLabels(msgspec.Struct, frozen=True, kw_only=True):
    """How queries choose the hosts: by the series of GPUs, of nodes, and of the targets that are scraped.

    gpu_label: what names a host in the series of GPUs. machines: those of members, `RUN/NAME`.
    """

    gpus: str
    nodes: str
    targets: str
    gpu_label: str = GPU_LABEL
    machines: Mapping[str, str] = {}

    def machine(self, name: str) -> str:
        """The host of this name, or of the member; NAME of `RUN/NAME` if nothing tells it."""
        return self.machines.get(name, name.rpartition("/")[2])


def host_labels(hosts: Sequence[str], series: Iterable[Series] = ()) -> HostLabels:
    """How to choose these hosts, or members `RUN/NAME`. series: labels with `__name__`; without any of an
    exporter, its usual label is taken.
    """
    listed = list(series)
    found = survey(listed)
    nodes = Hosts((name for name, kind in found.kinds.items() if kind == "node"), found.spellings)
    machines = {
        f"{run}/{member}": node for run, of_run in found.members.items() for member, node in of_run.items()
    }
    called = [machines.get(host, host.rpartition("/")[2]) for host in hosts][:HOSTS_IN_QUERIES_MAX]
    wanted = {nodes.node(host) or host for host in called}

    def chosen(metric: str, usual: str) -> tuple[str, str]:
        ours: list[Series] = []
        others: list[Series] = []
        for labels in listed:
            if labels.get("__name__") == metric:
                (ours if nodes.of(labels) in wanted else others).append(labels)
        for label in HOST_LABELS:
            values = dict.fromkeys(labels.get(label, "") for labels in ours)
            if values and "" not in values and not any(other.get(label) in values for other in others):
                return label, _matcher(label, list(values))
        return usual, f'{usual}=~"{_pattern(called)}"'

    gpu_label, gpus = chosen(GPU_METRIC, GPU_LABEL)
    return HostLabels(
        gpus=gpus,
        nodes=chosen(NODE_METRIC, NODE_LABEL)[1],
        targets=chosen(TARGET_METRIC, NODE_LABEL)[1],
        gpu_label=gpu_label,
        machines=machines,
    )


def _matcher(label: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{label}={msgspec.json.encode(values[0]).decode()}"
    return f'{label}=~"{"|".join(map(_escaped, values))}"'


def _pattern(hosts: Sequence[str]) -> str:
    """An RE2 expression in a PromQL string, for labels with and without a port."""
    return f"({'|'.join(map(_escaped, hosts))})(:[0-9]+)?"


def _escaped(host: str) -> str:
    # Within a PromQL string the backslash of an escaped sign has to be escaped itself.
    return _REGEX_SIGNS.sub(r"\\\\\1", host).replace('"', '\\"')
