"""The cluster as control sees it at one moment: nodes, runs, open incidents, and what is wrong with whom."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec

from holdfast.control.actions import ControlAction
from holdfast.control.history import ControlHistory
from holdfast.control.policy import NO_RULE
from holdfast.diagnose.incident import Incident
from holdfast.topology.names import node_of_port

FAILS_A_DAY = {"gpu-fault": 0.5, "memory-errors": 0.3, "nvlink": 0.3, "node-power": 0.3}
"""The chance that a node with this goes down within a day. Assumed: nobody publishes it by mechanism."""
NODE_KINDS = frozenset({"node", "gpu", "port"})
"""Kinds of causes that are gone when the node is. What is beneath several nodes is not mended by draining
one of them.
"""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as its scheduler tells it.

    is_out     it gets no work. reason: why, in the words of whoever took it out
    jobs       that run there
    since_ns   when it was started: what was seen before then is of another session
    maintenance  planned work that goes on now; empty: none
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

    nodes         where its members are; spares: nodes of its own that wait
    saved_ns      when its last checkpoint was safe; None: none is known
    is_elastic    it goes on by itself when a member leaves (`holdfast run`); it deals lanes again
    can_move      it can be asked to, from here
    remaining_h   until it is done; None: nobody says
    jobs          of the scheduler
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
    """incidents: open ones, and those of nodes that a run has left for them. can: what may be done here at
    all. person_usd: what a call costs in people's time.
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
        """Of which budgets are a share; all nodes where nobody tells of GPUs."""
        return sum(node.gpus > 0 for node in self.nodes.values()) or len(self.nodes)

    @cached_property
    def free_node_gpus(self) -> int:
        """Of the largest node that nobody uses: whether a job that is started again finds one in the place of
        a node that was taken out.
        """
        free = self.nodes.keys() - {name for run in self.runs.values() for name in run.nodes}
        nodes = (self.nodes[name] for name in free)
        return max(
            (node.gpus for node in nodes if not (node.is_out or node.jobs or node.maintenance)), default=0
        )


class Case(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """All that is wrong with one target. node: None where it is not a single node's. run: the one that feels
    it, or is on the node; None: none. left_rate: GPU-hours an hour that a run lost which has left the node;
    left_run: its name.
    """

    target: str
    node: NodeView | None
    run: RunView | None
    incidents: tuple[Incident, ...]
    left_rate: float = 0.0
    left_run: str = ""

    @cached_property
    def gravest(self) -> Incident:
        """The one that speaks for the case: by what it costs, as far as it is sure. Its own confidence and
        telemetry count, not those of a surer one that costs nothing.
        """
        return max(self.incidents, key=lambda one: (one.confidence * _harm(one), one.confidence, one.name))

    @property
    def member(self) -> str:
        """The only one that is affected; empty where there are others."""
        affected = self.gravest.affected
        return affected[0].removeprefix(f"{self.gravest.run}/") if len(affected) == 1 else ""

    @property
    def slowdown(self) -> float:
        return max(1.0, self.gravest.slowdown)

    @property
    def rule(self) -> str:
        return NO_RULE if self.gravest.verdict == "unknown" else self.gravest.cause.mechanism


def _harm(incident: Incident) -> float:
    """The share of a day's work that is lost to it."""
    return 1.0 - 1.0 / max(1.0, incident.slowdown) + FAILS_A_DAY.get(incident.cause.mechanism, 0.0)


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision is about, and all around it. case: None where a node that we took out is looked at."""

    target: str
    case: Case | None
    cluster: ClusterView


def node_named(incident: Incident, nodes: Mapping[str, NodeView]) -> NodeView | None:
    """The node whose cause this is; None where it is beneath more than one, or nobody knows the node."""
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
    """One for each target, the dearest first. What began before its node was started again does not count."""
    found: dict[str, list[Incident]] = {}
    for incident in cluster.incidents:
        node = node_named(incident, cluster.nodes)
        if node is not None and incident.began_ns < node.since_ns:
            continue
        found.setdefault(node.name if node else _elsewhere(incident), []).append(incident)
    made = [_case(cluster, target, incidents) for target, incidents in found.items()]
    yield from sorted(made, key=lambda case: (-case.slowdown, case.target))


def _elsewhere(incident: Incident) -> str:
    """The name of a target that is not one node: the run where it is software's, else the subject."""
    return incident.cause.subject or incident.run


def _case(cluster: ClusterView, target: str, incidents: list[Incident]) -> Case:
    node = cluster.nodes.get(target)
    named = [cluster.runs[one.run] for one in incidents if one.run in cluster.runs]
    left = cluster.history.left.get(target)
    decided = left.decision if left is not None else None
    if node is not None:
        # A run of which nobody knows where it is, is where its incident is.
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
