"""Slurm, through its commands, in the lines that every version prints alike.

Its JSON is not used: `scontrol --json` does not exist before 23.02, and what it prints has changed since.
"""

import re

import msgspec

from holdfast.control.cluster import NodeView
from holdfast.control.seeing import MachinesView, PlacedJob
from holdfast.record.errors import HoldfastError
from holdfast.schedulers.scheduler import UNTOLD, DrainCause, NotOurs, require_name
from holdfast.signals.collectors.slurm import MaintenanceWindow, ask, parse_jobs, parse_reservations, time_ns
from holdfast.topology.discovery.slurm import gpu_count

SHOW_NODES = ("scontrol", "--oneliner", "show", "node")
SHOW_JOBS = ("squeue", "--noheader", "--states=running,completing", "--format=%i|%N|%j")
SHOW_RESERVATIONS = ("scontrol", "--oneliner", "show", "reservation")
OUT_STATES = frozenset({"DRAIN", "DOWN", "FAIL", "FAILING", "ERROR", "FUTURE", "POWERED_DOWN", "INVAL"})
"""In which a node gets no work."""
REASON_CHARS_MAX = 180
_FIELD = re.compile(r"(?:^|\s)(NodeName|State|BootTime)=(\S*)")
_REASON = re.compile(r"\sReason=(.*?)(?:\s\[[^\[\]]*@[^\[\]]*\])?(?:\s+(?:Comment|Extra)=.*)?\s*$")


def parse_nodes(text: str, gpus_per_node: int = 0) -> dict[str, NodeView]:
    """Of `scontrol --oneliner show node`, with times in UTC. gpus_per_node: of those that do not tell."""
    found = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if not (name := fields.get("NodeName")):
            continue
        reason = _REASON.search(line)
        states = {state.rstrip("*~#!%$@^-") for state in fields.get("State", "").split("+")}
        found[name] = NodeView(
            name=name,
            gpus=gpu_count(line) or gpus_per_node,
            is_out=bool(states & OUT_STATES),
            reason=reason[1] if reason else "",
            since_ns=time_ns(fields.get("BootTime", "")) or 0,
        )
    return found


class SlurmScheduler:
    """The Slurm that this machine's commands reach."""

    def __init__(self, gpus_per_node: int = 0) -> None:
        self._gpus_per_node = gpus_per_node

    def look(self, now_ns: int) -> MachinesView:
        nodes = parse_nodes(ask(*SHOW_NODES), self._gpus_per_node)
        jobs = tuple(
            PlacedJob(job=job.job, name=job.name, nodes=job.nodes) for job in parse_jobs(ask(*SHOW_JOBS))
        )
        windows = [one for one in parse_reservations(ask(*SHOW_RESERVATIONS)) if _is_now(one, now_ns)]
        return MachinesView(
            nodes={name: _completed(node, jobs, windows) for name, node in nodes.items()}, jobs=jobs
        )

    def drain(self, node: str, reason: str, cause: DrainCause = UNTOLD) -> None:
        seen = self._node(node)
        if seen.is_out and seen.reason != reason:
            raise NotOurs(f"{node} is out already: {seen.reason or 'no reason given'}.")
        said = " ".join(reason.replace('"', "'").split())[:REASON_CHARS_MAX]
        ask("scontrol", "update", f"NodeName={require_name(node)}", "State=DRAIN", f"Reason={said}")

    def clear(self, node: str, jobs: tuple[str, ...]) -> str:
        for job in jobs:
            self.requeue(job)
        return f"requeued: {', '.join(jobs) or 'no job was found'}"

    def resume(self, node: str, reason: str) -> None:
        seen = self._node(node)
        if not seen.is_out or seen.reason != reason:
            raise NotOurs(f"{node} is not out by us any more: {seen.reason or 'it has no reason'}.")
        ask("scontrol", "update", f"NodeName={require_name(node)}", "State=RESUME")

    def requeue(self, job: str) -> str:
        ask("scontrol", "requeue", require_name(job))
        return "requeued"

    def _node(self, node: str) -> NodeView:
        found = parse_nodes(ask(*SHOW_NODES, require_name(node)))
        if node not in found:
            raise HoldfastError(f"Slurm has no node {node}.", hint="`sinfo --Node` lists them.")
        return found[node]


def _is_now(window: MaintenanceWindow, now_ns: int) -> bool:
    return window.start_ns <= now_ns < window.end_ns


def _completed(node: NodeView, jobs: tuple[PlacedJob, ...], windows: list[MaintenanceWindow]) -> NodeView:
    return msgspec.structs.replace(
        node,
        jobs=tuple(job.job for job in jobs if node.name in job.nodes),
        maintenance=", ".join(one.name for one in windows if node.name in one.nodes),
    )
