"""What a run would lose now: how old its newest snapshot is, and the newest that two nodes have.

Members of a node keep one copy of the state together, so a node's is as old as the oldest of their shares. Of
a sharded model each rank keeps its part, so the run's is as old as the part of which it has the oldest.
"""

from collections import defaultdict
from typing import NamedTuple

from holdfast.run.state import Member, RunState


class KeptSteps(NamedTuple):
    """The newest step of which a node has a snapshot, or each part's does; the newest that two have. None:
    there is none.
    """

    once: int | None
    twice: int | None


def kept_steps(state: RunState) -> KeptSteps:
    generation = state.generations.formed
    names = () if generation is None else generation.members
    present = [member for name in names if (member := state.roster.members.get(name)) is not None]
    parts: dict[int, list[Member]] = defaultdict(list)
    for member in present:
        parts[member.rail].append(member)
    best = [_best_two(members) for members in parts.values()]
    once = min((first for first, _ in best), default=0)
    twice = min((second for _, second in best), default=0)
    return KeptSteps(once or None, twice or None)


def _best_two(members: list[Member]) -> tuple[int, int]:
    """The newest steps that one node, and that two nodes, have; 0: none. A node has nothing while one of its
    members has no share.
    """
    nodes: dict[str, int] = {}
    for member in members:
        nodes[member.node] = min(nodes.get(member.node, member.snapshot), member.snapshot)
    first, second, *_ = *sorted(nodes.values(), reverse=True), 0, 0
    return first, second
