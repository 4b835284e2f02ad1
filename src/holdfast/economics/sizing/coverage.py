"""What replicas of several GPUs survive under `holdfast run --shard`: the loss of a rank, a node or a rack.

As docs/sharded.md has it: a lost rank's part is in every other replica; a replica that lacks a rank is
shelved; where there is one replica only, ranks mirror each other. Replicas take their GPUs in the order of
nodes, and nodes stand in racks in that order.
"""

from typing import Literal

import msgspec

REFILL_S = 2.0
"""From the loss of a rank to the next step of all, with a warm process: 2 replicas of 2 ranks on an H200,
`holdfast bench sharded` (docs/benchmarks.md). Taken for a refill from a mirror, too."""
SHELVE_S = 2.9
"""The same without one: the other replica goes on."""

LostThing = Literal["rank", "node", "rack"]
ReplicaOutcome = Literal["refilled", "shelved", "mirrored", "checkpoint"]


class ReplicaGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas on a cluster. lanes: for all of them, counted in what a replica computes at a time; None: not
    known, and taken to be shared out evenly.
    """

    replicas: int
    ranks: int
    gpus_per_node: int
    nodes_per_rack: int
    spare_nodes: int = 0
    lanes: int | None = None

    @property
    def nodes(self) -> int:
        return -(-self.replicas * self.ranks // self.gpus_per_node)


class ReplicaLoss(msgspec.Struct, frozen=True, kw_only=True):
    """One thing lost, and what then happens.

    outcome   refilled: somebody takes the place and gets its part from another replica. shelved: the other
              replicas go on without. mirrored: the part is in another rank's memory. checkpoint: it is not
    goes_on   whether training does, without a repair
    replicas  that step meanwhile
    after_s   from the loss to the next step that all have committed, beyond that step's own time; None where
              that depends on a repair or a checkpoint
    slowdown  a step's time after that over what it was; None where none is made
    """

    lost: LostThing
    outcome: ReplicaOutcome
    goes_on: bool
    replicas: int
    after_s: float | None
    slowdown: float | None
    sentence: str


def losses(grid: ReplicaGrid) -> tuple[ReplicaLoss, ...]:
    """Of a rank, of a node and of a rack, where the run has more than one."""
    found = [_rank_lost(grid), _nodes_lost(grid, "node", 1)]
    if grid.nodes > 1 and grid.nodes_per_rack > 1:
        found.append(_nodes_lost(grid, "rack", min(grid.nodes_per_rack, grid.nodes)))
    return tuple(found)


def mirror_distance(ranks: int, gpus_per_node: int) -> int:
    """How many ranks behind a rank of the only replica its mirror is: on the next node, if there is one."""
    return gpus_per_node if ranks > gpus_per_node else 1


def _rank_lost(grid: ReplicaGrid) -> ReplicaLoss:
    if grid.replicas == grid.ranks == 1:
        return _gone("rank")
    outcome: ReplicaOutcome = "refilled" if grid.replicas > 1 else "mirrored"
    whence = "the same rank of another replica" if grid.replicas > 1 else "its mirror"
    return ReplicaLoss(
        lost="rank",
        outcome=outcome,
        goes_on=True,
        replicas=grid.replicas,
        after_s=REFILL_S,
        slowdown=1.0,
        sentence=f"a warm process takes its place, with its part from {whence}",
    )


def _nodes_lost(grid: ReplicaGrid, lost: LostThing, nodes: int) -> ReplicaLoss:
    gpus = nodes * grid.gpus_per_node
    left = grid.replicas - min(grid.replicas, -(-gpus // grid.ranks))
    has_spares = grid.spare_nodes >= nodes
    if left:
        spares = "a spare node takes" if nodes == 1 else "spare nodes take"
        then = f"; {spares} its place" if has_spares else ""
        return ReplicaLoss(
            lost=lost,
            outcome="refilled" if has_spares else "shelved",
            goes_on=True,
            replicas=left,
            after_s=SHELVE_S,
            slowdown=1.0 if has_spares else _slowdown(grid, left),
            sentence=f"{left:,} of {grid.replicas:,} replicas go on{then}",
        )
    if grid.replicas > 1 or not _has_mirrors(grid, gpus):
        return _gone(lost)
    return ReplicaLoss(
        lost=lost,
        outcome="mirrored",
        goes_on=has_spares,
        replicas=1 if has_spares else 0,
        after_s=REFILL_S if has_spares else None,
        slowdown=1.0 if has_spares else None,
        sentence="a spare node takes its place, with its parts from their mirrors"
        if has_spares
        else "the run waits until the node is back, and goes on from mirrors",
    )


def _has_mirrors(grid: ReplicaGrid, lost_gpus: int) -> bool:
    """Whether what the first of its nodes had is on the others."""
    distance = mirror_distance(grid.ranks, grid.gpus_per_node)
    lost = range(min(lost_gpus, grid.ranks))
    return all((rank + distance) % grid.ranks not in lost for rank in lost)


def _slowdown(grid: ReplicaGrid, left: int) -> float:
    if grid.lanes is None:
        return grid.replicas / left
    return -(-grid.lanes // left) / -(-grid.lanes // grid.replicas)


def _gone(lost: LostThing) -> ReplicaLoss:
    return ReplicaLoss(
        lost=lost,
        outcome="checkpoint",
        goes_on=False,
        replicas=0,
        after_s=None,
        slowdown=None,
        sentence="no copy of a part is left: back to the checkpoint",
    )
