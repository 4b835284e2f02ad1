"""`holdfast bench control`: a cluster with gray failures under several ways to act on them, in the twin.

Each way has the same failures, alarms and repairs; only the actions differ. `control` and `shadow` decide by
the production code. Campaigns of bad detectors show how the breaker and the budgets limit the damage.
"""

from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from statistics import fmean
from typing import get_args

import click
import msgspec

from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.twin.gray import MINDER
from holdfast.twin.steering import BadDetector, SteeringFigures, SteeringStudy, Way, steer, steering_policy
from holdfast.twin.sweep import Spread, spread
from holdfast.wording import many

WAYS: tuple[Way, ...] = get_args(Way)
CAMPAIGN_DAYS = 6.5
CAMPAIGNS = {
    "burst": BadDetector(nodes=300, every_min=0.01),
    "trickle": BadDetector(nodes=200, every_min=7.0),
}
"""300 nodes look bad within 3 minutes; one more does every 7 minutes, for a day."""
FIELD_GPUS = 504
"""Of the cluster with 0.84 false alarms a day."""


class WayResult(msgspec.Struct, frozen=True, kw_only=True):
    """All seeds under one way. ahead_of_none: useful GPU-hours more than without any action, of one seed.
    wins: in how many seeds no other way was better.
    """

    way: Way
    useful_gpu_hours: Spread
    useful_of_paid: Spread
    ahead_of_none: Spread
    wins: int
    drains_per_day: float
    false_per_day: float
    calls_per_day: float
    out_max: int
    trips: int
    would_save: float


class ControlCase(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of job and detector. drained_at_most: control's budget of nodes at once."""

    case: str
    study: SteeringStudy
    drained_at_most: int
    ways: tuple[WayResult, ...]


class ControlBench(msgspec.Struct, frozen=True, kw_only=True):
    seeds: int
    cases: tuple[ControlCase, ...]


def studies(gpus: int, days: float) -> dict[str, SteeringStudy]:
    """By name; the first is the one that counts."""
    usual = SteeringStudy(gpus=gpus, days=days)
    replace = msgspec.structs.replace
    scaled = MINDER.false_per_day * gpus / FIELD_GPUS
    campaign = replace(usual, days=min(days, CAMPAIGN_DAYS))
    return {
        "job": usual,
        "elastic": replace(usual, is_elastic=True),
        "unsure": replace(usual, detector=replace(MINDER, knows_itself=False)),
        "noisy": replace(usual, detector=replace(MINDER, false_per_day=scaled)),
        **{name: replace(campaign, bad=(bad,)) for name, bad in CAMPAIGNS.items()},
    }


@click.command("control")
@click.option("--seeds", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--days", type=click.FloatRange(min=1), default=54.0, show_default=True)
@click.option("--gpus", type=click.IntRange(min=1_024), default=16_384, show_default=True)
@click.option("--case", "names", multiple=True, type=click.Choice([*studies(16_384, 54)]), help="Repeatable.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)
@json_option
def command(
    seeds: int, days: float, gpus: int, names: tuple[str, ...], processes: int, as_json: bool
) -> None:
    """Simulate gray failures under no action, fixed rules, shadow and control."""
    known = studies(gpus, days)
    chosen = {name: known[name] for name in names or known}
    bench = measure(chosen, seeds=seeds, processes=processes)
    if as_json:
        print_json(bench)
        return
    for case in bench.cases:
        click.echo("\n".join(_shown(case, seeds)))


def measure(chosen: dict[str, SteeringStudy], *, seeds: int, processes: int) -> ControlBench:
    tasks = [(study, way, seed) for study in chosen.values() for way in WAYS for seed in range(1, seeds + 1)]
    with get_context("spawn").Pool(processes) as pool:
        figures = pool.map(_play, tasks, chunksize=1)
    size = len(WAYS) * seeds
    groups = [figures[at : at + size] for at in range(0, len(figures), size)]
    cases = [
        ControlCase(
            case=name,
            study=study,
            drained_at_most=steering_policy().out.of(study.gpus // 8 + study.spares),
            ways=tuple(_results(group, study, seeds)),
        )
        for (name, study), group in zip(chosen.items(), groups, strict=True)
    ]
    return ControlBench(seeds=seeds, cases=tuple(cases))


def _play(task: tuple[SteeringStudy, Way, int]) -> SteeringFigures:
    return steer(*task)


def _results(figures: Sequence[SteeringFigures], study: SteeringStudy, seeds: int) -> Iterator[WayResult]:
    best = [max(figures[seed::seeds], key=lambda one: one.useful_gpu_hours) for seed in range(seeds)]
    none = figures[:seeds]
    for number, way in enumerate(WAYS):
        group = figures[number * seeds : (number + 1) * seeds]
        yield WayResult(
            way=way,
            useful_gpu_hours=spread([one.useful_gpu_hours for one in group]),
            useful_of_paid=spread([one.useful_gpu_hours / one.paid_gpu_hours for one in group]),
            ahead_of_none=spread(
                [
                    one.useful_gpu_hours - other.useful_gpu_hours
                    for one, other in zip(group, none, strict=True)
                ]
            ),
            wins=sum(one.way == way for one in best),
            drains_per_day=fmean(one.drains for one in group) / study.days,
            false_per_day=fmean(one.false_drains for one in group) / study.days,
            calls_per_day=fmean(one.calls for one in group) / study.days,
            out_max=max(one.out_max for one in group),
            trips=sum(one.trips for one in group),
            would_save=fmean(one.would_save for one in group),
        )


def _shown(case: ControlCase, seeds: int) -> Iterator[str]:
    study = case.study
    yield (
        f"{case.case}: {study.gpus:,} GPUs and {many(study.spares, 'spare node')}, {study.days:g} days, "
        f"{many(seeds, 'seed')}; control may have {case.drained_at_most} nodes out at once"
    )
    yield (
        f"  {'':<13}{'useful of paid (P10 to P90)':<30}{'wins':>5}{'drains':>8}{'false':>7}{'calls':>7} a day"
        f"{'at once':>10}{'trips':>7}"
    )
    for one in case.ways:
        share = one.useful_of_paid
        told = f"{share.p50:.2%} ({share.p10:.2%} to {share.p90:.2%})"
        yield (
            f"  {one.way:<13}{told:<30}{one.wins:>5}{one.drains_per_day:>8.2f}{one.false_per_day:>7.2f}"
            f"{one.calls_per_day:>7.2f}{'':>6}{one.out_max:>10,}{one.trips:>7}"
        )
    yield ""
