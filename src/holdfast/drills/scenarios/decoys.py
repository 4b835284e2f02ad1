"""Nothing is wrong: a diagnosis that finds a cause is mistaken."""

from holdfast.drills.scenarios.stage import Draw, Plot, Stage, at_port
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
        traces=(MetricTrace("slurm_nodes_maint", ("slurm",)),),
        surface=MetricTrace(
            "DCGM_FI_DEV_GPU_TEMP",
            tuple(gpu_name(node, gpu) for node in spare for gpu in range(stage.layout.gpus_per_node)),
        ),
        decisions=(
            Decision(
                at_ns=stage.began_ns, action="drain", subject=rack, reason="planned maintenance: firmware"
            ),
            Decision(at_ns=back_ns, action="restore", subject=rack, reason="planned maintenance is over"),
        ),
    )


def _warm_day(stage: Stage) -> Plot:
    """The weather and the whole building get warmer, well within all design limits."""
    stage.never_end()
    loops = range(stage.layout.count("loop"))
    rise = stage.turn("supply", loops, stage.uniform(2.0, 4.0), over_s=stage.uniform(1_000, 1_500))
    names = tuple(name("loop", loop) for loop in loops)
    return Plot(
        subject="",
        turned=(rise,),
        traces=(MetricTrace("densewatch_cdu_coolant_supply_temp_celsius", names),),
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


DECOYS: dict[str, Draw] = {
    "warm-day": _warm_day,
    "bad-spare": _bad_spare,
    "planned-maintenance": _maintenance,
    "quiet": _quiet,
}
