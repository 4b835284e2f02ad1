"""Advice on a checkpoint cadence: each rule's interval and efficiency, and the cost of the present one."""

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from holdfast import wording
from holdfast.economics.cadence import cadence, renewal
from holdfast.economics.cadence.cadence import CheckpointLevel, Costs, LevelPlan, PlannedLevel
from holdfast.economics.pricing.layers import Input

Rule = Literal["now", "young", "daly_first_order", "daly", "rfo", "optimum", "whole_steps"]
"""whole_steps: the optimum as a whole number of steps."""
Keeps = Callable[[float], float]
"""The efficiency of an interval."""

EXPONENTIAL = "exponential"
DURABLE = "storage"
"""The level that survives every failure; `CadenceCase.costs` are its costs."""


class CadenceCase(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a run that its cadence depends on. interval_s: the present one. levels: besides DURABLE."""

    mtbf_s: float
    costs: Costs
    interval_s: float
    gpus: float
    usd_per_gpu_hour: float
    step_s: float | None = None
    levels: tuple[CheckpointLevel, ...] = ()

    @property
    def interval_s_min(self) -> float:
        """The shortest interval: a checkpoint waits for the last one to be written and for a step to end."""
        return max(self.costs.interval_s_min, (self.step_s or 0.0) + self.costs.stall_s)


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """Failures that are not exponential: the distribution in words, and gaps drawn from it."""

    distribution: str
    drawn: renewal.Draws


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """An interval by one rule, and its efficiency and cost. work_s, steps: the interval without its stall."""

    rule: Rule
    interval_s: float
    work_s: float
    steps: float | None
    efficiency: float
    lost_gpu_hours_per_day: float
    lost_usd_per_day: float


class LevelChoice(PlannedLevel, frozen=True, kw_only=True):
    """A level's cadence, in whole steps if the step time is known."""

    steps: int | None


class LevelAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Several levels, to first order, and their gain over the durable level alone."""

    levels: tuple[LevelChoice, ...]
    dropped: tuple[str, ...]
    efficiency: float
    efficiency_of_one: float
    gained_gpu_hours_per_day: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `holdfast plan cadence --json`.

    young_s, daly_s: the work between two checkpoints, as their authors count. optimum_s and every
    `interval_s`: from the beginning of one to the beginning of the next. efficiency: at the present interval.
    efficiency_stderr: of a simulation, at the optimum. regret: against the optimum, in whole steps if the
    step time is known.
    """

    young_s: float
    daly_s: float
    optimum_s: float
    optimum_steps: int | None
    optimum_efficiency: float
    efficiency: float
    efficiency_stderr: float | None
    regret_gpu_hours_per_day: float
    regret_usd_per_day: float
    distribution: str
    choices: tuple[Choice, ...]
    levels: LevelAdvice | None
    inputs: tuple[Input, ...]
    remarks: tuple[str, ...]


def advise(case: CadenceCase, inputs: tuple[Input, ...] = (), simulated: Simulated | None = None) -> Advice:
    """Every rule on this case, judged by the exact formula; other failures by the same drawn gaps."""
    keeps = _judge(case, simulated)
    intervals_s = _intervals_s(case, simulated, keeps)
    steps, stderr = None, None
    if case.step_s is not None:
        steps, interval_s = cadence.whole_steps(intervals_s["optimum"], case.step_s, case.costs, keeps)
        intervals_s["whole_steps"] = interval_s
    if simulated is not None:
        estimate = renewal.simulate_efficiency(intervals_s["optimum"], case.costs, simulated.drawn)
        stderr = estimate.stderr
    choices = {rule: _choice(rule, interval_s, case, keeps) for rule, interval_s in intervals_s.items()}
    now, best = choices["now"], choices["optimum"]
    chosen = choices.get("whole_steps", best)
    return Advice(
        young_s=cadence.young_work_s(case.costs.stall_s, case.mtbf_s),
        daly_s=cadence.daly_work_s(case.costs.stall_s, case.mtbf_s),
        optimum_s=best.interval_s,
        optimum_steps=steps,
        optimum_efficiency=best.efficiency,
        efficiency=now.efficiency,
        efficiency_stderr=stderr,
        regret_gpu_hours_per_day=max(0.0, now.lost_gpu_hours_per_day - chosen.lost_gpu_hours_per_day),
        regret_usd_per_day=max(0.0, now.lost_usd_per_day - chosen.lost_usd_per_day),
        distribution=EXPONENTIAL if simulated is None else simulated.distribution,
        choices=tuple(choices.values()),
        levels=_levels(case) if case.levels else None,
        inputs=inputs,
        remarks=tuple(_remarks(case, best.interval_s)),
    )


def _remarks(case: CadenceCase, optimum_s: float) -> Iterator[str]:
    """Remarks that help readers interpret the numbers correctly."""
    least_s, written_s = case.interval_s_min, case.costs.interval_s_min
    why = f"a checkpoint takes {wording.number(written_s)} s, and the next one waits for it"
    if least_s > written_s:
        step = f"a step with its stall takes {wording.number(least_s)} s"
        why = f"a checkpoint waits for the end of a step, and {step}"
    if case.interval_s < least_s:
        yield f"The present {wording.number(case.interval_s)} s cannot be kept: {why}."
    if optimum_s <= least_s and least_s > written_s:
        best_s = renewal.optimum_s(case.costs, case.mtbf_s)
        yield f"The best interval would be {wording.number(best_s, 3)} s, if a step did not take longer."
    elif optimum_s <= least_s and case.costs.write_s:
        yield "Checkpoints are as frequent as their writing allows; faster writing would help most."
    if optimum_s > case.mtbf_s:
        yield "The best interval is longer than the mean time between failures: the run hardly moves."


def _judge(case: CadenceCase, simulated: Simulated | None) -> Keeps:
    if simulated is None:
        return lambda interval_s: cadence.efficiency(interval_s, case.costs, case.mtbf_s)
    drawn = simulated.drawn
    return lambda interval_s: renewal.simulate_efficiency(interval_s, case.costs, drawn).efficiency


def _intervals_s(case: CadenceCase, simulated: Simulated | None, keeps: Keeps) -> dict[Rule, float]:
    """The interval of every rule, none shorter than possible."""
    costs, mtbf_s = case.costs, case.mtbf_s
    wished_s: dict[Rule, float] = {
        "now": case.interval_s,
        "young": cadence.young_work_s(costs.stall_s, mtbf_s) + costs.stall_s,
        "daly_first_order": cadence.daly_first_order_s(costs, mtbf_s),
        "daly": cadence.daly_work_s(costs.stall_s, mtbf_s) + costs.stall_s,
        "rfo": cadence.rfo_s(costs, mtbf_s),
        "optimum": renewal.optimum_s(costs, mtbf_s),
    }
    intervals_s = {rule: max(wish_s, case.interval_s_min) for rule, wish_s in wished_s.items()}
    if simulated is not None:
        # The search may slightly miss the top of a flat, jagged hill, so the other rules' intervals compete.
        found_s = max(renewal.simulated_optimum_s(costs, simulated.drawn), case.interval_s_min)
        intervals_s["optimum"] = max(found_s, *intervals_s.values(), key=keeps)
    return intervals_s


def _choice(rule: Rule, interval_s: float, case: CadenceCase, keeps: Keeps) -> Choice:
    kept, work_s = keeps(interval_s), max(0.0, interval_s - case.costs.stall_s)
    lost_gpu_hours = cadence.lost_gpu_hours_per_day(kept, case.gpus)
    return Choice(
        rule=rule,
        interval_s=interval_s,
        work_s=work_s,
        steps=None if case.step_s is None else work_s / case.step_s,
        efficiency=kept,
        lost_gpu_hours_per_day=lost_gpu_hours,
        lost_usd_per_day=lost_gpu_hours * case.usd_per_gpu_hour,
    )


# ---- several levels --------------------------------------------------------------------------------------


def _levels(case: CadenceCase) -> LevelAdvice:
    costs = case.costs
    durable = CheckpointLevel(name=DURABLE, stall_s=costs.stall_s, write_s=costs.write_s, survives=1.0)
    levels = {level.name: level for level in (*case.levels, durable)}
    plan = cadence.plan_levels(list(levels.values()), case.mtbf_s)
    kept = _kept(plan, case)
    kept_by_one = _kept(cadence.plan_levels([durable], case.mtbf_s), case)
    return LevelAdvice(
        levels=tuple(_level_choice(planned, levels[planned.name], case.step_s) for planned in plan.levels),
        dropped=plan.dropped,
        efficiency=kept,
        efficiency_of_one=kept_by_one,
        gained_gpu_hours_per_day=cadence.lost_gpu_hours_per_day(kept_by_one, case.gpus)
        - cadence.lost_gpu_hours_per_day(kept, case.gpus),
    )


def _kept(plan: LevelPlan, case: CadenceCase) -> float:
    """Efficiency to first order: useful time over useful time plus overhead and repair."""
    repair = (case.costs.downtime_s + case.costs.restore_s) / case.mtbf_s
    return 1 / (1 + plan.overhead + repair)


def _level_choice(planned: PlannedLevel, level: CheckpointLevel, step_s: float | None) -> LevelChoice:
    steps, interval_s, overhead = None, planned.interval_s, planned.overhead
    if step_s is not None:
        steps, interval_s = cadence.whole_steps(
            interval_s,
            step_s,
            Costs(stall_s=level.stall_s, write_s=level.write_s),
            lambda tried_s: -cadence.level_overhead(tried_s, level, planned.mtbf_s),
        )
        overhead = cadence.level_overhead(interval_s, level, planned.mtbf_s)
    return LevelChoice(
        name=planned.name, mtbf_s=planned.mtbf_s, interval_s=interval_s, steps=steps, overhead=overhead
    )
