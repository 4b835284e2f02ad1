"""Software that looks like hardware: stragglers with nothing wrong beneath them."""

from holdfast.drills.levers import POOL_ENGINES
from holdfast.drills.scenarios.stage import Plot, Scenario, Stage, members, slow_members
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.drills.world import Decision
from holdfast.twin.cluster import name

STAGES = 8
"""Of the pipeline; neighbours are on consecutive stages."""


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
        traces=(MetricTrace(metric="node_pressure_cpu_waiting_seconds_total", subjects=members(everyone)),),
        surface=MetricTrace(metric="holdfast_member_data_seconds", subjects=members(everyone)),
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
            MetricTrace(metric="vllm:kv_cache_usage_perc", subjects=(engine,)),
            MetricTrace(metric="dynamo_frontend_worker_last_time_to_first_token_seconds", subjects=(engine,)),
        ),
        surface=MetricTrace(metric="holdfast_member_data_seconds", subjects=members(stage.everyone())),
    )


SOFTWARE = (
    Scenario(
        name="gc-pause",
        found_as="garbage-collection",
        title="unsynchronised garbage collection: another member stands still in every step",
        told="Every step has a straggler, never the same one. Nodes have been taken out, and it went on.",
        domain="software",
        surfaces_in="gpu",
        what="steps get slower over minutes; a different member is late each time",
        mechanism="heaps grow, each process collects when it likes, and the run waits for whoever does",
        owner="training",
        seam="runtime-schedule-finance",
        loss="slowdown",
        decides="Who is late changes from step to step, and collecting in step with each other ends it.",
        questions=(
            "How many steps must you look at before you rule out a bad node?",
            "What is common to members on different racks, leaves and mounts?",
        ),
        draw=_collector,
    ),
    Scenario(
        name="data-loader",
        found_as="data-loader",
        title="a change to the data loader makes every member wait",
        told="Everybody waits for data before every step, some more than others. Storage has been called.",
        domain="software",
        surfaces_in="storage",
        what="training waits for data; all members are late with it, whatever mount they are on",
        mechanism="tokenising takes more CPU time than the loader's workers have; the prefetch runs dry",
        owner="training",
        seam="runtime-schedule-finance",
        loss="data_stall",
        decides="Response times of reads are as before, CPU pressure is not, and every mount is alike.",
        questions=(
            "What does storage show when it is not the cause?",
            "Which change went in just before, and who would know?",
        ),
        draw=_loader,
    ),
    Scenario(
        name="sequence-imbalance",
        found_as="sequence-length",
        title="one long sequence a batch: another member has more to compute in every step",
        told="Steps vary more than they did and are longer on average. Any member can be the slow one.",
        domain="software",
        surfaces_in="gpu",
        what="steps are slow and uneven; a different member computes longer each time",
        mechanism="attention costs grow with the square of a sequence's length; batches are dealt by count",
        owner="training",
        seam="runtime-schedule-finance",
        loss="slowdown",
        decides="Who is slow follows the data: the same lane is slow on whatever member it is computed.",
        questions=(
            "Does it follow the machine, the data or the clock? How would you find out?",
            "Can any action on hardware help? Who has to be asked?",
        ),
        draw=_sequences,
    ),
    Scenario(
        name="pipeline-stage",
        found_as="pipeline-stage",
        title="the last pipeline stage has more to do than the others",
        told="An eighth of the members is slow. They are in every rack, on every leaf and every loop.",
        domain="software",
        surfaces_in="gpu",
        what="steps slow down; every eighth member computes longer, all over the hall",
        mechanism="layers are split by number, and the last stage has the loss on top",
        owner="training",
        seam="runtime-schedule-finance",
        loss="slowdown",
        decides="The slow members share a stage and nothing else; their clocks are as usual.",
        questions=(
            "Which hardware could be shared by exactly these members?",
            "What did the run decide just before?",
        ),
        draw=_pipeline,
    ),
    Scenario(
        name="routing-imbalance",
        found_as="routing-imbalance",
        title="the router prefers one decode engine, and training waits for its samples",
        told="The trainer waits for samples. Seven of eight decode engines have time to spare.",
        domain="pool",
        surfaces_in="runtime",
        what="training waits for data; one engine is full while the others are half empty",
        mechanism="the router's weights drift, one engine queues, a batch is ready when its last sample is",
        owner="serving",
        seam="gpu-fabric-pool",
        loss="data_stall",
        decides="Cache use by engine and transfer times by pair: the load is uneven, no link is slow.",
        questions=(
            "The pool's mean latency is fine. Which figure is not?",
            "Is one engine slow, or is it busy? What tells the two apart?",
        ),
        draw=_routing,
        with_pools=True,
    ),
)
