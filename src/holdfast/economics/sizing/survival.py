"""The effect of a lost node on a layout: whether the run goes on, with what, and how fast.

A run goes on with the remaining replicas: they take over the micro-batches, or lanes, of the lost ones, so
the global batch and the training stay the same.
"""

import math

import msgspec

from holdfast.economics.sizing.coverage import ReplicaGrid, ReplicaLoss, losses
from holdfast.economics.sizing.memory import memory_range
from holdfast.economics.sizing.pace import pace
from holdfast.economics.sizing.parallelism import Parallelism, SizingCase
from holdfast.ledger.references import MfuReference


class Survival(msgspec.Struct, frozen=True, kw_only=True):
    """The state after the loss of one node.

    survives     whether training goes on without waiting for a repair
    sentence     how, or why not
    dp           replicas that go on
    idle_gpus    healthy GPUs whose replica is incomplete
    slowdown     a step's time over the time before; None: no steps
    needs_saved  whether state is lost that no other GPU has and that must come from a snapshot or checkpoint
    """

    survives: bool
    sentence: str
    dp: int
    idle_gpus: int
    slowdown: float | None
    needs_saved: bool


def survival(case: SizingCase, layout: Parallelism, reference: MfuReference) -> Survival:
    """The effect of a lost node. Each node is assumed to hold parts of as few replicas as possible."""
    if layout.shard is not None:
        return _copies_left(case, layout, reference)
    lost = _replicas_lost(case, layout)
    left = max(0, layout.dp - lost)
    idle = min(lost, layout.dp) * layout.replica_gpus - min(case.cluster.gpus_per_node, layout.gpus)
    needs_saved, survives = layout.zero > 0, False
    slowdown: float | None = None
    if case.cluster.spare_nodes:
        left, idle, slowdown, survives = layout.dp, 0, 1.0, True
        sentence, needs_saved = "a spare node takes its place", needs_saved or layout.dp == 1
    elif left == 0:
        sentence, needs_saved = "no complete replica is left, and there is no spare node", True
    else:
        after = msgspec.structs.replace(layout, dp=left)
        needed = memory_range(case, after).low_bytes
        slowdown = pace(case, after, reference).busy_s / pace(case, layout, reference).busy_s
        survives = needed <= case.cluster.memory_bytes
        sentence = f"{left:,} of {layout.dp:,} replicas go on"
        if not survives:
            sentence = (
                f"with {left:,} of {layout.dp:,} replicas a GPU needs {needed / 2**30:,.1f} GiB or more"
            )
    return Survival(
        survives=survives,
        sentence=sentence,
        dp=left,
        idle_gpus=max(0, idle),
        slowdown=slowdown,
        needs_saved=needs_saved,
    )


def replica_losses(case: SizingCase, layout: Parallelism) -> tuple[ReplicaLoss, ...]:
    """The effect of a lost rank, node and rack; empty unless the layout is one of `holdfast run --shard`."""
    if layout.shard is None:
        return ()
    lanes = case.training.lanes
    return losses(
        ReplicaGrid(
            replicas=layout.copies,
            ranks=layout.copy_gpus,
            gpus_per_node=case.cluster.gpus_per_node,
            nodes_per_rack=case.cluster.nodes_per_rack,
            spare_nodes=case.cluster.spare_nodes,
            lanes=None if lanes is None else lanes // layout.shard,
        )
    )


def _copies_left(case: SizingCase, layout: Parallelism, reference: MfuReference) -> Survival:
    """The same for replicas of several members, whose parts have copies: only the pace changes."""
    found = replica_losses(case, layout)[1]
    slowdown = found.slowdown
    if found.outcome == "shelved":
        after = msgspec.structs.replace(layout, dp=found.replicas * (layout.shard or 1))
        slowdown = pace(case, after, reference).busy_s / pace(case, layout, reference).busy_s
    lost = layout.copies - found.replicas
    idle = lost * layout.copy_gpus - min(case.cluster.gpus_per_node, layout.gpus)
    return Survival(
        survives=found.goes_on,
        sentence=found.sentence,
        dp=found.replicas,
        idle_gpus=max(0, idle) if found.outcome == "shelved" else 0,
        slowdown=slowdown,
        needs_saved=found.outcome == "checkpoint",
    )


def _replicas_lost(case: SizingCase, layout: Parallelism) -> int:
    """Replicas lost with a node. Replicas that hold parts of the same experts are lost together."""
    touched = math.ceil(case.cluster.gpus_per_node / layout.replica_gpus)
    together = layout.ep // math.gcd(layout.ep, layout.cp)
    return math.ceil(touched / together) * together
