"""Names of subjects that have none of their own in the cluster, and names from labels.

The one place for it: discovery and signals must use the same names, or findings do not match the topology.
"""

import re
from collections.abc import Mapping

FIRST_PORT = "1"
POD_LABELS = ("exported_pod", "pod")
"""The pod that holds the GPU of a series; Prometheus renames the label if its own label is `pod`."""

_HOST_LABELS = ("hostname", "Hostname", "nodename", "kubernetes_node", "node_name")

_INSTANCE = re.compile(r"(?:\w+://)?(\[[^\]]+\]|[^:/\[\]]+)(?::\d+)?(?:/.*)?")
_NUMBER = re.compile(r"[0-9]{1,9}$")


def member_name(run: str, member: str) -> str:
    """The name of a member, which by itself is unique only within its run."""
    return f"{run}/{member}"


def gpu_name(node: str, gpu: str) -> str:
    return f"{node}.{gpu}"


def port_name(node: str, port: str) -> str:
    return f"{node}/{port}"


def node_of_port(port: str) -> str:
    return port.partition("/")[0]


def link_name(source: str, target: str) -> str:
    """The path from one node to another."""
    return f"{source}>{target}"


def unit_name(given: str, identity: str, *, is_only: bool) -> str:
    """The name of a cooling unit or power shelf. given: the name of its service, as many units are just
    `1`."""
    return f"{given}-{identity}" if given and not is_only else given or identity


def host_names_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The names of a series' host, the most reliable first: its own name, Kubernetes' node, address, pod.

    `node` may also be the number of a NUMA node, which does not name a host.
    """
    instance = _INSTANCE.fullmatch(labels.get("instance", ""))
    names = [name for label in _HOST_LABELS if (name := labels.get(label))]
    if (node := labels.get("node", "")) and not node.isdecimal():
        names.append(node)
    if instance:
        names.append(instance[1].strip("[]"))
    return (*names, *(name for label in POD_LABELS if (name := labels.get(label))))


def host_of(labels: Mapping[str, str]) -> str:
    """The most reliable of these names; empty if there is none."""
    return next(iter(host_names_of(labels)), "")


def gpu_of(text: str) -> str:
    """The number of a GPU in an exporter's name for it, `3` or `GPU3`; empty if there is none."""
    number = _NUMBER.search(text)
    return str(int(number[0])) if number else ""


def port_of(labels: Mapping[str, str]) -> str:
    """A port by its device, `mlx5_0`, with its number if it is not the first; empty without a device."""
    device, number = labels.get("device", ""), labels.get("port", FIRST_PORT)
    return device if number == FIRST_PORT or not device else f"{device}/{number}"


JOB_LABELS = ("run", "hpc_job", "slurm_job_id", "job_id")
"""The first of these that a series has names its run."""
NAMESPACE_LABELS = ("exported_namespace", "namespace")
_EXPORTER = re.compile(r"exporter|prometheus|grafana-agent|otel-collector")
"""Pods that export metrics of other pods: Prometheus may put their own name on these."""
_RANDOM = re.compile(r"(?:-[bcdfghjklmnpqrstvwxz2456789]{8,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""The random suffix that Kubernetes adds to a name, in the letters that it uses."""
_POD_NUMBER = re.compile(r"(?:-(?:master|worker|launcher|chief))?-[0-9]+$")


def job_of(labels: Mapping[str, str]) -> str:
    """The run of a series: a job's number, or `NAMESPACE/NAME` of the owner of its pod; empty if no label
    gives it. Names of one job's pods differ only in their numbers."""
    if job := next(filter(None, map(labels.get, JOB_LABELS)), None):
        return job
    pod = next(filter(None, map(labels.get, POD_LABELS)), "")
    if not pod or _EXPORTER.search(pod):
        return ""
    namespace = next(filter(None, map(labels.get, NAMESPACE_LABELS)), "")
    return f"{namespace}/{_owner(pod)}" if namespace else _owner(pod)


def _owner(pod: str) -> str:
    """The pod's name without numbers, roles and random parts: `llama-worker-3`, `llama-0-17-x7k2p`."""
    name = _RANDOM.sub("", pod)
    while (shorter := _POD_NUMBER.sub("", name)) != name:
        name = shorter
    return name or pod
