"""Slurm as a `Scheduler`, by its commands or by slurmrestd."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.control.cluster import NodeView
from holdfast.control.seeing import MachinesView, PlacedJob
from holdfast.record.errors import HoldfastError
from holdfast.schedulers.scheduler import UNTOLD, DrainCause, NotOurs, require_name
from holdfast.schedulers.slurm_commands import SlurmCommands
from holdfast.signals.collectors.slurm import MaintenanceWindow

if TYPE_CHECKING:
    from holdfast.schedulers.slurm_rest import SlurmRest

REASON_CHARS_MAX = 180


class SlurmSource(Protocol):
    """Reads Slurm's state. All raise `HoldfastError` if Slurm cannot be reached."""

    def nodes(self) -> dict[str, NodeView]:
        """All nodes, with their reasons."""

    def jobs(self) -> tuple[PlacedJob, ...]:
        """The running jobs."""

    def windows(self) -> tuple[MaintenanceWindow, ...]:
        """Reservations for maintenance."""


class SlurmScheduler:
    """rest: a slurmrestd; without one the commands do everything. say: prints a sentence for the operator."""

    def __init__(
        self,
        gpus_per_node: int = 0,
        rest: "SlurmRest | None" = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._commands = SlurmCommands(gpus_per_node)
        self._rest = rest
        self._view: SlurmSource = self._commands if rest is None else rest
        self._say = say
        self._has_said = False

    def look(self, now_ns: int) -> MachinesView:
        nodes, jobs = self._view.nodes(), self._view.jobs()
        windows = [one for one in self._view.windows() if _is_now(one, now_ns)]
        return MachinesView(
            nodes={name: _completed(node, jobs, windows) for name, node in nodes.items()}, jobs=jobs
        )

    def drain(self, node: str, reason: str, cause: DrainCause = UNTOLD) -> None:
        seen = self._node(node)
        if seen.is_out and seen.reason != reason:
            raise NotOurs(f"{node} is out already: {seen.reason or 'no reason given'}.")
        said = " ".join(reason.replace('"', "'").split())[:REASON_CHARS_MAX]
        self._update(node, "DRAIN", said)

    def clear(self, node: str, jobs: tuple[str, ...]) -> str:
        for job in jobs:
            self.requeue(job)
        return f"requeued: {', '.join(jobs) or 'no job was found'}"

    def resume(self, node: str, reason: str) -> None:
        seen = self._node(node)
        if not seen.is_out or seen.reason != reason:
            raise NotOurs(f"{node} is no longer out because of us: {seen.reason or 'it has no reason'}.")
        self._update(node, "RESUME")

    def requeue(self, job: str) -> str:
        self._commands.requeue(job)
        return "requeued"

    def _update(self, node: str, state: str, reason: str = "") -> None:
        if self._rest is not None and self._rest.can_update:
            self._rest.update(node, state, reason)
            return
        if self._rest is not None and not self._has_said:
            self._has_said = True
            self._say(f"slurmrestd {self._rest.version} cannot update nodes: scontrol does.")
        self._commands.update(node, state, reason)

    def _node(self, node: str) -> NodeView:
        found = self._view.nodes().get(require_name(node))
        if found is None:
            raise HoldfastError(f"Slurm has no node {node}.", hint="`sinfo --Node` lists them.")
        return found


def _is_now(window: MaintenanceWindow, now_ns: int) -> bool:
    return window.start_ns <= now_ns < window.end_ns


def _completed(node: NodeView, jobs: tuple[PlacedJob, ...], windows: list[MaintenanceWindow]) -> NodeView:
    return msgspec.structs.replace(
        node,
        jobs=tuple(job.job for job in jobs if node.name in job.nodes),
        maintenance=", ".join(one.name for one in windows if node.name in one.nodes),
    )
