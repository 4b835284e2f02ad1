"""The topology file: a cluster in a page of YAML, made into facts and a graph.

`read` takes text and returns a page of facts, so that surveys of live systems can be merged with them before
the graph is made. `file_format` has the format.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from importlib import resources
from itertools import islice
from typing import NamedTuple

import msgspec

from holdfast.record.errors import InputError, nearest
from holdfast.record.importers.intake import time_ns
from holdfast.topology import document, file_format
from holdfast.topology.assemble import assemble, matching, slot_of
from holdfast.topology.document import Document, Place
from holdfast.topology.graph import KINDS, Kind, Topology
from holdfast.topology.groups import HostGroup, deal
from holdfast.topology.hostlist import NAMES_MAX, count, expand
from holdfast.topology.hosts import Hosts, is_everybodys
from holdfast.topology.survey import Doubt, Survey

TEXT_CHARS_MAX = 64 * 2**20
NAMES_COMPARED_MAX = 10_000
"""How many names a mistyped one is compared with."""


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """Planned work on some subjects. to_ns: the first moment at which it is over."""

    subjects: tuple[str, ...]
    from_ns: int
    to_ns: int
    reason: str


class MachineSeat(NamedTuple):
    """Where a member of a run is: the node as the run calls it, and the machine's own name, if known."""

    node: str
    host: str = ""


class Described(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """A described cluster: facts, their graph, planned work, and doubts."""

    topology: Topology
    survey: Survey
    kind_owners: dict[Kind, str] = {}
    owners: dict[str, str] = {}
    maintenance: tuple[Maintenance, ...] = ()
    doubts: tuple[Doubt, ...] = ()

    @cached_property
    def hosts(self) -> Hosts:
        """Its nodes by all of their names."""
        nodes = (name for name, kind in self.survey.kinds.items() if kind == "node")
        return Hosts(nodes, self.survey.spellings)

    def with_members(self, members: Mapping[str, Mapping[str, MachineSeat]]) -> "Described":
        """The cluster with these members in these runs instead of the known ones."""
        seats = {seat for of_run in members.values() for seat in of_run.values()}
        vague = self._vague(seats)
        nodes = {seat: self.machine(MachineSeat(seat.node) if seat in vague else seat) for seat in seats}
        survey = self.survey.with_members(
            {run: {member: nodes[seat] for member, seat in of_run.items()} for run, of_run in members.items()}
        )
        shared = Counter(nodes.values())
        survey.slots = {
            (run, member): slot
            for run, of_run in members.items()
            for member, seat in of_run.items()
            if shared[nodes[seat]] == 1 and (slot := slot_of(member, seat.node))
        }
        survey.spellings = self.survey.spellings | {
            (node, seat.host)
            for seat, node in nodes.items()
            if seat.host and seat not in vague and self.hosts.node(seat.host) is None
        }
        topology = assemble(survey, kind_owners=self.kind_owners, owners=self.owners)
        # Not `replace`, which would take over what was computed for the other members.
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Described(**{**fields, "topology": topology, "survey": survey})

    def machine(self, seat: MachineSeat) -> str:
        """The node of this seat: exporters use the machine's name, a file perhaps that in the run."""
        names = (seat.node, seat.host) if is_everybodys(seat.host) else (seat.host, seat.node)
        return next(filter(None, map(self.hosts.node, names)), seat.host or seat.node)

    def _vague(self, seats: Collection[MachineSeat]) -> frozenset[MachineSeat]:
        """The seats whose machine's own name says nothing: other nodes give the same one, and exporters do
        not know it, or every machine calls itself so.
        """
        count = Counter(seat.host for seat in seats if seat.node)
        shared = {host for host, nodes in count.items() if host and nodes > 1}
        unknown = {host for host in shared if is_everybodys(host) or self.hosts.node(host) is None}
        return frozenset(seat for seat in seats if seat.node and seat.host in unknown)


class TopologyPage(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The content of a file: facts, to be merged with those of other sources, and parts that only a file
    has."""

    survey: Survey
    kind_owners: dict[Kind, str]
    owners: dict[str, str]
    windows: tuple[tuple[int, file_format.WindowEntry], ...]
    doubts: tuple[Doubt, ...]

    def described(self, survey: Survey, doubts: tuple[Doubt, ...] = ()) -> Described:
        """The graph of a survey that includes these facts. doubts: those from merging."""
        topology = assemble(survey, kind_owners=self.kind_owners, owners=self.owners)
        return Described(
            topology=topology,
            survey=survey,
            kind_owners=self.kind_owners,
            owners=self.owners,
            maintenance=tuple(_maintenance(line, window, topology) for line, window in self.windows),
            doubts=self.doubts + doubts,
        )


def example() -> str:
    """A file to begin with."""
    return resources.files("holdfast.topology").joinpath("example.yaml").read_text("utf-8")


def schema() -> str:
    """The format of a file as JSON Schema, for editors."""
    return resources.files("holdfast.topology").joinpath("schema.json").read_text("utf-8")


def read(text: str, *, source: str = "the file") -> TopologyPage:
    """Parse the text. source: its name in contradictions with other sources."""
    if len(text) > TEXT_CHARS_MAX:
        raise InputError(f"The file is longer than {TEXT_CHARS_MAX:,} characters.", hint="Use host lists.")
    written = document.read(text)
    if sum(count(said) for said in _texts(written.data)) > NAMES_MAX:
        raise InputError(
            f"The host lists of the file stand for more than {NAMES_MAX:,} names.",
            hint="Check their numbers.",
        )
    return _Reader(written, file_format.converted(written), source).page()


def _texts(said: object) -> Iterator[str]:
    """Every text in a document, keys too. It is no deeper than `document.DEPTH_MAX`."""
    if isinstance(said, str):
        yield said
    elif isinstance(said, dict):
        yield from (text for item in said.items() for one in item for text in _texts(one))
    elif isinstance(said, list):
        yield from (text for one in said for text in _texts(one))


class _Reader:
    """Turns a file into facts, section by section; each needs those before it."""

    def __init__(self, written: Document, said: file_format.TopologyFile, source: str) -> None:
        self._written = written
        self._said = said
        self._survey = Survey(source)
        self._doubts: list[Doubt] = []

    def page(self) -> TopologyPage:
        said = self._said
        self._nodes()
        nodes = [name for name, kind in self._survey.kinds.items() if kind == "node"]
        racks = self._group("racks", "rack", nodes)
        self._group("shelves", "shelf", racks or nodes)
        loops = self._group("loops", "loop", racks or nodes)
        self._group("circuits", "circuit", loops)
        leaves = self._group("leaves", "leaf", nodes)
        self._group("spines", "spine", leaves)
        self._group("mounts", "mount", nodes)
        self._pools()
        self._runs()
        for name, runs in said.milestones.items():
            self._add(("milestones", name), name, "milestone")
            self._survey.uses[name] = self._names(("milestones", name), runs, "run")
        self._further()
        kinds = {kind: owner for kind, owner in said.owners.items() if kind in KINDS}
        return TopologyPage(
            survey=self._survey,
            kind_owners=msgspec.convert(kinds, dict[Kind, str]),
            owners={pattern: owner for pattern, owner in said.owners.items() if pattern not in KINDS},
            windows=tuple(
                (self._written.line(("maintenance", index)), window)
                for index, window in enumerate(said.maintenance)
            ),
            doubts=tuple(self._doubts),
        )

    def _nodes(self) -> None:
        parts = 0
        for hosts, built in self._said.nodes.items():
            place = ("nodes", hosts)
            built = built or file_format.Nodes()
            ports = tuple(self._expanded((*place, "ports"), built.ports)) if built.ports else ()
            gpus = tuple(str(gpu) for gpu in range(built.gpus))
            parts += count(hosts) * (len(gpus) + len(ports))
            if parts > NAMES_MAX:
                raise _mistake(
                    self._written.line(place),
                    f"The nodes have more than {NAMES_MAX:,} GPUs and ports",
                    "Check the numbers.",
                )
            for node in self._expanded(place, hosts):
                if node in self._survey.kinds:
                    raise _mistake(self._written.line(place), f"{node!r} occurs twice", "Leave one out.")
                self._add(place, node, "node")
                if gpus:
                    self._survey.gpus[node] = gpus
                if ports:
                    self._survey.ports[node] = ports

    def _group(self, section: str, kind: Kind, below: list[str]) -> list[str]:
        """Place the names in `below` on the subjects of a section. Return those subjects."""
        groups = []
        for names, who in getattr(self._said, section).items():
            place = (section, names)
            group = HostGroup(heads=self._expanded(place, names), who=who, line=self._written.line(place))
            for head in group.heads:
                self._add(place, head, kind)
            groups.append(group)
        for placed in deal(groups, below, self._survey.ports, self._doubts):
            node, _, port = placed.name.partition("/")
            if placed.name not in self._survey.kinds and port not in self._survey.ports.get(node, ()):
                raise _unknown(placed.line, placed.name, below)
            self._survey.place(placed.name, kind, placed.on)
        return [head for group in groups for head in group.heads]

    def _pools(self) -> None:
        for name, pool in self._said.pools.items():
            self._add(("pools", name), name, "pool")
            self._survey.engines[name] = self._names(("pools", name, "engines"), pool.engines, "node")
        for name, pool in self._said.pools.items():
            if pool.receives_from:
                place = ("pools", name, "receives_from")
                self._survey.uses[name] = self._names(place, pool.receives_from, "pool")

    def _runs(self) -> None:
        for name, run in self._said.runs.items():
            self._add(("runs", name), name, "run")
            self._survey.members[name] = self._members(name, run)
            if run.pools:
                self._survey.uses[name] = self._names(("runs", name, "pools"), run.pools, "pool")

    def _members(self, name: str, run: file_format.RunEntry) -> dict[str, str]:
        place: Place = ("runs", name)
        if sum(map(bool, (run.partition, run.nodes, run.members))) != 1:
            raise _mistake(
                self._written.line(place),
                f"The run {name!r} must have one of partition, nodes and members",
                "Say on which nodes its members are, in one of these ways.",
            )
        if run.members:
            return self._named_members((*place, "members"), run.members)
        if run.partition and run.partition not in self._said.partitions:
            known = ", ".join(self._said.partitions) or "none"
            line = self._written.line((*place, "partition"))
            raise _mistake(line, f"There is no partition {run.partition!r}", f"Known are: {known}.")
        nodes = self._said.partitions[run.partition] if run.partition else run.nodes
        where: Place = ("partitions", run.partition) if run.partition else (*place, "nodes")
        return {node: node for node in self._names(where, nodes, "node")}

    def _named_members(self, place: Place, members: dict[str, str]) -> dict[str, str]:
        """Two host lists of the same length are pairs."""
        pairs: dict[str, str] = {}
        for names, hosts in members.items():
            called = self._expanded((*place, names), names)
            nodes = self._names((*place, names), hosts, "node")
            if len(nodes) not in (1, len(called)):
                sentence = f"{names!r} are {len(called)} members, and {hosts!r} are {len(nodes)} nodes"
                raise _mistake(self._written.line((*place, names)), sentence, "Give each member its node.")
            pairs |= zip(called, nodes * (len(called) // len(nodes)), strict=True)
        return pairs

    def _further(self) -> None:
        for names, subject in self._said.subjects.items():
            place = ("subjects", names)
            on = self._expanded((*place, "depends_on"), subject.depends_on) if subject.depends_on else []
            for name in self._expanded(place, names):
                self._add(place, name, subject.kind)
                self._survey.further |= dict.fromkeys(((name, other) for other in on), subject.why)

    def _add(self, place: Place, name: str, kind: Kind) -> None:
        known = self._survey.kinds.setdefault(name, kind)
        if known != kind:
            raise _mistake(
                self._written.line(place),
                f"{name!r} is a {known} and a {kind}",
                "Names are unique over all kinds: call one of them otherwise.",
            )

    def _expanded(self, place: Place, names: file_format.Names) -> list[str]:
        try:
            return [name for text in ([names] if isinstance(names, str) else names) for name in expand(text)]
        except InputError as error:
            sentence = error.sentence.removesuffix(".")
            raise _mistake(self._written.line(place), sentence, error.hint) from None

    def _names(self, place: Place, names: file_format.Names, kind: Kind) -> list[str]:
        """Names of subjects that were already described, each of this kind."""
        found = self._expanded(place, names)
        for name in found:
            if self._survey.kinds.get(name) != kind:
                known = [other for other, its in self._survey.kinds.items() if its == kind]
                raise _unknown(self._written.line(place), name, known)
        return found


def _maintenance(line: int, window: file_format.WindowEntry, topology: Topology) -> Maintenance:
    patterns = [window.subjects] if isinstance(window.subjects, str) else window.subjects
    known = frozenset(topology.names())
    try:
        names = tuple(dict.fromkeys(name for pattern in patterns for name in matching(pattern, known)))
        begin_ns, end_ns = time_ns(window.begin), time_ns(window.end)
    except (InputError, ValueError) as error:
        hint = error.hint if isinstance(error, InputError) else "Write times as 2026-01-31T12:00:00Z."
        raise _mistake(line, str(error).removesuffix("."), hint) from None
    if end_ns <= begin_ns:
        raise _mistake(line, "The maintenance ends before it begins", "Check `from` and `to`.")
    return Maintenance(subjects=names, from_ns=begin_ns, to_ns=end_ns, reason=window.reason)


def _mistake(line: int, sentence: str, hint: str) -> InputError:
    return InputError(f"line {line}: {sentence}.", hint=hint)


def _unknown(line: int, name: str, known: Collection[str]) -> InputError:
    compared, otherwise = list(islice(known, NAMES_COMPARED_MAX)), "Describe it first, or check the spelling."
    hint = nearest(name, compared, otherwise, likeness=file_format.KEY_LIKENESS_MIN, quote="'")
    return _mistake(line, f"{name!r} is not described", hint)
