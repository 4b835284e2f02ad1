"""How much work a run would lose now: the steps of its newest snapshot and of the newest on two nodes.

Members of a node keep one copy of the state together, so a node's copy is as old as the oldest of their
shares. In a sharded model each rank keeps its part, so the run's copy is as old as its oldest part.
"""

from collections import defaultdict
from typing import NamedTuple

from holdfast.run.state import Member, RunState


class KeptSteps(NamedTuple):
    """The newest step whose snapshot is on a node (each part on one, if sharded), and the newest that two
    nodes have. None if there is none.
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
    """The newest step that one node has, and the newest that two nodes have; 0 for none. A node has no copy
    while one of its members has no share.
    """
    nodes: dict[str, int] = {}
    for member in members:
        nodes[member.node] = min(nodes.get(member.node, member.snapshot), member.snapshot)
    first, second, *_ = *sorted(nodes.values(), reverse=True), 0, 0
    return first, second
