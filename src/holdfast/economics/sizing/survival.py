"""What the loss of a node does to a layout: whether the run goes on, with what, and how fast.

A run goes on with the replicas that are left: they take over the micro-batches, or lanes, of those that are
gone, so the global batch and with it the training stay what they were.
"""

import math

import msgspec

from holdfast.economics.sizing.memory import memory_range
from holdfast.economics.sizing.pace import pace
from holdfast.economics.sizing.parallelism import Parallelism, SizingCase
from holdfast.ledger.references import MfuReference


class Survival(msgspec.Struct, frozen=True, kw_only=True):
    """After the loss of one node.

    survives     whether training goes on without waiting for a repair
    sentence     how, or why not
    dp           replicas that go on
    idle_gpus    GPUs that are well, but whose replica is not complete
    slowdown     a step's time over what it was; None: there is none
    needs_saved  whether state is lost that no other GPU has, and comes from a snapshot or a checkpoint
    """

    survives: bool
    sentence: str
    dp: int
    idle_gpus: int
    slowdown: float | None
    needs_saved: bool


def survival(case: SizingCase, layout: Parallelism, reference: MfuReference) -> Survival:
    """Replicas are taken to be placed so that a node holds parts of as few as can be."""
    lost = _replicas_lost(case, layout)
    left = max(0, layout.dp - lost)
    needs_saved = layout.zero > 0
    if case.cluster.spare_nodes:
        return Survival(
            survives=True,
            sentence="a spare node takes its place",
            dp=layout.dp,
            idle_gpus=0,
            slowdown=1.0,
            needs_saved=needs_saved or layout.dp == 1,
        )
    idle = min(lost, layout.dp) * layout.replica_gpus - min(case.cluster.gpus_per_node, layout.gpus)
    if left == 0:
        return Survival(
            survives=False,
            sentence="no complete replica is left, and there is no spare node",
            dp=0,
            idle_gpus=max(0, idle),
            slowdown=None,
            needs_saved=True,
        )
    after = msgspec.structs.replace(layout, dp=left)
    needed = memory_range(case, after).low_bytes
    slowdown = pace(case, after, reference).busy_s / pace(case, layout, reference).busy_s
    too_much = f"with {left:,} of {layout.dp:,} replicas a GPU needs {needed / 2**30:,.1f} GiB or more"
    is_enough = needed <= case.cluster.memory_bytes
    return Survival(
        survives=is_enough,
        sentence=f"{left:,} of {layout.dp:,} replicas go on" if is_enough else too_much,
        dp=left,
        idle_gpus=max(0, idle),
        slowdown=slowdown,
        needs_saved=needs_saved,
    )


def _replicas_lost(case: SizingCase, layout: Parallelism) -> int:
    """With experts shared out, all replicas that hold a part of the same ones go together."""
    touched = math.ceil(case.cluster.gpus_per_node / layout.replica_gpus)
    together = layout.ep // math.gcd(layout.ep, layout.cp)
    return math.ceil(touched / together) * together
