"""Which run a series belongs to, by the labels that schedulers and exporters give it.

Slurm's job is a label of dcgm-exporter (`hpc_job`) and of AMD's exporter (`job_id`). On Kubernetes there is
the pod that holds a GPU; pods of one job are called alike but for their numbers.
"""

import re
from collections.abc import Mapping

from holdfast.topology.names import POD_LABELS

JOB_LABELS = ("run", "hpc_job", "slurm_job_id", "job_id")
"""The first of these that a series has names its run."""
NAMESPACE_LABELS = ("exported_namespace", "namespace")
_EXPORTER = re.compile(r"exporter|prometheus|grafana-agent|otel-collector")
"""Pods that show metrics of others: Prometheus may put their own name on what they show."""
_RANDOM = re.compile(r"(?:-[bcdfghjklmnpqrstvwxz2456789]{8,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""What Kubernetes puts behind a name, of the letters that it uses for that."""
_NUMBER = re.compile(r"(?:-(?:master|worker|launcher|chief))?-[0-9]+$")


def job_of(labels: Mapping[str, str]) -> str:
    """A job's number, or `NAMESPACE/NAME` of what its pod belongs to; empty where no label tells."""
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
    while (shorter := _NUMBER.sub("", name)) != name:
        name = shorter
    return name or pod
