"""The cluster as control sees it at one moment: nodes, runs, open incidents, and the cases made of them."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec

from holdfast.control.actions import ControlAction
from holdfast.control.history import ControlHistory
from holdfast.control.policy import NO_RULE
from holdfast.diagnose.incident import Incident
from holdfast.topology.names import node_of_port

FAILS_A_DAY = {"gpu-fault": 0.5, "memory-errors": 0.3, "nvlink": 0.3, "node-power": 0.3}
"""The chance that a node with this fault goes down within a day. Assumed: no figures by mechanism are
published.
"""
NODE_KINDS = frozenset({"node", "gpu", "port"})
"""Kinds of causes that go away with the node. Draining one node does not mend a cause that several nodes
share.
"""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as its scheduler describes it.

    is_out       it gets no work. reason: why, as recorded when it was taken out
    jobs         that run on it
    since_ns     when it booted: incidents from before then do not count
    maintenance  planned work that goes on now; empty if there is none
    """

    name: str
    gpus: int = 8
    is_out: bool = False
    reason: str = ""
    jobs: tuple[str, ...] = ()
    since_ns: int = 0
    maintenance: str = ""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run's figures.

    nodes         where its members are; spares: the number of its nodes that wait
    saved_ns      when its last checkpoint was safe; None if none is known
    is_elastic    it goes on by itself when a member leaves (`holdfast run`), and deals lanes again
    can_move      it can be asked from here to move its members
    remaining_h   until it is done; None if unknown
    jobs          the scheduler's jobs that it runs in
    """

    name: str
    gpus: int
    nodes: frozenset[str] = frozenset()
    spares: int = 0
    began_ns: int = 0
    saved_ns: int | None = None
    is_elastic: bool = False
    can_move: bool = False
    remaining_h: float | None = None
    jobs: tuple[str, ...] = ()


class ClusterView(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """incidents: the open ones, and those because of which a run left a node. can: the actions that are
    possible here. person_usd: the cost of a call in people's time.
    """

    nodes: Mapping[str, NodeView]
    runs: Mapping[str, RunView]
    incidents: tuple[Incident, ...]
    history: ControlHistory
    can: frozenset[ControlAction]
    usd_per_gpu_hour: float
    person_usd: float

    @cached_property
    def gpu_nodes(self) -> int:
        """The nodes that budgets are a share of; all nodes if none reports GPUs."""
        return sum(node.gpus > 0 for node in self.nodes.values()) or len(self.nodes)

    @cached_property
    def free_node_gpus(self) -> int:
        """The GPUs of the largest unused node: shows whether a restarted job finds one in the place of a node
        that was taken out.
        """
        free = self.nodes.keys() - {name for run in self.runs.values() for name in run.nodes}
        nodes = (self.nodes[name] for name in free)
        return max(
            (node.gpus for node in nodes if not (node.is_out or node.jobs or node.maintenance)), default=0
        )


class Case(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """All incidents of one target. node: None if the target is not a single node. run: the one that is
    slowed, or that is on the node; None if there is none. left_rate: GPU-hours an hour lost by a run that has
    since left the node; left_run: its name.
    """

    target: str
    node: NodeView | None
    run: RunView | None
    incidents: tuple[Incident, ...]
    left_rate: float = 0.0
    left_run: str = ""

    @cached_property
    def gravest(self) -> Incident:
        """The incident that stands for the case: the one with the highest cost, weighted by confidence. Its
        own confidence and telemetry count, not those of a surer incident that costs nothing.
        """
        return max(self.incidents, key=lambda one: (one.confidence * _harm(one), one.confidence, one.name))

    @property
    def member(self) -> str:
        """The only member that is affected; empty if several are."""
        affected = self.gravest.affected
        return affected[0].removeprefix(f"{self.gravest.run}/") if len(affected) == 1 else ""

    @property
    def slowdown(self) -> float:
        return max(1.0, self.gravest.slowdown)

    @property
    def rule(self) -> str:
        return NO_RULE if self.gravest.verdict == "unknown" else self.gravest.cause.mechanism


def _harm(incident: Incident) -> float:
    """The share of a day's work that the incident costs."""
    return 1.0 - 1.0 / max(1.0, incident.slowdown) + FAILS_A_DAY.get(incident.cause.mechanism, 0.0)


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a decision, and the cluster around it. case: None if the target is a node that we took
    out.
    """

    target: str
    case: Case | None
    cluster: ClusterView


def node_named(incident: Incident, nodes: Mapping[str, NodeView]) -> NodeView | None:
    """The node that the incident's cause belongs to; None if several share it, or it is unknown."""
    cause = incident.cause
    if incident.verdict != "cause" or cause.kind not in NODE_KINDS:
        return None
    for name in (
        cause.subject,
        node_of_port(cause.subject),
        cause.subject.rpartition(".")[0],
        *incident.path,
    ):
        if name in nodes:
            return nodes[name]
    return None


def cases(cluster: ClusterView) -> Iterator[Case]:
    """One case for each target, the dearest first, without incidents from before the node's last boot."""
    found: dict[str, list[Incident]] = {}
    for incident in cluster.incidents:
        node = node_named(incident, cluster.nodes)
        if node is not None and incident.began_ns < node.since_ns:
            continue
        found.setdefault(node.name if node else _elsewhere(incident), []).append(incident)
    made = [_case(cluster, target, incidents) for target, incidents in found.items()]
    yield from sorted(made, key=lambda case: (-case.slowdown, case.target))


def _elsewhere(incident: Incident) -> str:
    """The name of a target that is not one node: the cause's subject, or the run if it has none."""
    return incident.cause.subject or incident.run


def _case(cluster: ClusterView, target: str, incidents: list[Incident]) -> Case:
    node = cluster.nodes.get(target)
    named = [cluster.runs[one.run] for one in incidents if one.run in cluster.runs]
    left = cluster.history.left.get(target)
    decided = left.decision if left is not None else None
    if node is not None:
        # A run whose nodes are unknown is taken to be where its incident is.
        there = [run for run in (*named, *cluster.runs.values()) if node.name in run.nodes]
        named = there or [run for run in named if not run.nodes]
    return Case(
        target=target,
        node=node,
        run=next(iter(named), None),
        incidents=tuple(incidents),
        left_rate=decided.rate if decided is not None else 0.0,
        left_run=decided.run if decided is not None else "",
    )
