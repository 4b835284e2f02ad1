"""Nine ways to continue after a failure, each with its times and their sources.

A policy is data. Under `restart` all members stop and go back to the saved state (restarting.py); under
`elastic` the others go on, as the production membership decides (elastic.py). Other systems' replica groups
are simulated with the same membership: they too drop lost members and admit returning ones, and the policy
holds the differences.
"""

from typing import Literal

import msgspec
import numpy as np

from holdfast.economics.sizing.coverage import REFILL_S, SHELVE_S
from holdfast.record.errors import InputError, nearest

Recovery = Literal["restart", "elastic"]

_META = "Fault Tolerant HSDP (arXiv:2602.00277)"
_BYTEROBUST = "ByteRobust (arXiv:2509.16293)"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes on after a failure. Times in seconds.

    detect_s        from a process's death until it is noticed
    hang_s          the same for a hang, where no process dies; None: as the membership finds out
    gray_s          until a node that is only slow is noticed
    locate_s        to find the faulty machine
    requeue_s       until the scheduler has given the job its nodes again
    restart_s       from there until the processes could begin to step, without loading state
    regroup_s       for the survivors to leave their old group and form the next
    join_s          from the start of a replica's processes until they could step; `import_s` of it is imports
    swap_s          to bring a spare machine into a replica
    spare_nodes     kept ready in addition to the job's own nodes
    snapshot_steps  every so many steps a copy of the state is kept in memory; None: only checkpoints
    checkpoint_s    between checkpoints; None: the job's own interval
    finds_interval  use the best interval for its failures instead (study.py)
    is_warm         a process stands ready behind each replica
    shares_lanes    the others compute the lanes of missing members; otherwise the batch shrinks
    smaller_above_share  the batch shrinks only if sharing would leave more than this share of the others'
                    time idle; None: never
    rebalances      a slow member gets fewer lanes
    """

    name: str
    title: str
    recovery: Recovery
    source: str
    detect_s: float = 0.0
    hang_s: float | None = 600.0
    gray_s: float = 6 * 3600.0
    locate_s: float = 0.0
    requeue_s: float = 0.0
    restart_s: float = 0.0
    regroup_s: float = 0.0
    import_s: float = 0.0
    join_s: float = 0.0
    swap_s: float = 0.0
    spare_nodes: int = 0
    snapshot_steps: int | None = None
    checkpoint_s: float | None = None
    finds_interval: bool = False
    is_warm: bool = True
    shares_lanes: bool = True
    smaller_above_share: float | None = None
    rebalances: bool = False


_SIZES = (1_024, 16_384, 22_000, 64_000, 98_000)
_COLD_S = (60, 200, 300, 600, 900)
_GROUP_S = (2, 17, 30, 100, 200)
_HOT_SIZES = (2_048, 4_096, 8_192, 16_384)
_HOT_S = (46, 51, 54, 65)
_REQUEUE_S = (454, 545, 635, 768)


def cold_s(gpus: int) -> float:
    """From launch to the first step, by GPU count (Meta; below 16,384 assumed: down to a minute)."""
    return float(np.interp(gpus, _SIZES, _COLD_S))


def group_s(gpus: int) -> float:
    """To initialise NCCL, by GPU count (Meta; below 16,384 GPUs assumed to shrink to 2 s)."""
    return float(np.interp(gpus, _SIZES, _GROUP_S))


def hot_s(gpus: int) -> float:
    """To replace processes in place, on the same machines (ByteRobust's hot update)."""
    return float(np.interp(gpus, _HOT_SIZES, _HOT_S))


def requeue_s(gpus: int) -> float:
    """From the end of a job until a scheduler has started it again (ByteRobust, requeue)."""
    return float(np.interp(gpus, _HOT_SIZES, _REQUEUE_S))


HANG_S = 600.0
"""NCCL's watchdog, and ByteRobust's time for every failure that no inspection finds."""
RESHARD_S = 0.144
"""From a kill until all members commit again, measured by `holdfast bench recovery` on one machine (README).
"""
STANDBY_S = 1.36
"""A replacement of a dead worker on a GPU, measured by `holdfast bench gpu` (README)."""
_WHOLE = (RESHARD_S, STANDBY_S, "holdfast bench recovery and bench gpu")
_SHARDED = (SHELVE_S, REFILL_S, "holdfast bench sharded")
"""The same two times for replicas of several ranks, and their source."""
SAME_BITS_SHARE = 0.01
"""Under `holdfast-smaller`, identical bits may cost a hundredth of the GPUs' time. Beyond that the batch
shrinks."""


def policies(gpus: int, spare_nodes: int, *, is_sharded: bool = False) -> tuple[Policy, ...]:
    """Every policy for a cluster of this size with this many spare nodes. is_sharded: a member is a replica
    of several ranks (`holdfast run --shard`).
    """
    times = _SHARDED if is_sharded else _WHOLE
    hot, varied, holdfast = (
        hot_s(gpus),
        msgspec.structs.replace,
        _holdfast(gpus, spare_nodes, times, rebalances=True),
    )
    restart = Policy(
        name="restart",
        title="full restart from checkpoint (torchrun)",
        recovery="restart",
        detect_s=30,
        hang_s=HANG_S,
        locate_s=60,
        restart_s=cold_s(gpus),
        spare_nodes=spare_nodes,
        source=f"cold start {cold_s(gpus):.0f} s: {_META}; 30 s to detect, 60 s to locate: assumed",
    )
    in_place = varied(restart, locate_s=30, restart_s=hot, spare_nodes=max(4, spare_nodes))
    return (
        restart,
        varied(
            restart,
            name="restart-best",
            title="full restart from checkpoint, at the interval that is best for it",
            finds_interval=True,
            source=f"{restart.source}; the interval: as holdfast plan cadence computes it",
        ),
        varied(
            restart,
            name="requeue",
            title="back to the scheduler's queue, then restart",
            requeue_s=requeue_s(gpus),
            source=f"requeue {requeue_s(gpus):.0f} s: {_BYTEROBUST}; cold start: {_META}",
        ),
        varied(
            in_place,
            name="spares",
            title="restart in place with warm spares",
            source=f"hot update {hot:.0f} s and P99 spares: {_BYTEROBUST}; detection: assumed",
        ),
        varied(
            in_place,
            name="snapshots",
            title="restart in place from snapshots in memory",
            snapshot_steps=1,
            source=f"hot update {hot:.0f} s, a snapshot every step: {_BYTEROBUST}",
        ),
        Policy(
            name="replicas",
            title="replica groups (torchft)",
            recovery="elastic",
            detect_s=5.2,
            hang_s=HANG_S,
            regroup_s=group_s(gpus),
            import_s=cold_s(1_024),
            join_s=cold_s(1_024) + group_s(gpus),
            swap_s=hot,
            spare_nodes=spare_nodes,
            checkpoint_s=4 * 3600,
            is_warm=False,
            shares_lanes=False,
            source="5.2 s until the others step again: holdfast bench recovery; NCCL initialisation "
            f"{group_s(gpus):.0f} s: {_META}",
        ),
        _holdfast(gpus, spare_nodes, times, rebalances=False),
        holdfast,
        # Only simulated: a real script chooses once for all shortages, by `protect(on_shortage=...)`.
        varied(
            holdfast,
            name="holdfast-smaller",
            title="Holdfast, with a batch that shrinks where keeping it costs too much",
            smaller_above_share=SAME_BITS_SHARE,
        ),
    )


def _holdfast(gpus: int, spare_nodes: int, times: tuple[float, float, str], *, rebalances: bool) -> Policy:
    """Holdfast's own policy. times: until the others go on, until the place is filled, and their source."""
    reshard_s, standby_s, measured = times
    return Policy(
        name="holdfast" if rebalances else "holdfast-static",
        title="Holdfast" if rebalances else "Holdfast, without rebalancing",
        recovery="elastic",
        hang_s=None,
        gray_s=60 if rebalances else 6 * 3600.0,
        regroup_s=reshard_s + group_s(gpus),
        import_s=20,
        join_s=20 + standby_s + group_s(gpus),
        swap_s=hot_s(gpus),
        spare_nodes=spare_nodes,
        checkpoint_s=4 * 3600,
        rebalances=rebalances,
        source=f"{reshard_s} s and {standby_s} s: {measured}; NCCL initialisation "
        f"{group_s(gpus):.0f} s at this size on top: {_META}; a spare is brought in {hot_s(gpus):.0f} s: "
        f"{_BYTEROBUST}; waits: the production membership's own",
    )


def policy(name: str, gpus: int, spare_nodes: int = 0, *, is_sharded: bool = False) -> Policy:
    known = {one.name: one for one in policies(gpus, spare_nodes, is_sharded=is_sharded)}
    if name not in known:
        hint = nearest(name, known, f"There are {', '.join(known)}.")
        raise InputError(f"There is no policy {name!r}.", hint=hint)
    return known[name]
