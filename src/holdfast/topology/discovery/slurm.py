"""Slurm: nodes and their GPUs, the tree of switches, and the nodes of each job."""

import re
from collections import Counter

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.topology.file_format import GPUS_PER_NODE_MAX
from holdfast.topology.hostlist import NAMES_MAX, count, expand
from holdfast.topology.survey import Survey

SOURCE = "Slurm"

_BLOCK = re.compile(r"^(?=NodeName=)", re.MULTILINE)
_NODE = re.compile(r"NodeName=(\S+)")
_GRES = re.compile(r"(?:^|\s)Gres=(\S+)")
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:([0-9]+)(?:\(|,|$)")
_SETTING = re.compile(r"(\w+)=(\S+)")


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    job_id: int
    name: str = ""
    nodes: str = ""
    job_state: str | list[str] = ""

    @property
    def is_running(self) -> bool:
        """Whether the job runs. Newer versions give the state as a list."""
        return "RUNNING" in ([self.job_state] if isinstance(self.job_state, str) else self.job_state)


class _Queue(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[_Job] = []


def survey(*, nodes: str, switches: str, jobs: bytes) -> Survey:
    """nodes, switches, jobs: output of `scontrol show node`, `scontrol show topology` and `squeue --json`.

    The switches may also be a topology.conf. A running job is a run with the job's name.
    """
    found = Survey(SOURCE)
    if count(switches) > NAMES_MAX:
        raise _too_many("topology")
    _add_nodes(found, nodes)
    _add_switches(found, switches)
    _add_jobs(found, jobs)
    return found


def _add_nodes(found: Survey, text: str) -> None:
    for block in _BLOCK.split(text):
        name = _NODE.match(block)
        if name is None:
            continue
        found.kinds[name[1]] = "node"
        count = gpu_count(block)
        if 0 < count <= GPUS_PER_NODE_MAX:
            found.add_gpus(name[1], map(str, range(count)))


def gpu_count(node: str) -> int:
    """The number of GPUs in a node's output of `scontrol show node`."""
    gres = _GRES.search(node)
    return sum(int(gpus) for gpus in _GPUS.findall(gres[1])) if gres else 0


def _add_switches(found: Survey, text: str) -> None:
    """Add the switches: one with switches below it is a spine; all others are leaves."""
    for line in text.splitlines():
        settings = {key.lower(): value for key, value in _SETTING.findall(line.partition("#")[0])}
        names = _names(settings.get("switchname", ""))
        below = _names(settings.get("switches", ""))
        for switch in names:
            found.kinds[switch] = "spine" if below else "leaf"
            for other in below:
                found.place(other, "spine", switch)
            if not below:
                for node in _names(settings.get("nodes", "")):
                    found.place(node, "leaf", switch)


def _add_jobs(found: Survey, text: bytes) -> None:
    try:
        queue = msgspec.json.decode(text, type=_Queue)
    except UNDECODABLE as error:
        raise InputError(
            f"What squeue printed is not understood: {error}.",
            hint="`squeue --json` needs Slurm 21.08 or newer.",
        ) from None
    running = [job for job in queue.jobs if job.is_running and job.nodes]
    if sum(count(job.nodes) for job in running) > NAMES_MAX:
        raise _too_many("queue")
    times = Counter(job.name for job in running)
    for job in running:
        run = job.name if job.name and times[job.name] == 1 else f"{job.name or 'job'}-{job.job_id}"
        if found.kinds.get(run, "run") != "run":
            run = f"{run}-{job.job_id}"
        found.aliases[str(job.job_id)] = run
        for node in _names(job.nodes):
            found.add_member(run, node)


def _too_many(where: str) -> InputError:
    return InputError(f"Slurm's {where} names more than {NAMES_MAX:,} nodes.", hint="Check its host lists.")


def _names(text: str) -> list[str]:
    try:
        return expand(text)
    except InputError:
        return []
