"""Nothing is wrong: whoever finds a cause here is mistaken."""

from holdfast.twin.cluster import gpu_name, name
from holdfast.twin.scenarios.stage import Plot, Scenario, Stage
from holdfast.twin.scenarios.truth import Trace
from holdfast.twin.world import Decision


def _quiet(stage: Stage) -> Plot:
    return Plot(subject="", surface=stage.of_run("holdfast_run_step_seconds"))


def _maintenance(stage: Stage) -> Plot:
    """The spare rack is taken down for new firmware, as announced, and comes back."""
    spare = tuple(stage.cast.spare)
    rack = name("rack", stage.layout.number("rack", spare[0]))
    back_ns = stage.end_after(stage.uniform(0.4, 0.6))
    return Plot(
        subject=rack,
        turned=(stage.turn("down", spare, 1.0),),
        traces=(Trace(metric="slurm_nodes_maint", subjects=("slurm",)),),
        surface=Trace(
            metric="DCGM_FI_DEV_GPU_TEMP",
            subjects=tuple(
                gpu_name(node, gpu) for node in spare for gpu in range(stage.layout.gpus_per_node)
            ),
        ),
        decisions=(
            Decision(
                at_ns=stage.began_ns, action="drain", subject=rack, reason="planned maintenance: firmware"
            ),
            Decision(at_ns=back_ns, action="restore", subject=rack, reason="planned maintenance is over"),
        ),
    )


DECOYS = (
    Scenario(
        name="planned-maintenance",
        title="a rack is rebooted as announced: gaps, resets, and nothing wrong",
        told="A rack's exporters do not answer and its links have gone down. The run goes on.",
        domain="none",
        surfaces_in="none",
        what="a rack disappears from monitoring and comes back with its counters at zero",
        mechanism="planned maintenance",
        owner="nobody",
        seam="none",
        loss="none",
        decides="The drain in the record, before the first gap, and the scheduler's maintenance state.",
        questions=(
            "Which of your alerts would have fired, and how many times?",
            "How does whoever is on call know that this was planned?",
        ),
        draw=_maintenance,
        is_incident=False,
    ),
    Scenario(
        name="quiet",
        title="an ordinary half hour, with the noise that there always is",
        told="Somebody says that the run felt slow earlier. Did it?",
        domain="none",
        surfaces_in="none",
        what="nothing out of the ordinary",
        mechanism="none",
        owner="nobody",
        seam="none",
        loss="none",
        decides="Step times before and after are the same.",
        questions=("What would you need to see to say that nothing is wrong?",),
        draw=_quiet,
        is_incident=False,
    ),
)
