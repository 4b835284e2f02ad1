"""Groups in the topology file: the nodes of each rack, loop, leaf or mount.

An entry is `4 each` (this many each, in order, of those that no other entry has), `16 each by rail` (the same
for nodes, with a leaf for each port), `all`, or a host list of exactly these. The first three may be followed
by `of LIST` to choose from that list alone.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.record.errors import InputError
from holdfast.topology.hostlist import expand, fold
from holdfast.topology.names import port_name
from holdfast.topology.survey import Doubt

_DEALING = re.compile(
    r"(?:(?P<size>[1-9][0-9]{0,8}) each(?P<rail> by rail)?|(?P<all>all))(?: of (?P<from>.+))?"
)


class HostGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One entry: `heads` (racks, for example) and the text that says what is on them."""

    heads: list[str]
    who: str | list[str]
    line: int


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A subject on a head, and the line that says so."""

    name: str
    on: str
    line: int


def deal(
    groups: Sequence[HostGroup], below: Sequence[str], ports: Mapping[str, Sequence[str]], doubts: list[Doubt]
) -> Iterator[Placed]:
    """Place the names on the heads.

    below: all names that may be dealt out, in order; ports: of each node. A name in a host list is not dealt
    out by an entry such as `4 each`. Groups that do not come out even are added to `doubts`.
    """
    named = {name for group in groups if not _dealing(group.who) for name in _named(group)}
    left = [name for name in below if name not in named]
    for group in groups:
        dealing = _dealing(group.who)
        if dealing is None:
            yield from _each_with_all(group, _named(group))
            continue
        pool = _expanded(group, dealing["from"]) if dealing["from"] else left
        if dealing["all"]:
            yield from _each_with_all(group, pool)
            continue
        size = int(dealing["size"])
        rails = _rails(group, pool, ports) if dealing["rail"] else 0
        taken = pool[: size * (len(group.heads) // max(1, rails))]
        placed = [*(_by_rail(group, taken, size, ports) if rails else _in_order(group, taken, size))]
        yield from placed
        _judge(group, size, Counter(one.on for one in placed), doubts)
        if not dealing["from"]:
            left = left[len(taken) :]
        elif len(taken) < len(pool):
            over = tuple(pool[len(taken) :])
            text = f"line {group.line}: {fold(over)} {'is' if len(over) == 1 else 'are'} left over."
            doubts.append(Doubt(kind="grouping", subjects=over, text=text))


def _in_order(group: HostGroup, names: Sequence[str], size: int) -> Iterator[Placed]:
    for index, name in enumerate(names):
        yield Placed(name=name, on=group.heads[index // size], line=group.line)


def _by_rail(
    group: HostGroup, nodes: Sequence[str], size: int, ports: Mapping[str, Sequence[str]]
) -> Iterator[Placed]:
    for index, node in enumerate(nodes):
        for rail, port in enumerate(ports[node]):
            head = group.heads[index // size * len(ports[node]) + rail]
            yield Placed(name=port_name(node, port), on=head, line=group.line)


def _dealing(who: str | list[str]) -> "re.Match[str] | None":
    return _DEALING.fullmatch(who.strip()) if isinstance(who, str) else None


def _each_with_all(group: HostGroup, names: Sequence[str]) -> Iterator[Placed]:
    return (Placed(name=name, on=head, line=group.line) for name in names for head in group.heads)


def _named(group: HostGroup) -> list[str]:
    texts = [group.who] if isinstance(group.who, str) else group.who
    return [name for text in texts for name in _expanded(group, text)]


def _expanded(group: HostGroup, text: str) -> list[str]:
    try:
        return expand(text)
    except InputError as error:
        raise InputError(
            f"line {group.line}: {error.sentence}",
            hint="Say who: `4 each`, `16 each by rail`, `all`, or a host list such as n[00-15].",
        ) from None


def _rails(group: HostGroup, nodes: Sequence[str], ports: Mapping[str, Sequence[str]]) -> int:
    """The number of ports of each node, which must be the same for all."""
    counts = {len(ports.get(node, ())) for node in nodes}
    if len(counts) != 1 or counts == {0}:
        raise InputError(
            f"line {group.line}: Not all nodes have equally many ports, so they have no rails in common.",
            hint="Name the nodes that have, as in `16 each by rail of n[00-15]`.",
        )
    return counts.pop()


def _judge(group: HostGroup, size: int, filled: Mapping[str, int], doubts: list[Doubt]) -> None:
    partly = [head for head in group.heads if 0 < filled.get(head, 0) < size]
    empty = [head for head in group.heads if head not in filled]
    if not (partly or empty):
        return
    parts = []
    if partly:
        parts.append(f"{fold(partly)} {_has(partly)} {filled[partly[0]]} of {size}")
    if empty:
        parts.append(f"{fold(empty)} {_has(empty)} nothing")
    text = f"line {group.line}: {size} each does not come out even: {' and '.join(parts)}."
    doubts.append(Doubt(kind="grouping", subjects=(*partly, *empty), text=text))


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
