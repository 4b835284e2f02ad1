"""Forecast a case: its end by formula and by simulation, which changes help, and what bad GPUs cost."""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from holdfast import wording
from holdfast.economics.cadence import expectation
from holdfast.economics.sizing.coverage import ReplicaGrid, ReplicaLoss, losses
from holdfast.record.errors import InputError
from holdfast.twin import outlook
from holdfast.twin.case import Assumed, ForecastCase
from holdfast.twin.sweep import Figures, Task
from holdfast.wording.units import DAY_S

TEN_PER_CENT = 0.10
"""The loss of output that one per cent of bad GPUs is often said to cost."""
QUANTILES = (0.1, 0.5, 0.9)
SENSIBLE_TIMES = 100
"""There is no forecast for a run that takes more than this many times its work. Beyond the horizon of a case
only the formula is used: the twin would give up."""

Play = Callable[[Sequence[Task]], Sequence[Figures]]


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs to simulate, from which seed on, and which bad GPUs to assume."""

    runs: int
    seed: int
    bad_percent: float
    slowdown: float


class EndSpread(msgspec.Struct, frozen=True, kw_only=True):
    """One forecast of the end. goodput: the share of the time until then that training needs."""

    goodput: float
    mean_days: float
    p10_days: float
    p50_days: float
    p90_days: float


class BadGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a share of bad GPUs, and when it would cost a tenth of the output.

    tenth_unit_gpus  if this many GPUs, or more, fail together
    tenth_slowdown   if a GPU is this slow, or slower, in a run that waits for it
    """

    degraded: expectation.Degraded
    effect: expectation.Effect
    tenth_unit_gpus: int
    tenth_slowdown: float


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `--json`.

    ettr     Kokolis et al.; None if failures do not stop the whole run, a case they do not treat
    ettr_remark  why it is 0; empty if it is not
    formula  with chance alone, like the twin; unsure: with an uncertain failure rate as well
    done_ns  P10, P50 and P90 of the end, if a start was given

    twin_unfinished: simulated runs that were given up and count as done then, so the twin's days are too few.
    losses: what replicas of several members survive under Holdfast, if `--shard` is given.
    """

    title: str
    gpus: int
    member_gpus: int
    work_days: float
    policy: str
    mtbf_h: float
    interruptions: float
    ettr: float | None
    ettr_remark: str
    formula: EndSpread
    unsure: EndSpread | None
    twin: EndSpread | None
    twin_runs: int
    twin_unfinished: int
    done_ns: tuple[int, int, int] | None
    worth: tuple[expectation.Worth, ...]
    bad_gpus: BadGpus
    usd_per_gpu_hour: float
    is_rough: bool
    assumed: tuple[Assumed, ...]
    losses: tuple[ReplicaLoss, ...] = ()

    @property
    def best(self) -> EndSpread:
        """The most informed forecast: with the rate's uncertainty, else the twin's, else the formula's."""
        return self.unsure or self.twin or self.formula


def answer(of: ForecastCase, depth: Depth, play: Play) -> Forecast:
    """The forecast of a case. play: simulates the tasks."""
    chance = outlook.prospect(of.study, of.policy, of.work_s / DAY_S)
    by_formula = _foreseen(chance, of)
    unsure = msgspec.structs.replace(chance, rate_spread=of.rate_spread)
    is_near = by_formula.mean_s <= of.study.duration_ns / 1e9
    simulated = _simulated(of, depth, play) if depth.runs and is_near else []
    ends_s = [end_s for end_s, _ in simulated]
    setting = outlook.setting(of.study, of.policy)
    stops_all = of.policy.recovery == "restart"
    found = Forecast(
        title=of.title,
        gpus=of.study.job.gpus,
        member_gpus=of.study.job.member_gpus,
        work_days=of.work_s / DAY_S,
        policy=of.policy.title,
        mtbf_h=setting.mttf_s / 3_600,
        interruptions=by_formula.interruptions,
        ettr=expectation.ettr(setting) if stops_all else None,
        ettr_remark=expectation.standstill(setting) if stops_all else "",
        formula=_spread_by_formula(by_formula),
        unsure=_spread_by_formula(_foreseen(unsure, of)) if of.rate_spread else None,
        twin=_spread(of.work_s, float(np.mean(ends_s)), np.quantile(ends_s, QUANTILES)) if ends_s else None,
        twin_runs=len(simulated),
        twin_unfinished=sum(not is_done for _, is_done in simulated),
        done_ns=None,
        worth=_worth(of),
        bad_gpus=_bad_gpus(of, depth),
        usd_per_gpu_hour=of.study.usd_per_gpu_hour,
        is_rough=by_formula.is_rough,
        assumed=of.assumed,
        losses=_losses(of) if of.mesh.sizes and of.policy.name.startswith("holdfast") else (),
    )
    if of.start_ns is None:
        return found
    best = found.best
    p10, p50, p90 = (
        of.start_ns + round(days * DAY_S * 1e9) for days in (best.p10_days, best.p50_days, best.p90_days)
    )
    return msgspec.structs.replace(found, done_ns=(p10, p50, p90))


def _foreseen(prospect: expectation.Prospect, of: ForecastCase) -> expectation.Completion:
    found = expectation.completion(prospect, of.work_s)
    if found is None or found.mean_s > SENSIBLE_TIMES * of.work_s:
        raise InputError(
            f"{of.title}: under this policy the run would not finish in a sensible time, as only "
            f"{wording.percent(prospect.goodput)} of its time would be useful.",
            hint="Give more --spares, a shorter checkpoint --interval, or another --policy.",
        )
    return found


def _spread(work_s: float, mean_s: float, quantiles_s: Iterable[float]) -> EndSpread:
    p10, p50, p90 = (float(one) / DAY_S for one in quantiles_s)
    goodput, mean_days = work_s / mean_s, mean_s / DAY_S
    return EndSpread(goodput=goodput, mean_days=mean_days, p10_days=p10, p50_days=p50, p90_days=p90)


def _spread_by_formula(found: expectation.Completion) -> EndSpread:
    return _spread(found.work_s, found.mean_s, (found.p10_s, found.p50_s, found.p90_s))


def _simulated(of: ForecastCase, depth: Depth, play: Play) -> list[tuple[float, bool]]:
    """The duration of each simulated run, and whether it completed all of its steps."""
    seeds = range(depth.seed, depth.seed + depth.runs)
    tasks = [Task(study=of.study, policy=of.policy, seed=seed) for seed in seeds]
    gpus = of.study.job.gpus + of.policy.spare_nodes * of.study.layout.gpus_per_node
    # Every GPU is paid for from the first moment to the last.
    return [(3_600 * one.paid_gpu_hours / gpus, one.steps == of.study.job.steps_total) for one in play(tasks)]


def _worth(of: ForecastCase) -> tuple[expectation.Worth, ...]:
    """The worth of each change that helps, the most useful first."""
    days = of.work_s / DAY_S
    now = outlook.prospect(of.study, of.policy, days)
    found = [
        expectation.worth(
            change.name,
            before=now,
            after=outlook.prospect(change.study, change.policy, days),
            work_s=of.work_s,
            gpus=of.study.job.gpus,
            usd_per_gpu_hour=of.study.usd_per_gpu_hour,
        )
        for change in outlook.changes(of.study, of.policy)
    ]
    helpful = [one for one in found if one is not None and one.days_sooner > 0]
    return tuple(sorted(helpful, key=lambda one: -one.days_sooner))


def _losses(of: ForecastCase) -> tuple[ReplicaLoss, ...]:
    job, layout = of.study.job, of.study.layout
    return losses(
        ReplicaGrid(
            replicas=job.members,
            ranks=of.mesh.ranks,
            gpus_per_node=min(job.gpus, layout.gpus_per_node),
            nodes_per_rack=layout.nodes_per_rack,
            spare_nodes=of.policy.spare_nodes,
            lanes=job.lanes,
        )
    )


def _bad_gpus(of: ForecastCase, depth: Depth) -> BadGpus:
    job = of.study.job
    degraded = expectation.Degraded(
        share=depth.bad_percent / 100,
        slowdown=depth.slowdown,
        gpus=job.gpus,
        member_gpus=job.member_gpus,
        lanes=job.lanes,
        gpus_per_node=of.study.layout.gpus_per_node,
    )
    return BadGpus(
        degraded=degraded,
        effect=expectation.effect(degraded),
        tenth_unit_gpus=expectation.unit_gpus_for(degraded.share, TEN_PER_CENT),
        tenth_slowdown=expectation.slowdown_for(TEN_PER_CENT),
    )
