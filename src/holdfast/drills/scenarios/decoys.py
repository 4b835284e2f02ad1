"""Nothing is wrong: whoever finds a cause here is mistaken."""

from holdfast.drills.scenarios.stage import Plot, Scenario, Stage, at_port
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.drills.world import Decision
from holdfast.twin.cluster import gpu_name, name


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
        traces=(MetricTrace(metric="slurm_nodes_maint", subjects=("slurm",)),),
        surface=MetricTrace(
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


def _warm_day(stage: Stage) -> Plot:
    """Outside it gets warmer, and the whole building with it: well within what everything is built for."""
    stage.never_end()
    loops = range(stage.layout.count("loop"))
    rise = stage.turn("supply", loops, stage.uniform(2.0, 4.0), over_s=stage.uniform(1_000, 1_500))
    names = tuple(name("loop", loop) for loop in loops)
    return Plot(
        subject="",
        turned=(rise,),
        traces=(MetricTrace(metric="densewatch_cdu_coolant_supply_temp_celsius", subjects=names),),
        surface=stage.of_run("holdfast_run_step_seconds"),
    )


def _bad_spare(stage: Stage) -> Plot:
    """A spare node has a bad cable and bad memory: worth a ticket, but no run is on it."""
    node, gpu = (
        stage.cast.spare[stage.one_of(len(stage.cast.spare))],
        stage.one_of(stage.layout.gpus_per_node),
    )
    number = [stage.gpu_number(node, gpu)]
    return Plot(
        subject="",
        turned=(
            stage.turn("symbols", number, stage.uniform(200, 600)),
            stage.turn("ecc", number, stage.uniform(20, 60), over_s=60),
        ),
        traces=(at_port("node_infiniband_symbol_error_total", node, gpu),),
        surface=stage.of_run("holdfast_run_step_seconds"),
    )


DECOYS = (
    Scenario(
        name="warm-day",
        title="coolant gets a few kelvins warmer everywhere, as on any warm day",
        told="The building's operators have seen supply temperatures rise since the morning.",
        domain="none",
        surfaces_in="none",
        what="supply temperatures rise everywhere; nothing is slower",
        mechanism="the weather",
        owner="nobody",
        seam="none",
        loss="none",
        decides="No GPU is near its limit, and none will be today at this rate.",
        questions=(
            "At this rate, when would the first GPU reach its limit?",
            "Which alert should have a time in it rather than a temperature?",
        ),
        draw=_warm_day,
        is_incident=False,
    ),
    Scenario(
        name="bad-spare",
        title="a spare node has errors, and no run is on it",
        told="The fabric's monitoring shows symbol errors on a port, and a GPU corrects memory errors.",
        domain="none",
        surfaces_in="none",
        what="errors on a node that nobody uses",
        mechanism="a bad cable and bad memory on a spare",
        owner="nobody",
        seam="none",
        loss="none",
        decides="The scheduler: no job has the node.",
        questions=(
            "What would happen if the spare were needed now?",
            "Whom does it help to be woken up for this, and who needs a ticket?",
        ),
        draw=_bad_spare,
        is_incident=False,
    ),
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
