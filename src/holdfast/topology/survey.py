"""Facts about a cluster from one source, and the merge of several sources.

A survey holds facts about nodes and their places, not yet a graph: a hundred thousand GPUs are a few thousand
facts. `merged` combines surveys; the first one wins, and differences become doubts. `assemble` makes the
graph.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Literal, NamedTuple

import msgspec

from holdfast.topology.graph import Kind, in_order
from holdfast.topology.hostlist import fold
from holdfast.topology.hosts import Alias, Hosts
from holdfast.topology.names import node_of_port, port_name

DoubtKind = Literal[
    "contradiction", "unmatched", "grouping", "ownerless", "missing-hardware", "unplaced", "unused"
]
WHOLE: frozenset[Kind] = frozenset({"rack", "loop", "shelf", "circuit", "leaf", "spine"})
"""Kinds for which a source gives all places of a subject; there may always be another mount."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A probable mistake in a topology. text: one sentence."""

    kind: DoubtKind
    subjects: tuple[str, ...]
    text: str


class Survey:
    """The facts of one source. source: its name in messages.

    kinds    subjects and their kinds
    on       of a subject, by kind, its places: {"n1": {"rack": ["rack-0"], "mount": ["fs-0"]}}.
             A node on a leaf has all its ports there
    gpus     of a node, the numbers of its GPUs; ports: the names of its ports
    members  of a run, the node of each member
    uses     of a run its pools, of a milestone its runs, of a pool the pools that it receives from
    engines  of a pool, its nodes
    aliases  other names of runs, as a job's number is one of its name
    slots    of a member of a run, the number of its GPU: (run, member)
    spellings  pairs of names that one series gives to one machine
    further  dependencies of any kind: (dependent, dependency), with the reason
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
        self.slots: dict[tuple[str, str], str] = {}
        self.spellings: set[Alias] = set()
        self.further: dict[tuple[str, str], str] = {}
        self._sources: dict[tuple[str, str], str] = {}

    def place(self, name: str, kind: Kind, on: str) -> None:
        """Place the subject on another one of this kind; a subject is never placed on itself."""
        if name == on:
            return
        self.kinds[on] = kind
        places = self.on.setdefault(name, {}).setdefault(kind, [])
        if on not in places:
            places.append(on)

    def credit(self, name: str, fact: str, source: str) -> None:
        """Remember which other source gave this fact about the subject."""
        self._sources[name, fact] = source

    def source_of(self, name: str, fact: str) -> str:
        return self._sources.get((name, fact), self.source)

    def add_ports(self, node: str, ports: Iterable[str]) -> None:
        self.kinds[node] = "node"
        self.ports[node] = tuple(in_order({*self.ports.get(node, ()), *ports}))

    def add_gpus(self, node: str, gpus: Iterable[str]) -> None:
        self.kinds[node] = "node"
        self.gpus[node] = tuple(in_order({*self.gpus.get(node, ()), *gpus}))

    def add_member(self, run: str, node: str) -> None:
        """Add a member that has its node's name."""
        self.kinds[run], self.kinds[node] = "run", "node"
        self.members.setdefault(run, {})[node] = node

    def renamed(self, hosts: Hosts) -> "Survey":
        """The same facts, with the nodes' names from `hosts`."""
        names = {node: hosts.node(node) or node for node, kind in self.kinds.items() if kind == "node"}
        if all(node == called for node, called in names.items()):
            return self

        def called(name: str) -> str:
            node, slash, port = name.partition("/")
            return names.get(name) or (f"{names[node]}/{port}" if slash and node in names else name)

        changed = copy(self)
        changed.kinds = {called(name): kind for name, kind in self.kinds.items()}
        changed.on, changed.gpus, changed.ports = {}, {}, {}
        for name, places in self.on.items():
            for kind, found in places.items():
                for on in found:
                    changed.place(called(name), kind, on)
        for node, gpus in self.gpus.items():
            changed.add_gpus(names.get(node, node), gpus)
        for node, ports in self.ports.items():
            changed.add_ports(names.get(node, node), ports)
        changed.engines = {
            pool: [names.get(node, node) for node in nodes] for pool, nodes in self.engines.items()
        }
        changed.members = {
            run: {names.get(member, member): names.get(node, node) for member, node in members.items()}
            for run, members in self.members.items()
        }
        changed.further = {(called(name), called(on)): why for (name, on), why in self.further.items()}
        return changed

    def with_members(self, members: Mapping[str, Mapping[str, str]]) -> "Survey":
        """The same facts, but with these members for these runs. members: their nodes."""
        changed = copy(self)
        nodes = {node for of_run in members.values() for node in of_run.values()}
        changed.kinds = {**dict.fromkeys(nodes, "node"), **self.kinds, **dict.fromkeys(members, "run")}
        changed.members = {**self.members, **{run: dict(of_run) for run, of_run in members.items()}}
        return changed


def merged(surveys: Sequence[Survey]) -> tuple[Survey, tuple[Doubt, ...]]:
    """One survey with the facts of the first, completed by those of the others."""
    first = surveys[0]
    known = _Nodes(first.source, _nodes(first))
    doubts: list[Doubt] = []
    for survey in surveys[1:]:
        first.spellings |= survey.spellings
        other = survey.renamed(Hosts(_nodes(first), first.spellings))
        theirs = _Nodes(other.source, _nodes(other))
        if known.names and theirs.names:
            doubts += _unmatched(known, theirs)
        known = known if known.names else theirs
        doubts += _taken_in(first, other)
    return first, tuple(doubts)


def _taken_in(first: Survey, other: Survey) -> Iterator[Doubt]:
    first.aliases |= other.aliases
    wrong = {name for name, kind in other.kinds.items() if first.kinds.get(name, kind) != kind}
    for name in in_order(wrong):
        says = first.source_of(name, "kind")
        text = _differing(name, f"a {first.kinds[name]} ({says})", f"a {other.kinds[name]} ({other.source})")
        yield Doubt(kind="contradiction", subjects=(name,), text=text)
    for name, kind in other.kinds.items():
        if name not in first.aliases and name not in first.kinds:
            first.kinds[name] = kind
            first.credit(name, "kind", other.source)
    yield from _places_taken_in(first, other, wrong)
    yield from _hardware_taken_in(first, other, wrong)
    yield from _members_taken_in(first, other)


class _Nodes(NamedTuple):
    """The nodes that a source knew before the merge."""

    source: str
    names: set[str]


def _unmatched(first: _Nodes, other: _Nodes) -> Iterator[Doubt]:
    """Nodes that only one of the two knows."""
    for knows, silent in ((other, first), (first, other)):
        if only := knows.names - silent.names:
            names = in_order(only)
            many = "node" if len(names) == 1 else "nodes"
            text = f"{knows.source} has the {many} {fold(names)}, of which {silent.source} knows nothing."
            yield Doubt(kind="unmatched", subjects=tuple(names), text=text)


def _nodes(survey: Survey) -> set[str]:
    return {name for name, kind in survey.kinds.items() if kind == "node"}


def _places_taken_in(first: Survey, other: Survey, wrong: set[str]) -> Iterator[Doubt]:
    differing: dict[tuple[str, str], list[str]] = {}
    for name, places in other.on.items():
        for kind, found in places.items():
            known = _known_places(first, name, kind)
            if name in wrong or wrong & {*found}:
                continue
            if not known or kind not in WHOLE:
                for on in found:
                    first.place(name, kind, on)
                first.credit(name, kind, other.source)
            elif not {*found} <= {*known}:
                here = f"on {kind} {fold(known)} ({first.source_of(name, kind)})"
                differing.setdefault((here, f"on {fold(found)} ({other.source})"), []).append(name)
    for (here, there), names in differing.items():
        text = _differing(fold(in_order(names)), here, there)
        yield Doubt(kind="contradiction", subjects=tuple(in_order(names)), text=text)


def _known_places(survey: Survey, name: str, kind: Kind) -> list[str]:
    """The places of the subject; for a port also those of its node, and for a node those of its ports."""
    if known := survey.on.get(name, {}).get(kind):
        return known
    if kind != "leaf":
        return []
    if name in survey.ports:
        ports = (port_name(name, port) for port in survey.ports[name])
        return list(dict.fromkeys(leaf for port in ports for leaf in survey.on.get(port, {}).get("leaf", [])))
    return survey.on.get(node_of_port(name), {}).get("leaf", [])


def _hardware_taken_in(first: Survey, other: Survey, wrong: set[str]) -> Iterator[Doubt]:
    for node, gpus in other.gpus.items():
        if node in wrong:
            continue
        if node not in first.gpus:
            first.gpus[node] = gpus
            first.credit(node, "gpus", other.source)
        elif {*first.gpus[node]} != {*gpus}:
            here = f"{_gpus(first.gpus[node])} ({first.source_of(node, 'gpus')})"
            text = _differing(node, here, f"{_gpus(gpus)} ({other.source})", verb="has")
            yield Doubt(kind="contradiction", subjects=(node,), text=text)
    for node, ports in other.ports.items():
        if node in wrong:
            continue
        if node not in first.ports:
            first.ports[node] = ports
            first.credit(node, "ports", other.source)
        # More ports than the first has are usual: ports for storage and management take no part in a run.
        elif gone := {*first.ports[node]} - {*ports}:
            here = f"the ports {fold(in_order(gone))} ({first.source_of(node, 'ports')})"
            text = _differing(node, here, f"has not ({other.source})", verb="has")
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
            first.credit(run, "members", other.source)
        elif {*known.values()} != {*members.values()}:
            here, there = (f"on {fold(in_order({*nodes.values()}))}" for nodes in (known, members))
            says = first.source_of(run, "members")
            text = _differing(f"run {run}", f"{here} ({says})", f"{there} ({other.source})")
            yield Doubt(kind="contradiction", subjects=(run,), text=text)
        elif known == {node: node for node in known}:
            # A source that has only the nodes of a run leaves the members' names to the run.
            first.members[run] = dict(members)
            first.credit(run, "members", other.source)


def _differing(what: str, here: str, there: str, *, verb: str = "is") -> str:
    return f"{what} {verb} {here}, and {there}."


def _gpus(gpus: Sequence[str]) -> str:
    return f"{len(gpus)} GPU" + "s" * (len(gpus) != 1)
