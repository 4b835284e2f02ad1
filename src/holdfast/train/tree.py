"""The fixed binary tree over lane numbers: who computes which lanes, and in what order they are added.

A node of the tree is (level, index): the lanes from index * 2**level up to (index + 1) * 2**level. Adding
along this tree and no other is what makes the sum independent of who computed what. Pure arithmetic, no
tensors.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

Node = tuple[int, int]

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


def deal(lanes: int, members: int) -> tuple[range, ...]:
    """One run of neighbouring lanes for each member, sizes as equal as can be.

    For a power of two of members each run is one whole subtree, and the reduction moves as many bytes as a
    ring all-reduce does. Otherwise a member may hold several subtrees; see `cover`.
    """
    size, larger = divmod(lanes, members)
    starts = [rank * size + min(rank, larger) for rank in range(members + 1)]
    return tuple(range(start, stop) for start, stop in pairwise(starts))


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


def deal_missing(lanes: int, held: Sequence[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """Who computes what nobody holds, in a step that goes on with other members than it began with.

    `held` are the lanes each member has computed already, none of them twice; how many those are does not
    matter any more. The step ends soonest if what is left is shared evenly: nobody gets more than the missing
    lanes over the members, rounded up. A member first gets missing lanes of its own share. The others go, in
    runs of neighbours, to those who still have room: runs make few subtrees (`cover`), and few bytes.
    """
    members = len(held)
    missing = set(range(lanes)).difference(*held)
    room = -(-len(missing) // members)
    dealt: list[list[int]] = []
    for share in deal(lanes, members):
        own = sorted(missing.intersection(share))[:room]
        dealt.append(own)
        missing.difference_update(own)
    left = sorted(missing)
    for own in dealt:
        taken = room - len(own)
        own.extend(left[:taken])
        left = left[taken:]
    return tuple(tuple(sorted(own)) for own in dealt)
