"""Where the ranks of a job are stuck, from its flight recorder: in which collective, and which ranks are
missing.

Collectives of a process group have the same numbers on all its ranks. The group is stuck in the first one
that some rank has not finished. Ranks that have not entered it, or have entered another call under that
number, hold the others up, unless they are stuck in another call themselves: then that call is the origin.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from holdfast.signals.flight_dumps import CodeLine, FlightDump, FlightDumps, RecordedCall

STANDSTILLS_MAX = 64
PLACES_MAX = 8
WORLD = "default_pg"
"""Torch's name for the group of all ranks."""
SAME_INPUTS = frozenset({"all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter"})
SAME_OUTPUTS = frozenset({"all_gather"})
"""Collectives whose inputs, or whose outputs, must have the same total number of elements on all ranks."""

_ENDS = re.compile(r"(?:send|recv) (\d{1,9})(->|<-)(\d{1,9})")
_DECORATION = re.compile(r"^_|_oop$|_base$|_coalesced$|_into_tensor(?=_|$)|_tensor(?=_|$)")

Kind = Literal["absent", "other", "not-started", "everybody", "unknown"]
"""Why it does not end: some ranks have not entered it; some have entered another call; some GPUs have queued
it behind other work; all ranks are in it and nothing moves; or the dumps do not name the group's ranks.
"""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where some ranks are: in a call, or after their last one. call: empty if unknown.

    lines: of their program, the innermost first; empty if the dump has none.
    """

    ranks: tuple[int, ...]
    call: str
    group: str
    seq: int
    is_finished: bool
    elements: int
    types: tuple[str, ...]
    lines: tuple[CodeLine, ...]


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """A collective, or a send or receive, that does not end.

    inside    the ranks that are in it; `others`: where the ranks are that should be in it and are not
    absent    the ranks that have not entered it, according to their dumps
    holding   the ranks that these wait for; if there are several, those that are not stuck themselves
    undumped  the group's ranks without a usable dump
    unreadable   those of them with a damaged file
    size      the number of ranks in the group, as far as known; for a send or receive, two
    since_ns  when the first rank entered it
    """

    kind: Kind
    inside: Place
    others: tuple[Place, ...]
    absent: tuple[int, ...]
    holding: tuple[int, ...]
    undumped: tuple[int, ...]
    size: int
    since_ns: int
    timed_out: bool
    unreadable: tuple[int, ...] = ()


class RanksStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What the dumps tell.

    standstills  those first that are not caused by another one
    idle         where the ranks are, if no rank is stuck in a call
    undumped     ranks without a usable dump; unreadable: why a file cannot be used
    circular     ranks wait for each other, in different calls
    stacks       by rank, where its main thread is, if stacks were taken
    """

    ranks: int
    standstills: tuple[Standstill, ...]
    idle: tuple[Place, ...]
    undumped: tuple[int, ...]
    unreadable: dict[int, str]
    circular: bool
    stacks: dict[int, tuple[CodeLine, ...]] = {}

    @property
    def holding(self) -> tuple[int, ...]:
        """The ranks to examine."""
        return self.standstills[0].holding if self.standstills else self.undumped


class _Group(NamedTuple):
    name: str
    purpose: str
    members: tuple[int, ...]
    is_known: bool = True
    """False: torch did not list the members, so these are only the ranks with a call in the group."""

    def holds(self, call: RecordedCall) -> bool:
        return call.group == self.name and call.purpose == self.purpose


class _Shape(NamedTuple):
    """What must be the same on all ranks. elements: -1 if it may differ."""

    name: str
    elements: int
    types: tuple[str, ...]


def standing(found: FlightDumps) -> RanksStanding:
    """Pure: the same dumps give the same answer. The work grows with the number of recorded calls."""
    dumps = {dump.rank: dump for dump in found.dumps}
    listed = {id(members): members for dump in found.dumps for members in dump.members.values()}
    told = {rank for members in listed.values() for rank in members}
    world = tuple(sorted({*dumps, *told, *found.unreadable}))
    busy = {rank for rank, dump in dumps.items() if any(call.state != "finished" for call in dump.calls)}
    stands: list[Standstill] = []
    for group in _groups(dumps, world):
        for one in (*_collective(group, dumps), *_transfers(group, dumps)):
            unreadable = tuple(rank for rank in one.undumped if rank in found.unreadable)
            stands.append(_blaming(msgspec.structs.replace(one, unreadable=unreadable), busy))
    stands.sort(key=lambda one: (_comes_from_another(one, busy), one.since_ns, one.inside.group))
    return RanksStanding(
        ranks=len(world),
        standstills=tuple(stands[:STANDSTILLS_MAX]),
        idle=() if stands else _places((dumps[rank] for rank in sorted(dumps)), PLACES_MAX),
        undumped=tuple(rank for rank in world if rank not in dumps),
        unreadable=found.unreadable,
        circular=len(stands) > 1 and all(_comes_from_another(one, busy) for one in stands),
    )


def _blaming(one: Standstill, busy: set[int]) -> Standstill:
    """The standstill with only those holding ranks that do not wait themselves, if there are any."""
    idle = tuple(rank for rank in one.holding if rank not in busy)
    return msgspec.structs.replace(one, holding=idle) if one.kind == "absent" and idle else one


def _comes_from_another(one: Standstill, busy: set[int]) -> bool:
    """Whether the ranks that it waits for are stuck elsewhere themselves, or may be."""
    return one.kind == "unknown" or (one.kind == "absent" and busy.issuperset(one.holding))


def _groups(dumps: Mapping[int, FlightDump], world: tuple[int, ...]) -> list[_Group]:
    """The groups. Those split from others may share a name, and differ by their ranks."""
    callers: dict[tuple[str, str, int], set[int]] = {}
    declared: dict[int, tuple[int, ...]] = {}
    same: dict[tuple[int, ...], tuple[int, ...]] = {}
    for rank, dump in dumps.items():
        for name, purpose in dict.fromkeys((call.group, call.purpose) for call in dump.calls):
            # Ranks share these lists; comparing them for each rank would be quadratic.
            listed = dump.members.get(name, ())
            if id(listed) not in declared:
                declared[id(listed)] = same.setdefault(listed, listed)
            callers.setdefault((name, purpose, id(declared[id(listed)])), set()).add(rank)
    return [
        _Group(name, purpose, members)
        if (members := declared[place])
        else _Group(name, purpose, world)
        if purpose == WORLD
        else _Group(name, purpose, tuple(sorted(ranks)), is_known=False)
        for (name, purpose, place), ranks in callers.items()
    ]


def _collective(group: _Group, dumps: Mapping[int, FlightDump]) -> Iterator[Standstill]:
    """The first collective of a group that some rank has not finished."""
    calls = {
        rank: [call for call in dumps[rank].calls if group.holds(call) and not call.is_p2p]
        for rank in group.members
        if rank in dumps
    }
    unfinished = [call.seq for made in calls.values() for call in made if call.state != "finished"]
    if not unfinished:
        return
    seq = min(unfinished)
    entered = {rank: at for rank, made in calls.items() if (at := [call for call in made if call.seq == seq])}
    waiting = {rank: at for rank, at in entered.items() if any(call.state != "finished" for call in at)}
    shapes = {
        rank: tuple(map(_shape, sorted(at, key=lambda call: call.order))) for rank, at in entered.items()
    }
    shape = Counter(shapes[rank] for rank in waiting).most_common(1)[0][0]
    inside = [rank for rank in waiting if shapes[rank] == shape]
    other = [rank for rank in entered if shapes[rank] != shape]
    absent = [rank for rank in calls if rank not in entered and dumps[rank].reached.get(group.name, -1) < seq]
    undumped = tuple(rank for rank in group.members if rank not in dumps)
    started = {rank for rank in inside if any(call.state == "started" for call in waiting[rank])}
    queued = tuple(rank for rank in inside if rank not in started) if started else ()
    places = [
        *_placed(((rank, entered[rank][0]) for rank in other), PLACES_MAX),
        *_places((dumps[rank] for rank in absent), PLACES_MAX),
    ]
    kind: Kind = "everybody" if group.is_known else "unknown"
    if other:
        kind = "other"
    elif absent or undumped:
        kind = "absent"
    elif queued:
        kind = "not-started"
    yield Standstill(
        kind=kind,
        inside=_placed(((rank, waiting[rank][0]) for rank in inside), None)[0],
        others=tuple(places),
        absent=tuple(absent),
        holding=tuple(sorted({*other, *absent, *undumped})) or queued,
        undumped=undumped,
        size=len(group.members),
        since_ns=min(call.created_ns for rank in inside for call in waiting[rank]),
        timed_out=any(call.timed_out for rank in inside for call in waiting[rank]),
    )


def _transfers(group: _Group, dumps: Mapping[int, FlightDump]) -> Iterator[Standstill]:
    """Sends and receives that have not ended, matched with the other end by sender and receiver."""
    waiting: dict[tuple[int, int], dict[int, RecordedCall]] = {}
    for rank in group.members:
        for call in dumps[rank].calls if rank in dumps else ():
            if (
                call.is_p2p
                and call.state != "finished"
                and group.holds(call)
                and (ends := _ENDS.match(call.name))
            ):
                own, other = int(ends[1]), int(ends[3])
                if max(own, other) < len(group.members):
                    way = (own, other) if ends[2] == "->" else (other, own)
                    waiting.setdefault(way, {}).setdefault(rank, call)
    for places, calls in waiting.items():
        both = [group.members[place] for place in places]
        missing = [rank for rank in both if rank not in calls]
        undumped = tuple(rank for rank in missing if rank not in dumps)
        yield Standstill(
            kind="absent" if missing else "everybody",
            inside=_placed(calls.items(), None)[0],
            others=_places((dumps[rank] for rank in missing if rank in dumps), PLACES_MAX),
            absent=tuple(rank for rank in missing if rank in dumps),
            holding=tuple(missing),
            undumped=undumped,
            size=len(both),
            since_ns=min(call.created_ns for call in calls.values()),
            timed_out=any(call.timed_out for call in calls.values()),
        )


def _shape(call: RecordedCall) -> _Shape:
    kind, before = call.name, ""
    while kind != before:
        kind, before = _DECORATION.sub("", kind), kind
    sides = {True: call.inputs, False: call.outputs}
    side = sides[kind in SAME_INPUTS] if kind in SAME_INPUTS | SAME_OUTPUTS else None
    return _Shape(call.name, -1 if side is None else sum(side), call.types)


def _places(dumps: Iterable[FlightDump], count_max: int) -> tuple[Place, ...]:
    """The first call that each rank has not finished, or else its last one."""
    now: list[tuple[int, RecordedCall | None]] = []
    for dump in dumps:
        waiting = (call for call in dump.calls if call.state != "finished")
        now.append((dump.rank, next(waiting, dump.calls[-1] if dump.calls else None)))
    return _placed(now, count_max)


def _placed(calls: Iterable[tuple[int, RecordedCall | None]], count_max: int | None) -> tuple[Place, ...]:
    """Ranks grouped by place. count_max: of places; None for a single one, with the lines of most ranks."""
    by_place: dict[object, list[tuple[int, RecordedCall | None]]] = {}
    for rank, call in calls:
        key = (
            None if call is None else (call.name, call.group, call.seq, call.state == "finished", call.lines)
        )
        by_place.setdefault(None if count_max is None else key, []).append((rank, call))
    if count_max is None:
        count_max = 1
    found = sorted(by_place.values(), key=len, reverse=True)[:count_max]
    return tuple(_place(at) for at in found)


def _place(at: Sequence[tuple[int, RecordedCall | None]]) -> Place:
    ranks = tuple(sorted(rank for rank, _ in at))
    known = [call for _, call in at if call is not None]
    if not known:
        return Place(ranks=ranks, call="", group="", seq=-1, is_finished=True, elements=0, types=(), lines=())
    call = known[0]
    return Place(
        ranks=ranks,
        call=call.name,
        group=call.purpose or call.group,
        seq=call.seq,
        is_finished=call.state == "finished",
        elements=sum(call.inputs) or sum(call.outputs),
        types=call.types,
        lines=Counter(one.lines for one in known).most_common(1)[0][0],
    )
