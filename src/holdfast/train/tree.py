"""The fixed binary tree over lane numbers: which member computes which lanes, and in what order they are
added.

A node of the tree is (level, index): the lanes from index * 2**level up to (index + 1) * 2**level. Adding
along this tree and no other makes the sum independent of which member computed what. Pure arithmetic, no
tensors.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

Node = tuple[int, int]


class Addition(NamedTuple):
    """The sum of two subtrees, and its node."""

    node: Node
    left: Node
    right: Node


LANES_MAX = 1 << 16


def is_lane_count(lanes: int) -> bool:
    return 0 < lanes <= LANES_MAX and lanes & (lanes - 1) == 0


def root(lanes: int) -> Node:
    return lanes.bit_length() - 1, 0


def sibling(node: Node) -> Node:
    level, index = node
    return level, index ^ 1


def parent(node: Node) -> Node:
    level, index = node
    return level + 1, index >> 1


def children(node: Node) -> tuple[Node, Node]:
    level, index = node
    return (level - 1, 2 * index), (level - 1, 2 * index + 1)


def lanes_of(node: Node) -> range:
    """The lanes below it."""
    level, index = node
    return range(index << level, (index + 1) << level)


def in_common(held: Sequence[frozenset[int]]) -> frozenset[int]:
    """The lanes that all of several members hold, in sums that can be kept: a sum with more
    lanes is useless.
    """
    common = frozenset.intersection(*held)
    while True:
        kept = [
            frozenset(
                lane for node in cover(lanes) if common.issuperset(lanes_of(node)) for lane in lanes_of(node)
            )
            for lanes in held
        ]
        if all(lanes == common for lanes in kept):
            return common
        common = frozenset.intersection(*kept)


def additions(lanes: int, held: Collection[Node]) -> tuple[list[Addition], Node]:
    """The order in which these subtrees are added up, and the node of the whole sum.

    Lanes that are in none of them were skipped: a node with only one child has that child's value. So the sum
    depends on which lanes are in it, and not on which member holds them.
    """
    order: list[Addition] = []
    above = {node for one in held for node in _ancestors(one, root(lanes))}

    def visit(node: Node) -> Node | None:
        if node in held:
            return node
        if node not in above:
            return None
        left, right = map(visit, children(node))
        if left is None or right is None:
            return left or right
        order.append(Addition(node, left, right))
        return node

    top = visit(root(lanes))
    assert top is not None
    return order, top


def _ancestors(node: Node, top: Node) -> Iterable[Node]:
    while node != top:
        node = parent(node)
        yield node


def deal(lanes: int, members: int) -> tuple[range, ...]:
    """One run of neighbouring lanes for each member, with sizes as equal as possible.

    If the number of members is a power of two, each run is one whole subtree, and the reduction moves as many
    bytes as a ring all-reduce does. Otherwise a member may hold several subtrees; see `cover`.
    """
    size, larger = divmod(lanes, members)
    starts = [rank * size + min(rank, larger) for rank in range(members + 1)]
    return tuple(range(start, stop) for start, stop in pairwise(starts))


def deal_shares(lanes: int, shares: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """This many lanes for each member, with as few changes against `deal` as possible.

    A member with fewer lanes gives up the last ones of its run. These are passed on from left to right, to
    members with more: runs make few subtrees (`cover`), and a member that computed a lane before has its data
    at hand.
    """
    dealt = [[*run[:count]] for run, count in zip(deal(lanes, len(shares)), shares, strict=True)]
    free = sorted(set(range(lanes)).difference(*dealt))
    for own, count in zip(dealt, shares, strict=True):
        taken = count - len(own)
        own.extend(free[:taken])
        free = free[taken:]
    return tuple(tuple(sorted(own)) for own in dealt)


def cover(lanes: Iterable[int]) -> tuple[Node, ...]:
    """The largest subtrees that hold exactly these lanes, from left to right."""
    nodes: set[Node] = set()
    for lane in lanes:
        node = (0, lane)
        while sibling(node) in nodes:
            nodes.remove(sibling(node))
            node = parent(node)
        nodes.add(node)
    return tuple(sorted(nodes, key=lambda node: node[1] << node[0]))


def without(lanes: int, room: int, held: Collection[int], dealt: Collection[int]) -> frozenset[int]:
    """The lanes of a step that are skipped if no more than `room` of them can be computed.

    Of the lanes that no member holds, those that no member is computing are skipped first: a lost member's
    share. It begins with the last lane, and never skips lane 0, which counts for all where numbers cannot be
    averaged.
    """
    missing = sorted(set(range(1, lanes)).difference(held), key=lambda lane: (lane in dealt, -lane))
    return frozenset(missing[: max(0, lanes - room)])


def deal_missing(
    lanes: int, held: Sequence[frozenset[int]], skipped: frozenset[int] = frozenset()
) -> tuple[tuple[int, ...], ...]:
    """Who computes the lanes that no member holds, in a step that continues with other members than it began
    with.

    `held` are the lanes that each member has already computed, none of them twice; their number does not
    matter any more. The step ends soonest if the rest is shared evenly: no member gets more than the missing
    lanes divided by the members, rounded up. A member first gets missing lanes of its own share. The others
    go, in runs of neighbours, to members that still have room: runs make few subtrees (`cover`), and few
    bytes.
    """
    members = len(held)
    missing = set(range(lanes)).difference(skipped, *held)
    room = -(-len(missing) // members)
    dealt: list[list[int]] = []
    kept = sorted(set(range(lanes)).difference(skipped))
    for share in deal(len(kept), members):
        own = sorted(missing.intersection(kept[share.start : share.stop]))[:room]
        dealt.append(own)
        missing.difference_update(own)
    left = sorted(missing)
    for own in dealt:
        taken = room - len(own)
        own.extend(left[:taken])
        left = left[taken:]
    return tuple(tuple(sorted(own)) for own in dealt)
