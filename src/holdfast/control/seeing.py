"""Reads the record: which incidents are open, and the figures of the runs that they slow."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from holdfast.control.actions import ControlAction
from holdfast.control.cluster import NodeView, RunView
from holdfast.control.decision import ControlDecision
from holdfast.detect.suspects import SuspectPart, unproven
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.economics.pricing.prices import Prices
from holdfast.record import events
from holdfast.record.runs import run_names
from holdfast.record.store import Selection, Store
from holdfast.topology.file import Described
from holdfast.wording.units import HOUR_NS

UNTOLD_NS_MAX = HOUR_NS
UNTOLD_SHARE_MAX = 2.0
"""An open incident is reported again whenever its cost has doubled. If it was not reported for more than this
many times its age at the last report, and for more than an hour, nothing watches it any more.
"""
UNTOLD_UNPRICED_NS_MAX = 24 * HOUR_NS
"""An incident that costs no run anything is reported once. After a day it is not known to be still open."""
_KINDS = (
    *("run.started", "generation.opened", "member.joined", "member.lost", "checkpoint.saved"),
    "reference.declared",
)


class PlacedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running job of the scheduler. name: its owner's name for it, which may be the name of a run."""

    job: str
    name: str
    nodes: tuple[str, ...]


class MachinesView(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a scheduler reports."""

    nodes: Mapping[str, NodeView]
    jobs: tuple[PlacedJob, ...] = ()


class ActionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An action for the machines to carry out. reason: ours, by which we recognise the node later. node: as
    it was last seen. part: the node was taken out for it, and its check must clear it.
    """

    decision: ControlDecision
    reason: str
    node: NodeView | None
    run: RunView | None
    is_long_check: bool
    part: SuspectPart = "node"

    def unproven(self, is_good: Mapping[str, bool]) -> tuple[str, ...]:
        """The required figures that are missing or bad. is_good: by name, whether a figure is known good."""
        return unproven(self.part, is_good)


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """ok: the action was done. outcome: the answer in words."""

    ok: bool
    outcome: str


class Machines(Protocol):
    """Control's access to the cluster. Calls may take minutes; `do` is called from threads."""

    @property
    def can(self) -> frozenset[ControlAction]:
        """The actions that are possible here."""

    def look(self, now_ns: int) -> MachinesView:
        """The machines now. Raises `HoldfastError` if they cannot be seen: then nothing is done."""

    def reaches(self, run: str) -> bool:
        """Whether a live run can be asked to move its members."""

    def do(self, order: ActionOrder) -> Answered:
        """Carry out the action. Raises `HoldfastError`."""


def open_incidents(
    changes: Iterable[IncidentChange], ended: Mapping[str, int], begun: Mapping[str, int], now_ns: int
) -> list[Incident]:
    """The incidents that are open by their last report: not resolved, not of a run that has ended, and still
    watched. begun: when runs restarted that had ended before; reports from before that do not count.
    """
    return [
        change.incident
        for change in changes
        if change.state != "resolved"
        and change.incident.run not in ended
        and change.at_ns >= begun.get(change.incident.run, 0)
        and not _is_left(change, now_ns)
    ]


def _is_left(change: IncidentChange, now_ns: int) -> bool:
    if change.incident.cost is None:
        return now_ns - change.at_ns > UNTOLD_UNPRICED_NS_MAX
    age_ns = max(0, change.at_ns - change.incident.began_ns)
    return now_ns - change.at_ns > max(UNTOLD_NS_MAX, UNTOLD_SHARE_MAX * age_ns)


def in_maintenance(described: Described, now_ns: int, nodes: Iterable[str]) -> dict[str, str]:
    """Which of these nodes have planned work now, on themselves or on something they depend on, and why."""
    reasons: dict[str, str] = {}
    for window in described.maintenance:
        if window.from_ns <= now_ns < window.to_ns:
            for subject in window.subjects:
                reached = described.topology.blast_radius(subject, "node")
                reasons |= dict.fromkeys((subject, *reached), window.reason or "planned")
    named = {node: reasons.get(described.hosts.node(node) or node, "") for node in nodes} if reasons else {}
    return {node: reason for node, reason in named.items() if reason}


def run_view(store: Store, run: str, now_ns: int, prices: Prices, jobs: Iterable[PlacedJob]) -> RunView:
    """A run's figures, from its record and the scheduler's jobs."""
    fold = _RunFold()
    for event in store.select(Selection(run=run, kinds=_KINDS, until_ns=now_ns + 1)):
        fold.take(event)
    own = [job for job in jobs if job.name == run or job.job == run]
    placed = {node for job in own for node in job.nodes}
    return RunView(
        name=run,
        gpus=fold.gpus,
        nodes=frozenset(fold.nodes or placed),
        spares=len(fold.spare_nodes),
        began_ns=fold.began_ns,
        saved_ns=fold.saved_ns,
        is_elastic=fold.is_elastic,
        remaining_h=_remaining_h(store, run, now_ns, prices, fold.step_ns),
        jobs=tuple(job.job for job in own),
    )


def sized(run: RunView, incidents: Iterable[Incident], gpus_per_node: int) -> RunView:
    """The run with its number of GPUs. If its record does not have it, the number comes from the prices of
    its incidents, else from its known nodes.
    """
    if run.gpus:
        return run
    costs = [one.cost for one in incidents if one.run == run.name and one.cost is not None]
    priced = [cost.gpu_hours_per_hour / cost.day_share_per_day for cost in costs if cost.day_share_per_day]
    gpus = round(max(priced, default=0.0)) or max(1, len(run.nodes)) * gpus_per_node
    return msgspec.structs.replace(run, gpus=gpus)


class _RunFold:
    """The members of a run now, and their nodes."""

    def __init__(self) -> None:
        self.began_ns = 0
        self.saved_ns: int | None = None
        self.step_ns: int | None = None
        self.is_elastic = False
        self._gpus = 0
        self._members: dict[str, events.MemberJoined] = {}
        self._generation: tuple[str, ...] = ()

    def take(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.RunStarted):
            self.began_ns, self._gpus = event.occurred_ns, event.gpus or self._gpus
            self.is_elastic = False
            self._members.clear()
        elif isinstance(event, events.GenerationOpened):
            self.is_elastic, self._generation = True, event.members
            self._gpus = self._gpus if event.gpus is None else event.gpus
        elif isinstance(event, events.MemberJoined):
            self._members[event.subject] = event
        elif isinstance(event, events.MemberLost):
            self._members.pop(event.subject, None)
        elif isinstance(event, events.CheckpointSaved):
            self.saved_ns = event.occurred_ns
        elif isinstance(event, events.ReferenceDeclared):
            self.step_ns = event.step_ns or self.step_ns

    @property
    def _active(self) -> list[events.MemberJoined]:
        return [one for one in self._members.values() if self._is_active(one)]

    def _is_active(self, member: events.MemberJoined) -> bool:
        if self._generation:
            return member.subject in self._generation
        return member.role == "active"

    @property
    def gpus(self) -> int:
        return self._gpus or sum(one.gpus for one in self._active)

    @property
    def nodes(self) -> set[str]:
        return {one.node for one in self._active if one.node}

    @property
    def spare_nodes(self) -> set[str]:
        """Nodes with GPUs but no active member. One that is about to leave is reported without GPUs."""
        return {one.node for one in self._members.values() if one.node and one.gpus} - self.nodes


def _remaining_h(store: Store, run: str, now_ns: int, prices: Prices, step_ns: int | None) -> float | None:
    """The hours until the run is done; None unless the prices file says how many steps it has to do."""
    if not prices.planned_steps or step_ns is None:
        return None
    planned = prices.steps_planned(run, run_names(store, run).get(run, ""))
    if planned is None:
        return None
    recent = Selection(run=run, kinds=("step.committed",), since_ns=now_ns - HOUR_NS, until_ns=now_ns + 1)
    last = deque(store.select(recent), maxlen=1)
    if not last or not isinstance(last[0], events.StepCommitted):
        return None
    return max(0.0, planned.value - last[0].step) * step_ns / HOUR_NS
