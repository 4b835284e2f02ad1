"""Storage and the checkpoints on it: others' load, a filer that fails slowly, a cadence that is too short."""

from holdfast.drills.scenarios.stage import Draw, Plot, Stage, members
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.drills.training import CHECKPOINT_INTERVAL_S
from holdfast.drills.world import Decision
from holdfast.twin.cluster import name

CHECKPOINTS = "holdfast_run_checkpoint_seconds"


def _contention(stage: Stage) -> Plot:
    mount = stage.pick("mount")
    affected = stage.members_on("mount", mount)
    crowd = stage.turn("neighbours", [mount], stage.uniform(4, 7), over_s=20)
    return Plot(
        subject=name("mount", mount),
        turned=(crowd,),
        affected=affected,
        traces=(
            MetricTrace("node_mountstats_nfs_operations_response_time_seconds_total", members(affected)),
        ),
        surface=stage.of_run(CHECKPOINTS),
    )


def _stall(stage: Stage) -> Plot:
    mount = stage.pick("mount")
    affected = stage.members_on("mount", mount)
    weak = stage.turn("capacity", [mount], stage.uniform(0.26, 0.34), over_s=40)
    return Plot(
        subject=name("mount", mount),
        turned=(weak,),
        affected=affected,
        traces=(
            MetricTrace("node_nfs_rpc_retransmissions_total", members(affected)),
            MetricTrace("node_mountstats_nfs_operations_response_time_seconds_total", members(affected)),
        ),
        surface=MetricTrace("holdfast_member_data_seconds", members(affected)),
    )


def _cadence(stage: Stage) -> Plot:
    stage.never_end()
    factor = stage.uniform(0.15, 0.22)
    larger = stage.uniform(1.3, 1.7)
    reason = f"checkpoint every {factor * CHECKPOINT_INTERVAL_S:.0f} s, with the optimizer's second moments"
    return Plot(
        subject="checkpoint-policy",
        turned=(stage.turn("cadence", [0], factor), stage.turn("state", [0], larger)),
        affected=stage.everyone(),
        traces=(stage.of_run(CHECKPOINTS),),
        surface=stage.of_run(CHECKPOINTS),
        decisions=(Decision(at_ns=stage.began_ns, action="set-cadence", subject=stage.run, reason=reason),),
    )


STORAGES: dict[str, Draw] = {
    "storage-contention": _contention,
    "storage-stall": _stall,
    "checkpoint-cadence": _cadence,
}
