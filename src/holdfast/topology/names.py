"""How subjects are called that have no name of their own in the cluster, and how labels tell names.

The one place for it: what discovery calls a subject, signals must call it too, or a finding is about nobody.
"""

import re
from collections.abc import Mapping

FIRST_PORT = "1"
POD_LABELS = ("exported_pod", "pod")
"""Of a series about a GPU, the pod that holds it; Prometheus renames that where its own label is `pod`."""

_HOST_LABELS = ("hostname", "Hostname", "nodename", "kubernetes_node", "node_name")

_INSTANCE = re.compile(r"(?:\w+://)?(\[[^\]]+\]|[^:/\[\]]+)(?::\d+)?(?:/.*)?")
_NUMBER = re.compile(r"[0-9]{1,9}$")


def member_name(run: str, member: str) -> str:
    """A member is unique only within its run."""
    return f"{run}/{member}"


def gpu_name(node: str, gpu: str) -> str:
    return f"{node}.{gpu}"


def port_name(node: str, port: str) -> str:
    return f"{node}/{port}"


def node_of_port(port: str) -> str:
    return port.partition("/")[0]


def link_name(source: str, target: str) -> str:
    """The way from one node to another, over whatever lies between."""
    return f"{source}>{target}"


def unit_name(given: str, identity: str, *, is_only: bool) -> str:
    """Of a cooling unit or power shelf. given: what people call its service, as many units are just `1`."""
    return f"{given}-{identity}" if given and not is_only else given or identity


def host_names_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """What a series calls its host, the surest first: its own name, Kubernetes' node, address, pod.

    `node` may also be the number of a NUMA node, which names nobody.
    """
    instance = _INSTANCE.fullmatch(labels.get("instance", ""))
    names = [name for label in _HOST_LABELS if (name := labels.get(label))]
    if (node := labels.get("node", "")) and not node.isdecimal():
        names.append(node)
    if instance:
        names.append(instance[1].strip("[]"))
    return (*names, *(name for label in POD_LABELS if (name := labels.get(label))))


def host_of(labels: Mapping[str, str]) -> str:
    """The surest of these names; empty where there is none."""
    return next(iter(host_names_of(labels)), "")


def gpu_of(text: str) -> str:
    """The number of a GPU in what an exporter calls it, `3` or `GPU3`; empty where there is none."""
    number = _NUMBER.search(text)
    return str(int(number[0])) if number else ""


def port_of(labels: Mapping[str, str]) -> str:
    """A port by its device, `mlx5_0`, with its number where it is not the first; empty where none is told."""
    device, number = labels.get("device", ""), labels.get("port", FIRST_PORT)
    return device if number == FIRST_PORT or not device else f"{device}/{number}"


JOB_LABELS = ("run", "hpc_job", "slurm_job_id", "job_id")
"""The first of these that a series has names its run."""
NAMESPACE_LABELS = ("exported_namespace", "namespace")
_EXPORTER = re.compile(r"exporter|prometheus|grafana-agent|otel-collector")
"""Pods that show metrics of others: Prometheus may put their own name on what they show."""
_RANDOM = re.compile(r"(?:-[bcdfghjklmnpqrstvwxz2456789]{8,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""What Kubernetes puts behind a name, of the letters that it uses for that."""
_POD_NUMBER = re.compile(r"(?:-(?:master|worker|launcher|chief))?-[0-9]+$")


def job_of(labels: Mapping[str, str]) -> str:
    """Which run a series belongs to: a job's number, or `NAMESPACE/NAME` of what its pod belongs to; empty
    where no label tells. Pods of one job are called alike but for their numbers.
    """
    if job := next(filter(None, map(labels.get, JOB_LABELS)), None):
        return job
    pod = next(filter(None, map(labels.get, POD_LABELS)), "")
    if not pod or _EXPORTER.search(pod):
        return ""
    namespace = next(filter(None, map(labels.get, NAMESPACE_LABELS)), "")
    return f"{namespace}/{_owner(pod)}" if namespace else _owner(pod)


def _owner(pod: str) -> str:
    """`llama-worker-3`, `llama-0-17-x7k2p`: what is left without numbers, roles and what is random."""
    name = _RANDOM.sub("", pod)
    while (shorter := _POD_NUMBER.sub("", name)) != name:
        name = shorter
    return name or pod
