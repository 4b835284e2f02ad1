"""Many simulated runs: the figures of each, and their spread.

`play` only turns one task into its figures, so tasks can run in other processes and on other machines.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from holdfast.ledger.categories import Category
from holdfast.ledger.split import LOSSES
from holdfast.twin.policies import Policy
from holdfast.twin.presets import ReportedFigure
from holdfast.twin.simulation import simulate
from holdfast.twin.study import Study
from holdfast.wording import Amounts
from holdfast.wording.units import HOUR_NS

QUANTILES = (10, 50, 90)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run to simulate."""

    study: Study
    policy: Policy
    seed: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run.

    interruptions   failures that stopped it, without planned stops
    effective_time  the share of the time in the run spent in kept steps (the ledger's ETTR)
    goodput         the useful share of everything paid for that is known, spares included
    lost_gpu_hours  known to be lost; cost_usd: their price. With useful_ and unknown_gpu_hours they sum to
                    paid_gpu_hours
    is_exact        whether the ledger of its events agrees with the simulation's own sums to the nanosecond
    """

    policy: str
    seed: int
    interruptions: int
    planned: int
    restarts: int
    steps: int
    rolled_back_steps: int
    effective_time: float
    goodput: float
    paid_gpu_hours: float
    useful_gpu_hours: float
    lost_gpu_hours: float
    unknown_gpu_hours: float
    cost_usd: float
    partition: dict[str, int]
    is_exact: bool


def play(task: Task) -> Figures:
    outcome = simulate(task.study, task.policy, task.seed)
    told = outcome.report
    split = told.split
    lost_gpu_hours = split.lost_gpu_ns / HOUR_NS
    return Figures(
        policy=task.policy.name,
        seed=task.seed,
        interruptions=outcome.interruptions,
        planned=outcome.planned,
        restarts=outcome.restarts,
        steps=told.counts.steps,
        rolled_back_steps=outcome.rolled_back_steps,
        effective_time=told.ettr.cumulative or 0.0,
        goodput=told.goodput.total or 0.0,
        paid_gpu_hours=split.paid_gpu_ns / HOUR_NS,
        useful_gpu_hours=split.useful_gpu_ns / HOUR_NS,
        lost_gpu_hours=lost_gpu_hours,
        unknown_gpu_hours=split.unknown_gpu_ns / HOUR_NS,
        cost_usd=lost_gpu_hours * task.study.usd_per_gpu_hour,
        partition=told.partition,
        is_exact=outcome.is_exact,
    )


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A tenth of the runs is below `p10`, half below `p50`, and nine tenths below `p90`."""

    p10: float
    p50: float
    p90: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All runs under one policy.

    spare_nodes          in addition to the job's own, and paid for
    partition_gpu_hours  by category, the mean of the runs
    """

    policy: str
    title: str
    source: str
    spare_nodes: int
    runs: int
    interruptions: Spread
    planned: Spread
    restarts: Spread
    steps: Spread
    effective_time: Spread
    goodput: Spread
    paid_gpu_hours: Spread
    useful_gpu_hours: Spread
    lost_gpu_hours: Spread
    unknown_gpu_hours: Spread
    cost_usd: Spread
    saved_gpu_hours: Spread
    saved_usd: Spread
    partition_gpu_hours: dict[str, float]
    is_exact: bool

    @property
    def lost_gpu_hours_mean(self) -> float:
        return sum(self.partition_gpu_hours[category.key] for category in LOSSES)

    @property
    def three(self) -> str:
        """What was paid for, the mean of the runs: useful, lost and not known."""
        useful, unknown = (
            self.partition_gpu_hours[one.key] for one in (Category.USEFUL, Category.UNATTRIBUTED)
        )
        parts = [round(hours * HOUR_NS) for hours in (useful, self.lost_gpu_hours_mean, unknown)]
        return Amounts(sum(parts)).three(*parts)


_SPREAD = [name for name, kind in Summary.__annotations__.items() if kind is Spread and "saved" not in name]
"""The fields of a summary that are spreads of the same field of its runs."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The same failures under several policies; savings are relative to the first of them.

    source                  of the cluster, its job and its failures
    command                 repeats the same runs
    preset_gpus, _days      of the published preset; `gpus` and `days` are what was simulated
    expected_interruptions  mean number of failures that the rates give for the job's nodes; see the function
    reported                the owners' figures, if the cluster, the days and the rates are theirs
    """

    preset: str
    source: str
    command: str
    gpus: int
    preset_gpus: int
    days: float
    preset_days: float
    expected_interruptions: float
    reported: tuple[ReportedFigure, ...]
    seed: int
    runs: int
    usd_per_gpu_hour: float
    price_source: str
    is_exact: bool
    policies: tuple[Summary, ...]


def summarise(policy: Policy, runs: Sequence[Figures], baseline: Sequence[Figures]) -> Summary:
    """The spread of many runs. Savings are relative to the baseline runs with the same seeds."""
    pairs = list(zip(runs, baseline, strict=True))
    categories = {category.key: 0.0 for category in Category}
    for one in runs:
        for key, gpu_ns in one.partition.items():
            categories[key] += gpu_ns / HOUR_NS / len(runs)
    return Summary(
        policy=policy.name,
        title=policy.title,
        source=policy.source,
        spare_nodes=policy.spare_nodes,
        runs=len(runs),
        **{field: spread([getattr(one, field) for one in runs]) for field in _SPREAD},
        saved_gpu_hours=spread([other.lost_gpu_hours - one.lost_gpu_hours for one, other in pairs]),
        saved_usd=spread([other.cost_usd - one.cost_usd for one, other in pairs]),
        partition_gpu_hours=categories,
        is_exact=all(one.is_exact for one in runs),
    )


def expected_interruptions(study: Study) -> float:
    """By the study's own rates, without planned stops and failures that only slow a run down."""
    hazards = study.hazards.unplanned()
    interrupting = (row for row in hazards.classes if row.kind != "gray")
    return sum(hazards.expected(row, study.layout.nodes, study.duration_ns) for row in interrupting)


def spread(values: Sequence[float]) -> Spread:
    p10, p50, p90 = (float(value) for value in np.percentile(values, QUANTILES))
    return Spread(p10=p10, p50=p50, p90=p90)
