"""What one source says about a cluster, and what comes of several that speak about the same one.

A survey holds facts about nodes and what they stand on, not yet a graph: a hundred thousand GPUs are a few
thousand facts. `merged` lays surveys over each other; the first one wins, and what others say differently is
told as a doubt. `assemble` makes the graph.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from holdfast.topology.graph import Kind, in_order
from holdfast.topology.hostlist import fold
from holdfast.topology.names import node_of_port

DoubtKind = Literal[
    "contradiction", "unmatched", "grouping", "ownerless", "missing-hardware", "unplaced", "unused"
]
WHOLE: frozenset[Kind] = frozenset({"rack", "loop", "shelf", "circuit", "leaf", "spine"})
"""Whoever says on which of these a subject is says all of it; of mounts there may always be another one."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a topology that is probably not as it should be. text: one sentence."""

    kind: DoubtKind
    subjects: tuple[str, ...]
    text: str


class Survey:
    """What one source says. source: its name in sentences.

    kinds    subjects and what they are
    on       of a subject, by kind, what it stands on: {"n1": {"rack": ["rack-0"], "mount": ["fs-0"]}}.
             A node on a leaf has all its ports there
    gpus     of a node, the numbers of its GPUs; ports: the names of its ports
    members  of a run, the node of each member
    uses     of a run its pools, of a milestone its runs, of a pool the pools that it receives from
    engines  of a pool, its nodes
    aliases  other names of runs, as a job's number is one of its name
    further  dependencies of any kind, first whose and then on whom, with the reason
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.kinds: dict[str, Kind] = {}
        self.on: dict[str, dict[Kind, list[str]]] = {}
        self.gpus: dict[str, tuple[str, ...]] = {}
        self.ports: dict[str, tuple[str, ...]] = {}
        self.members: dict[str, dict[str, str]] = {}
        self.uses: dict[str, list[str]] = {}
        self.engines: dict[str, list[str]] = {}
        self.aliases: dict[str, str] = {}
        self.further: dict[tuple[str, str], str] = {}

    def place(self, name: str, kind: Kind, on: str) -> None:
        """Say that the subject stands on another, which is of this kind; nothing stands on itself."""
        if name == on:
            return
        self.kinds[on] = kind
        places = self.on.setdefault(name, {}).setdefault(kind, [])
        if on not in places:
            places.append(on)

    def add_ports(self, node: str, ports: Iterable[str]) -> None:
        self.kinds[node] = "node"
        self.ports[node] = tuple(in_order({*self.ports.get(node, ()), *ports}))

    def add_gpus(self, node: str, gpus: Iterable[str]) -> None:
        self.kinds[node] = "node"
        self.gpus[node] = tuple(in_order({*self.gpus.get(node, ()), *gpus}))

    def add_member(self, run: str, node: str) -> None:
        """A member that is called as its node is."""
        self.kinds[run], self.kinds[node] = "run", "node"
        self.members.setdefault(run, {})[node] = node


def merged(surveys: Sequence[Survey]) -> tuple[Survey, tuple[Doubt, ...]]:
    """One survey that says what the first one says, and of what it is silent about what the others say."""
    first = surveys[0]
    doubts: list[Doubt] = []
    for other in surveys[1:]:
        doubts += _taken_in(first, other)
    return first, tuple(doubts)


def _taken_in(first: Survey, other: Survey) -> Iterator[Doubt]:
    yield from _unmatched(first, other)
    first.aliases |= other.aliases
    wrong = {name for name, kind in other.kinds.items() if first.kinds.get(name, kind) != kind}
    for name in wrong:
        text = _differing(first, other, name, f"a {first.kinds[name]}", f"a {other.kinds[name]}")
        yield Doubt(kind="contradiction", subjects=(name,), text=text)
    for name, kind in other.kinds.items():
        if name not in first.aliases:
            first.kinds.setdefault(name, kind)
    yield from _places_taken_in(first, other, wrong)
    yield from _hardware_taken_in(first, other)
    yield from _members_taken_in(first, other)


def _unmatched(first: Survey, other: Survey) -> Iterator[Doubt]:
    """Nodes that only one of the two knows, where either knows any."""
    mine, theirs = _nodes(first), _nodes(other)
    if not (mine and theirs):
        return
    for knows, silent, only in ((other, first, theirs - mine), (first, other, mine - theirs)):
        if only:
            names = in_order(only)
            many = "node" if len(names) == 1 else "nodes"
            text = f"{knows.source} has the {many} {fold(names)}, of which {silent.source} knows nothing."
            yield Doubt(kind="unmatched", subjects=tuple(names), text=text)


def _nodes(survey: Survey) -> set[str]:
    return {name for name, kind in survey.kinds.items() if kind == "node"}


def _places_taken_in(first: Survey, other: Survey, wrong: set[str]) -> Iterator[Doubt]:
    differing: dict[tuple[Kind, str, str], list[str]] = {}
    for name, places in other.on.items():
        for kind, found in places.items():
            known = _known_places(first, name, kind)
            if name in wrong or wrong & {*found}:
                continue
            if not known or kind not in WHOLE:
                for on in found:
                    first.place(name, kind, on)
            elif not {*found} <= {*known}:
                differing.setdefault((kind, fold(known), fold(found)), []).append(name)
    for (kind, known_on, found_on), names in differing.items():
        text = _differing(first, other, fold(in_order(names)), f"on {kind} {known_on}", f"on {found_on}")
        yield Doubt(kind="contradiction", subjects=tuple(in_order(names)), text=text)


def _known_places(survey: Survey, name: str, kind: Kind) -> list[str]:
    """Where the subject is; of a port also where all of its node are, and of a node where its ports are."""
    if known := survey.on.get(name, {}).get(kind):
        return known
    if kind != "leaf":
        return []
    if name in survey.ports:
        ports = (f"{name}/{port}" for port in survey.ports[name])
        return list(dict.fromkeys(leaf for port in ports for leaf in survey.on.get(port, {}).get("leaf", [])))
    return survey.on.get(node_of_port(name), {}).get("leaf", [])


def _hardware_taken_in(first: Survey, other: Survey) -> Iterator[Doubt]:
    for node, gpus in other.gpus.items():
        known = first.gpus.setdefault(node, gpus)
        if {*known} != {*gpus}:
            text = _differing(first, other, node, _counted(known, "GPU"), _counted(gpus, "GPU"), verb="has")
            yield Doubt(kind="contradiction", subjects=(node,), text=text)
    for node, ports in other.ports.items():
        gone = {*first.ports.setdefault(node, ports)} - {*ports}
        if gone:
            # More ports than the file has are usual: those for storage and for people have no part in a run.
            known_ports = fold(in_order(gone))
            text = f"{node} has the ports {known_ports} ({first.source}), and has not ({other.source})."
            yield Doubt(kind="contradiction", subjects=(node,), text=text)


def _members_taken_in(first: Survey, other: Survey) -> Iterator[Doubt]:
    for called, members in other.members.items():
        run = first.aliases.get(called, called)
        known = first.members.get(run)
        if first.kinds.get(run, "run") != "run":
            continue
        if known is None:
            first.kinds.setdefault(run, "run")
            first.members[run] = dict(members)
        elif {*known.values()} != {*members.values()}:
            here, there = (f"on {fold(in_order({*nodes.values()}))}" for nodes in (known, members))
            text = _differing(first, other, f"run {run}", here, there)
            yield Doubt(kind="contradiction", subjects=(run,), text=text)


def _differing(first: Survey, other: Survey, what: str, here: str, there: str, *, verb: str = "is") -> str:
    return f"{what} {verb} {here} ({first.source}), and {there} ({other.source})."


def _counted(things: Sequence[str], what: str) -> str:
    return f"{len(things)} {what}" + "s" * (len(things) != 1)
