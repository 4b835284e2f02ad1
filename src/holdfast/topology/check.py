"""Checks a topology for doubtful points: missing facts, and contradictory ones."""

from collections.abc import Iterator, Sequence

from holdfast.topology.file import Described
from holdfast.topology.graph import Kind, Topology, in_order
from holdfast.topology.hostlist import fold
from holdfast.topology.names import port_name
from holdfast.topology.survey import Doubt, DoubtKind, Survey

_NEEDED: tuple[tuple[Kind, str, str], ...] = (
    ("rack", "stands in no rack", "stand in no rack"),
    ("loop", "is on no cooling loop", "are on no cooling loop"),
    ("leaf", "is on no leaf switch", "are on no leaf switch"),
    ("mount", "has no mount", "have no mount"),
)
"""The places that a node needs, and the texts for one or several nodes without them."""


def doubts(described: Described) -> tuple[Doubt, ...]:
    """All doubts; those from reading come first."""
    survey = described.survey
    nodes = in_order(name for name, kind in survey.kinds.items() if kind == "node")
    return (
        *described.doubts,
        *_without_owner(described.topology),
        *_without_hardware(survey, nodes),
        *_unplaced(survey, nodes),
        *_unused(survey, nodes),
    )


def _without_owner(topology: Topology) -> Iterator[Doubt]:
    if names := [name for name in topology.names() if not topology.owner(name)]:
        yield _doubt("ownerless", names, "has no owner", "have no owner")


def _without_hardware(survey: Survey, nodes: Sequence[str]) -> Iterator[Doubt]:
    """Nodes without GPUs or ports that others have. If no ports are known at all, `_unplaced` reports it."""
    if not nodes:
        yield Doubt(kind="missing-hardware", subjects=(), text="There are no nodes.")
    for has, what in ((survey.gpus, "GPUs"), (survey.ports, "ports")):
        bare = [node for node in nodes if node not in has]
        if has and bare:
            yield _doubt("missing-hardware", bare, f"has no {what}", f"have no {what}")


def _unplaced(survey: Survey, nodes: Sequence[str]) -> Iterator[Doubt]:
    """Nodes without a known rack, loop, leaf or mount; kinds without any known subject are one doubt."""
    known = {*survey.kinds.values()}
    for kind, one, several in _NEEDED:
        bare = [node for node in nodes if kind in known and not _stands_on(survey, node, kind)]
        if bare:
            yield _doubt("unplaced", bare, one, several)
    missing = [kind for kind, _, _ in _NEEDED if kind not in known]
    if missing and nodes:
        text = f"Nothing is known about any {', '.join(missing)}: a cause there cannot be found."
        yield Doubt(kind="unplaced", subjects=(), text=text)


def _stands_on(survey: Survey, node: str, kind: Kind) -> bool:
    """Whether the node, its rack or one of its ports is on a subject of this kind."""
    places = survey.on.get(node, {})
    others = [*places.get("rack", ()), *(port_name(node, port) for port in survey.ports.get(node, ()))]
    return kind in places or any(kind in survey.on.get(other, {}) for other in others)


def _unused(survey: Survey, nodes: Sequence[str]) -> Iterator[Doubt]:
    if not survey.members:
        yield Doubt(kind="unused", subjects=(), text="There are no runs, so no member can be late.")
        return
    at_work = {node for members in survey.members.values() for node in members.values()}
    at_work.update(node for engines in survey.engines.values() for node in engines)
    if idle := [node for node in nodes if node in survey.gpus and node not in at_work]:
        gpus = sum(len(survey.gpus[node]) for node in idle)
        text = f"No run and no pool depends on {gpus:,} GPUs, those of {fold(idle)}."
        yield Doubt(kind="unused", subjects=tuple(idle), text=text)


def _doubt(kind: DoubtKind, names: list[str], one: str, several: str) -> Doubt:
    says = one if len(names) == 1 else several
    return Doubt(kind=kind, subjects=tuple(names), text=f"{fold(names)} {says}.")
