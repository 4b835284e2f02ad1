"""How replicas of several GPUs survive the loss of a rank, a node or a rack under `holdfast run --shard`.

docs/sharded.md has the rules: every other replica has a lost rank's part; a replica that lacks a rank is
shelved; with only one replica, ranks mirror each other. Replicas take their GPUs in the order of nodes, and
nodes stand in racks in that order.
"""

from typing import Literal

import msgspec

REFILL_S = 2.0
"""From the loss of a rank to the next step of all, with a warm process: 2 replicas of 2 ranks on an H200,
`holdfast bench sharded` (docs/benchmarks.md). Also assumed for a refill from a mirror."""
SHELVE_S = 2.9
"""The same without a warm process: the other replica goes on."""

LostThing = Literal["rank", "node", "rack"]
ReplicaOutcome = Literal["refilled", "shelved", "mirrored", "checkpoint"]


class ReplicaGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas on a cluster. lanes: of all replicas, each lane being what a replica computes at a time; None:
    unknown, and assumed to be dealt evenly.
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
    """The loss of a rank, node or rack, and its consequences.

    outcome   refilled: a new process takes the place and gets its part from another replica. shelved: the
              other replicas go on without it. mirrored: another rank's memory has the part. checkpoint: no
              memory has it
    goes_on   whether training goes on without a repair
    replicas  how many step meanwhile
    after_s   from the loss to the next step that all have committed, without that step's own time; None if
              it depends on a repair or a checkpoint
    slowdown  a step's time afterwards over the time before; None if there are no steps
    """

    lost: LostThing
    outcome: ReplicaOutcome
    goes_on: bool
    replicas: int
    after_s: float | None
    slowdown: float | None
    sentence: str


def losses(grid: ReplicaGrid) -> tuple[ReplicaLoss, ...]:
    """The losses of a rank, of a node and, if the run has several nodes, of a rack."""
    found = [_rank_lost(grid), _nodes_lost(grid, "node", 1)]
    if grid.nodes > 1 and grid.nodes_per_rack > 1:
        found.append(_nodes_lost(grid, "rack", min(grid.nodes_per_rack, grid.nodes)))
    return tuple(found)


def mirror_distance(ranks: int, gpus_per_node: int) -> int:
    """How many ranks after a rank of the only replica its mirror is: on the next node, if there is one."""
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
    """Whether the remaining GPUs mirror all parts on the first `lost_gpus` GPUs."""
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
