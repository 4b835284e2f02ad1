"""The cluster as one graph: dependencies, owners, and queries over them.

A `Builder` collects subjects and dependencies by name; `build` makes an immutable `Topology` of them, which
keeps everything in flat arrays, so that queries over 100,000 GPUs (about 250,000 subjects) take milliseconds.
All results with several subjects have one order that does not depend on how the graph was built: by kind as
in `KINDS`, and within a kind by name, numbers by their value.

Nothing here reads a file or asks a system; `file` and `discovery` do, and fill a Builder.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.record.errors import InputError, nearest
from holdfast.topology import arrays

Facility = Literal["circuit", "loop", "shelf", "rack"]
Network = Literal["spine", "leaf", "link", "port"]
Machine = Literal["node", "gpu", "mount"]
Serving = Literal["pool", "router", "engine"]
Training = Literal["run", "member"]
Kind = Literal[Facility, Network, Machine, Serving, Training, "team", "milestone", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)

DEFAULT_OWNERS: Mapping[Kind, str] = {
    **dict.fromkeys(get_args(Facility), "facilities"),
    **dict.fromkeys(get_args(Network), "network"),
    "node": "hardware",
    "gpu": "hardware",
    "mount": "storage",
    **dict.fromkeys(get_args(Serving), "serving"),
    **dict.fromkeys(get_args(Training), "training"),
    "milestone": "business",
}
"""The default owners, by kind of subject. A team is its own owner."""

CYCLE_SHOWN_MAX = 6
"""Subjects of a cycle that an error names."""
UNKNOWN_SHOWN_MAX = 3
LIKENESS_MIN = 0.6
LIKENESS_LENGTHS_MAX = 2
LIKENESS_NAMES_MAX = 20_000
"""A mistyped name is compared with those of about its length, and at most this many."""
REACHES_KEPT_MAX = 8
"""How many sets of peers keep their dependencies; a diagnosis asks about the same few again and again."""

_KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
_DIGITS = re.compile(r"[0-9]+")
_DIGITS_PADDED = 20


class Shared(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A subject that several symptoms depend on.

    reached   how many of the examined subjects depend on it
    hit       how many of the symptoms do
    symptoms  how many symptoms there are
    bans      how much better it separates symptoms from healthy subjects than chance, as a power of ten:
              two shares of symptoms, beneath it and elsewhere, against one share for all. Below 0: fewer
              symptoms are beneath it than elsewhere
    """

    subject: str
    kind: Kind
    owner: str
    reached: int
    hit: int
    symptoms: int
    bans: float

    @property
    def likeness(self) -> float:
        """The overlap of the reached subjects and the symptoms: intersection over union. 1: the same."""
        return self.hit / (self.reached + self.symptoms - self.hit)


class SeamCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many dependencies there are between a kind of one owner and a kind of another."""

    cause_kind: Kind
    cause_owner: str
    symptom_kind: Kind
    symptom_owner: str
    count: int


class Builder:
    """Collects subjects and dependencies in any order.

    Adding the same again changes nothing. owners: by kind, in place of `DEFAULT_OWNERS`.
    """

    def __init__(self, owners: Mapping[Kind, str] | None = None) -> None:
        self._kind_owners = {**DEFAULT_OWNERS, **(owners or {})}
        self._kinds: dict[str, Kind] = {}
        self._owners: dict[str, str] = {}
        self._dependents: list[str] = []
        self._dependencies: list[str] = []
        self._reasons: dict[tuple[str, str], str] = {}

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The subjects so far, and their kinds."""
        return self._kinds

    def add(self, name: str, kind: Kind, *, owner: str = "") -> None:
        """Add a subject. owner: of this subject; if given several times, the last counts."""
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            raise InputError(
                f"The subject {name!r} is a {known} and a {kind}.",
                hint="Names are unique over all kinds: call one of them otherwise.",
            )
        if owner:
            self._owners[name] = owner

    def depends(self, name: str, on: str, *, why: str = "") -> None:
        """Add a dependency of `name` on `on`; either may be added later. why: a clause for people."""
        self._dependents.append(name)
        self._dependencies.append(on)
        if why:
            self._reasons[name, on] = why

    def build(self) -> "Topology":
        """The graph. Names that were never added, and cycles, are refused by name."""
        names = _ordered(self._kinds)
        index = {name: number for number, name in enumerate(names)}
        ends, other_ends = self._edges(index)
        up, down = arrays.rows_of(ends, other_ends, len(names)), arrays.rows_of(other_ends, ends, len(names))
        depths = arrays.depths_of(up, down)
        if np.any(depths == arrays.CYCLIC):
            raise _cyclic(names, up, depths)
        return Topology(
            names=names,
            index=index,
            kinds=np.array([_KIND_NUMBER[self._kinds[name]] for name in names], np.int8),
            owners=[self._owner(name) for name in names],
            graph=_Graph(up, down, depths),
            reasons=dict(self._reasons),
        )

    def _owner(self, name: str) -> str:
        kind = self._kinds[name]
        return self._owners.get(name) or self._kind_owners.get(kind) or (name if kind == "team" else "")

    def _edges(self, index: Mapping[str, int]) -> tuple[arrays.Indices, arrays.Indices]:
        count = len(self._dependents)
        try:
            dependents = np.fromiter(map(index.__getitem__, self._dependents), np.int64, count)
            dependencies = np.fromiter(map(index.__getitem__, self._dependencies), np.int64, count)
        except KeyError:
            raise self._unknown(index) from None
        both = np.unique(dependents * len(index) + dependencies)
        return (both // max(1, len(index))).astype(np.int32), (both % max(1, len(index))).astype(np.int32)

    def _unknown(self, index: Mapping[str, int]) -> InputError:
        pairs = zip(self._dependents, self._dependencies, strict=True)
        missing = {
            end: f"{end!r} ({name!r} depends on {on!r})"
            for name, on in pairs
            for end in (name, on)
            if end not in index
        }
        shown = ", ".join(list(missing.values())[:UNKNOWN_SHOWN_MAX])
        more = f" and {len(missing) - UNKNOWN_SHOWN_MAX:,} more" if len(missing) > UNKNOWN_SHOWN_MAX else ""
        return InputError(
            f"The topology does not say what these are: {shown}{more}.",
            hint=_likely(next(iter(missing)), index) or "Add them with their kinds.",
        )


class _Graph(NamedTuple):
    """Dependencies and dependents of each subject, and the longest path from each to the bottom."""

    dependencies: arrays.Rows
    dependents: arrays.Rows
    depths: arrays.Indices


class _Reach(NamedTuple):
    """For some peers: all dependencies of each, by its place among them; and by subject, how many depend on
    it."""

    rows: arrays.Rows
    reached: arrays.Counts


class Topology:
    """Made by `Builder.build`. Queries about unknown names raise InputError, except `in`."""

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        index: Mapping[str, int],
        kinds: NDArray[np.int8],
        owners: Sequence[str],
        graph: _Graph,
        reasons: Mapping[tuple[str, str], str],
    ) -> None:
        self._names = names
        self._index = index
        self._kinds = kinds
        # Read hundreds of thousands of times in one look: numpy would take five times as long.
        self._kind_of: list[Kind] = [KINDS[number] for number in kinds.tolist()]
        self._owners = owners
        numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
        self._owner_numbers = np.array([numbers[owner] for owner in owners], np.int32)
        self._graph = graph
        self._reasons = reasons
        self._reaches: dict[bytes, _Reach] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def kind(self, name: str) -> Kind:
        try:
            return self._kind_of[self._index[name]]
        except KeyError:
            raise self._unknown(name) from None

    def owner(self, name: str) -> str:
        """Its own, else the default owner of its kind; empty if there is none."""
        return self._owners[self._number(name)]

    def why(self, name: str, on: str) -> str:
        """The clause given for a dependency; empty if there is none."""
        return self._reasons.get((name, on), "")

    def names(self, kind: Kind | None = None) -> tuple[str, ...]:
        if kind is None:
            return self._names
        begin, end = np.searchsorted(self._kinds, [_KIND_NUMBER[kind], _KIND_NUMBER[kind] + 1])
        return self._names[begin:end]

    def dependencies(self, name: str) -> tuple[str, ...]:
        """The direct dependencies."""
        return self._named(self._graph.dependencies.of(self._number(name)))

    def dependents(self, name: str) -> tuple[str, ...]:
        """The direct dependents."""
        return self._named(self._graph.dependents.of(self._number(name)))

    def blast_radius(self, cause: str, kind: Kind | None = None) -> tuple[str, ...]:
        """All subjects that depend on it, directly or through others."""
        return self._named(arrays.reachable(self._graph.dependents, self._number(cause)), kind)

    def causes(self, symptom: str, kind: Kind | None = None) -> tuple[str, ...]:
        """All subjects that it depends on, directly or through others."""
        return self._named(arrays.reachable(self._graph.dependencies, self._number(symptom)), kind)

    def causes_of_each(self, symptoms: Collection[str], kind: Kind) -> dict[str, tuple[str, ...]]:
        """For each of these, all causes of one kind: like `causes`, for many at once."""
        peers = self._numbers(symptoms)
        rows = self._reach(peers).rows
        wanted = self._kinds[rows.targets] == _KIND_NUMBER[kind]
        ends = np.concatenate(([0], np.cumsum(wanted)))[rows.starts].tolist()
        found = self._named(rows.targets[wanted])
        return {
            self._names[number]: found[begin:end]
            for number, (begin, end) in zip(peers.tolist(), pairwise(ends), strict=True)
        }

    def by_kind(self, names: Iterable[str]) -> dict[Kind | None, list[str]]:
        """These names by their kind; None for unknown names."""
        found: dict[Kind | None, list[str]] = {}
        for name in names:
            number = self._index.get(name)
            found.setdefault(None if number is None else self._kind_of[number], []).append(name)
        return found

    def common_causes(
        self, symptoms: Collection[str], among: Collection[str] | None = None
    ) -> tuple[Shared, ...]:
        """The subjects that the symptoms have in common and the rest of `among` does not, the best first.
        Without `among`: the rest of their kinds.

        Each is a subject that at least two of the symptoms depend on (or one, if there is only one). They are
        ranked by `Shared.bans`, so that healthy subjects in a cause's blast radius count against it as
        symptoms outside of it do; if all are symptoms and bans decide nothing, by `Shared.likeness`; among
        equals, the nearest to the symptoms comes first.
        """
        ill = self._numbers(symptoms)
        if among is None:
            peers = np.flatnonzero(np.isin(self._kinds, self._kinds[ill]))
        else:
            peers = np.union1d(self._numbers(among), ill)
        reach = self._reach(peers)
        all_hit = np.bincount(reach.rows.gather(np.searchsorted(peers, ill))[1], minlength=len(self._names))
        found = np.flatnonzero(all_hit >= min(2, max(1, len(ill))))
        hit, reached = all_hit[found], reach.reached[found]
        bans = _bans(hit, reached, len(ill), len(peers))
        likeness = hit / (reached + len(ill) - hit)
        best = np.lexsort((found, -self._graph.depths[found], -likeness, -bans))
        rows = zip(
            found[best].tolist(), hit[best].tolist(), reached[best].tolist(), bans[best].tolist(), strict=True
        )
        return tuple(
            Shared(
                subject=self._names[number],
                kind=self._kind_of[number],
                owner=self._owners[number],
                reached=reached_by_it,
                hit=hit_by_it,
                symptoms=len(ill),
                bans=weight,
            )
            for number, hit_by_it, reached_by_it, weight in rows
        )

    def path(self, cause: str, symptom: str) -> tuple[str, ...]:
        """The shortest path from the cause to the symptom, both included; () if there is none.

        Among several of the same length, one with the fewest seams, and always the same.
        """
        begin, end = self._number(cause), self._number(symptom)
        down = arrays.Search(self._graph.dependents, begin, end, self._owner_numbers)
        up = arrays.Search(self._graph.dependencies, end, begin, self._owner_numbers)
        # One end may have a much larger front than the other: the smaller front advances.
        while len(down.front) and len(up.front) and not (down.found or up.found):
            min(down, up, key=lambda search: len(search.front)).advance()
        way = down.way() if down.found else up.way()[::-1]
        return tuple(self._names[number] for number in way)

    def seams(self, path: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """The neighbours on a path that have different owners."""
        return tuple((one, other) for one, other in pairwise(path) if self.owner(one) != self.owner(other))

    def seam_counts(self) -> tuple[SeamCount, ...]:
        """All seams, by the kinds and owners on both sides, in the order of the causes' kinds."""
        causes = self._graph.dependencies.targets
        symptoms = np.repeat(np.arange(len(self)), np.diff(self._graph.dependencies.starts))
        crossing = self._owner_numbers[causes] != self._owner_numbers[symptoms]
        sides = [
            column[ends[crossing]]
            for ends in (causes, symptoms)
            for column in (self._kinds, self._owner_numbers)
        ]
        found, counts = np.unique(np.stack(sides, axis=1), axis=0, return_counts=True)
        owners = list(dict.fromkeys(self._owners))
        return tuple(
            SeamCount(
                cause_kind=KINDS[row[0]],
                cause_owner=owners[row[1]],
                symptom_kind=KINDS[row[2]],
                symptom_owner=owners[row[3]],
                count=count,
            )
            for row, count in zip(found.tolist(), counts.tolist(), strict=True)
        )

    def _number(self, name: str) -> int:
        try:
            return self._index[name]
        except KeyError:
            raise self._unknown(name) from None

    def _numbers(self, names: Collection[str]) -> arrays.Counts:
        """Each once, ascending."""
        try:
            return np.unique(np.fromiter(map(self._index.__getitem__, names), np.int64, len(names)))
        except KeyError:
            raise self._unknown(next(name for name in names if name not in self._index)) from None

    def _unknown(self, name: str) -> InputError:
        hint = _likely(name, self._index) or "`holdfast topology show` tells what there is."
        return InputError(f"The topology has no subject {name!r}.", hint=hint)

    def _named(self, numbers: arrays.Indices, kind: Kind | None = None) -> tuple[str, ...]:
        if kind is not None:
            numbers = numbers[self._kinds[numbers] == _KIND_NUMBER[kind]]
        return tuple(map(self._names.__getitem__, numbers.tolist()))

    def _reach(self, peers: arrays.Counts) -> _Reach:
        """The dependencies of these peers; kept for the next query."""
        key = peers.tobytes()
        if key not in self._reaches:
            if len(self._reaches) >= REACHES_KEPT_MAX:
                del self._reaches[next(iter(self._reaches))]
            rows = arrays.closure(self._graph.dependencies, peers, len(self._names))
            self._reaches[key] = _Reach(rows, np.bincount(rows.targets, minlength=len(self._names)))
        return self._reaches[key]


def _ordered(kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    """The names by kind, then by name with numbers by their value."""
    by_kind: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
    for name, kind in kinds.items():
        by_kind[kind].append(name)
    return tuple(name for names in by_kind.values() for name in in_order(names))


def in_order(names: Iterable[str]) -> list[str]:
    """The names in natural order: n2 before n10."""

    def natural(name: str) -> tuple[str, str]:
        return _DIGITS.sub(lambda digits: digits[0].zfill(_DIGITS_PADDED), name), name

    return sorted(names, key=natural)


def _cyclic(names: Sequence[str], dependencies: arrays.Rows, depths: arrays.Indices) -> InputError:
    """The error that names a cycle: a walk among CYCLIC subjects returns at some point."""
    number, met = int(np.flatnonzero(depths == arrays.CYCLIC)[0]), dict[int, int]()
    while number not in met:
        met[number] = len(met)
        beneath = dependencies.of(number)
        number = int(beneath[depths[beneath] == arrays.CYCLIC][0])
    cycle = [repr(names[other]) for other in met][met[number] :]
    shown = cycle if len(cycle) <= CYCLE_SHOWN_MAX else [*cycle[:CYCLE_SHOWN_MAX], "others"]
    return InputError(
        f"The topology has a cycle: {' depends on '.join([*shown, cycle[0]])}.",
        hint="Leave out the dependency that is the wrong way round: the first named suffers from the second.",
    )


def _bans(hit: arrays.Counts, reached: arrays.Counts, ill: int, peers: int) -> NDArray[np.float64]:
    """How much likelier the symptoms are if the share beneath a cause differs from the rest.

    A likelihood ratio of two binomials against one, each at its likeliest share, in powers of ten; negative
    if the share beneath is the smaller one.
    """
    missed, elsewhere = ill - hit, peers - reached
    apart = _likelihood(hit, reached) + _likelihood(missed, elsewhere)
    together = _likelihood(np.array([ill]), np.array([peers]))
    sign = np.where(hit * elsewhere >= missed * reached, 1.0, -1.0)
    return sign * np.maximum(apart - together, 0.0)


def _likelihood(ill: arrays.Counts, all_of_them: arrays.Counts) -> NDArray[np.float64]:
    """The log10 likelihood of `ill` symptoms among all, at the likeliest share."""
    well = all_of_them - ill
    return _times_log(ill, ill / np.maximum(all_of_them, 1)) + _times_log(
        well, well / np.maximum(all_of_them, 1)
    )


def _times_log(times: arrays.Counts, share: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 times anything is 0."""
    return times.astype(np.float64) * np.log10(np.where(times > 0, share, 1.0))


def _likely(name: str, known: Collection[str]) -> str:
    """A hint with a similar known name; empty if there is none."""
    alike = (other for other in known if abs(len(other) - len(name)) <= LIKENESS_LENGTHS_MAX)
    candidates = list(islice(alike, LIKENESS_NAMES_MAX))
    return nearest(name, candidates, "", likeness=LIKENESS_MIN, quote="'")
