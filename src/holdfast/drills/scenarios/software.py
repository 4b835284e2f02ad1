"""Software that looks like hardware: stragglers on healthy machines."""

from holdfast.drills.levers import POOL_ENGINES
from holdfast.drills.scenarios.stage import Draw, Plot, Stage, members, slow_members
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.drills.world import Decision
from holdfast.twin.cluster import name

STAGES = 8
"""Stages of the pipeline; neighbouring nodes are on consecutive stages."""


RESPLIT = "the loss moves to the last stage of the pipeline"


def _collector(stage: Stage) -> Plot:
    pause = stage.turn("pause", [0], stage.uniform(0.8, 1.5), over_s=stage.uniform(120, 300))
    return Plot(
        subject="garbage-collector",
        turned=(pause,),
        affected=stage.everyone(),
        surface=stage.of_run("holdfast_run_step_seconds"),
    )


def _loader(stage: Stage) -> Plot:
    everyone = stage.everyone()
    shares = stage.rng.uniform(0.7, 1.0, len(everyone))
    late = stage.turn("loader", everyone, stage.uniform(0.7, 1.4), over_s=30, each=shares)
    return Plot(
        subject="data-loader",
        turned=(late,),
        affected=everyone,
        traces=(MetricTrace("node_pressure_cpu_waiting_seconds_total", members(everyone)),),
        surface=MetricTrace("holdfast_member_data_seconds", members(everyone)),
    )


def _sequences(stage: Stage) -> Plot:
    return Plot(
        subject="batch-composition",
        turned=(stage.turn("stray", [0], stage.uniform(0.15, 0.3)),),
        affected=stage.everyone(),
        surface=stage.of_run("holdfast_run_step_seconds"),
    )


def _pipeline(stage: Stage) -> Plot:
    last = tuple(node for node in stage.everyone() if node % STAGES == STAGES - 1)
    more = stage.uniform(1.12, 1.25)
    return Plot(
        subject=f"stage-{STAGES - 1}",
        turned=(stage.turn("work", last, more),),
        affected=last,
        surface=slow_members(last),
        decisions=(Decision(at_ns=stage.began_ns, action="resplit", subject=stage.run, reason=RESPLIT),),
    )


def _routing(stage: Stage) -> Plot:
    hot = stage.one_of(POOL_ENGINES)
    weight = stage.turn("routing", [hot], stage.uniform(2.2, 3.2), over_s=stage.uniform(60, 180))
    engine = name("node", stage.cast.decode[hot])
    return Plot(
        subject="router",
        turned=(weight,),
        affected=stage.everyone(),
        traces=(
            MetricTrace("vllm:kv_cache_usage_perc", (engine,)),
            MetricTrace("dynamo_frontend_worker_last_time_to_first_token_seconds", (engine,)),
        ),
        surface=MetricTrace("holdfast_member_data_seconds", members(stage.everyone())),
    )


SOFTWARE: dict[str, Draw] = {
    "gc-pause": _collector,
    "data-loader": _loader,
    "sequence-imbalance": _sequences,
    "pipeline-stage": _pipeline,
    "routing-imbalance": _routing,
}
