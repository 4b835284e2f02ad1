"""Storage and the checkpoints on it: others' load, a filer that fails slowly, a cadence nobody can keep."""

from holdfast.drills.scenarios.stage import Plot, Scenario, Stage, members
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
            MetricTrace(
                metric="node_mountstats_nfs_operations_response_time_seconds_total",
                subjects=members(affected),
            ),
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
            MetricTrace(metric="node_nfs_rpc_retransmissions_total", subjects=members(affected)),
            MetricTrace(
                metric="node_mountstats_nfs_operations_response_time_seconds_total",
                subjects=members(affected),
            ),
        ),
        surface=MetricTrace(metric="holdfast_member_data_seconds", subjects=members(affected)),
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


STORAGES = (
    Scenario(
        name="storage-contention",
        found_as="storage-crowded",
        title="another job writes to the same filer, and checkpoints take several times as long",
        told="Steps are as fast as ever, but fewer of them are done in an hour. Finance asks why the same"
        " money buys less.",
        domain="storage",
        surfaces_in="runtime",
        what="steps are normal; each checkpoint holds training up for much longer",
        mechanism="another job's clients share the mount's bandwidth, and every part is written more slowly",
        owner="storage",
        seam="runtime-schedule-finance",
        loss="checkpoint_stall",
        decides="Response times of writes on one mount, without retransmissions, and its other clients.",
        questions=(
            "Step time is green on every dashboard. Where would the loss be seen?",
            "Would you checkpoint less often? What would a failure then cost?",
        ),
        draw=_contention,
    ),
    Scenario(
        name="storage-stall",
        found_as="storage-slow",
        title="a filer delivers a third of its bandwidth, and data loading stalls",
        told="Some of the members wait for data before every step. Their data loaders have not changed.",
        domain="storage",
        surfaces_in="software",
        what="training waits for data; only the members on one mount are late with it",
        mechanism="a filer's controller fails, reads take longer than the prefetch covers, calls time out",
        owner="storage",
        seam="runtime-schedule-finance",
        loss="data_stall",
        decides="Retransmissions and response times on one mount: its clients, and only they, are late.",
        questions=(
            "The data loader's authors are asked to look at it. What tells them that it is not theirs?",
            "Checkpoints are slower too. Does that make it one incident or two?",
        ),
        draw=_stall,
    ),
    Scenario(
        name="checkpoint-cadence",
        found_as="checkpoint-cadence",
        title="checkpoints were made more frequent than storage can take",
        told="Since this morning's change the run makes less progress an hour. The change was meant to make"
        " it safer, and it was approved.",
        domain="runtime",
        surfaces_in="storage",
        what="checkpoints take a large share of the time; storage is busy and looks like the cause",
        mechanism="a shorter interval and a larger state: blocking writes follow each other closely",
        owner="scheduling",
        seam="runtime-schedule-finance",
        loss="checkpoint_stall",
        decides="Interval and size of the checkpoints before and after the decision; storage is as fast.",
        questions=(
            "What would the failure rate have to be for this cadence to be right?",
            "Who approves a change that costs a fifth of the run and breaks nothing?",
        ),
        draw=_cadence,
    ),
)
