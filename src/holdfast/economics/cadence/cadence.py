"""How often to checkpoint: closed forms, several levels, whole steps, and the cost of a setting.

An *interval* runs from the beginning of one checkpoint to the beginning of the next, so it contains the
stall. Young and Daly count the work in between instead; their functions say `work`. This module imports only
arithmetic, because training workers set their own cadence with it. The exact optimum and failures that are
not exponential need scipy and are in `renewal`; docs/cadence.md says when each formula holds.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec

from holdfast import wording
from holdfast.record.errors import InputError
from holdfast.wording.units import DAY_S, HOURS_PER_DAY

GPUS_PER_NODE = 8
"""True of the machines in every source used here."""
FAILURES_PER_1000_NODE_DAYS = 1000 * 419 / (54 * 16_384 / GPUS_PER_NODE)
"""Llama 3 (Dubey et al. 2024), table 5: 419 unexpected interruptions in 54 days on 16,384 H100. Other
published rates are between 2.3 (Meta, about 32,000 H100) and 6.5 (Meta RSC-1).
"""
PRIOR_S_MAX = DAY_S
"""The published rate weighs no more than this much of a run's time: a small run's own failures say more."""
FAILURES_TELLING = 10
"""With this many failures of its own, a run's rate is known to within a third."""
LEVELS_MAX = 8
"""Every combination of levels is tried, and no machine has more levels."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a checkpoint and of a failure.

    stall_s     training stops for a checkpoint
    write_s     from then until the checkpoint can be used; training goes on meanwhile
    restore_s   loading a checkpoint; another failure may interrupt it
    downtime_s  from a failure until loading begins; nothing can fail meanwhile
    """

    stall_s: float
    write_s: float = 0.0
    restore_s: float = 0.0
    downtime_s: float = 0.0

    @property
    def interval_s_min(self) -> float:
        """One checkpoint is written at a time."""
        return self.stall_s + self.write_s


# ---- one level -------------------------------------------------------------------------------------------


def young_work_s(stall_s: float, mtbf_s: float) -> float:
    """Young 1974: the work between two checkpoints, to first order; good if much shorter than the MTBF."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_work_s(stall_s: float, mtbf_s: float) -> float:
    """Daly 2006, higher order: the work between two checkpoints. Keeps 99.8 % of the best efficiency."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2 * mtbf_s)
    return young_work_s(stall_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def daly_first_order_s(costs: Costs, mtbf_s: float) -> float:
    """Daly's first-order interval, as Aupy et al. 2013 quote it for comparison: repair lengthens it."""
    repair_s = costs.downtime_s + costs.restore_s
    return math.sqrt(2 * (mtbf_s + repair_s) * costs.stall_s) + costs.stall_s


def rfo_s(costs: Costs, mtbf_s: float) -> float:
    """Aupy et al. 2013, refined first order: repair shortens the interval."""
    repair_s = costs.downtime_s + costs.restore_s
    return math.sqrt(2 * max(0.0, mtbf_s - repair_s) * costs.stall_s)


def efficiency(interval_s: float, costs: Costs, mtbf_s: float) -> float:
    """The share of time that becomes kept work, exactly, if failures are exponential.

    Between two failures X apart, floor((X - R - W) / T) checkpoints become usable, each with T - C of work.
    The mean of that over the mean of X + D is (T - C) / [(mu + D) e^((R + W)/mu) (e^(T/mu) - 1)]; with W = 0
    that is Aupy et al. 2013. So writing in the background costs as much as an equally longer restore.
    """
    if interval_s <= costs.stall_s:
        return 0.0
    survived = math.exp(-(costs.restore_s + costs.write_s) / mtbf_s)
    periods = -math.exp(-interval_s / mtbf_s) / math.expm1(-interval_s / mtbf_s)
    return (interval_s - costs.stall_s) * survived * periods / (mtbf_s + costs.downtime_s)


def check_interval(interval_s: float, stall_s: float) -> None:
    if interval_s <= stall_s:
        raise InputError(
            f"A checkpoint every {wording.number(interval_s)} s, each with a stall of "
            f"{wording.number(stall_s)} s, leaves no time to train.",
            hint="--interval is from one checkpoint to the next, its stall (--stall) included.",
        )


def whole_steps(
    interval_s: float, step_s: float, costs: Costs, gained: Callable[[float], float]
) -> tuple[int, float]:
    """The whole number of steps next to an interval that is better by `gained`, and the resulting interval.

    At least one step, and at least as long as the last checkpoint takes to write.
    """
    steps_min = max(1, math.ceil(costs.write_s / step_s))
    fewer = max(steps_min, math.floor((interval_s - costs.stall_s) / step_s))
    choices = [(steps, steps * step_s + costs.stall_s) for steps in (fewer, fewer + 1)]
    return max(choices, key=lambda choice: gained(choice[1]))


def lost_gpu_hours_per_day(kept: float, gpus: float) -> float:
    """The part of a day that checkpoints, lost work and repair take if this share is kept."""
    return HOURS_PER_DAY * gpus * (1 - kept)


# ---- how often it fails ----------------------------------------------------------------------------------


def mtbf_of_nodes_s(nodes: float, failures_per_1000_node_days: float = FAILURES_PER_1000_NODE_DAYS) -> float:
    """The mean time between failures of a run that any of its nodes can stop."""
    return 1000 * DAY_S / (failures_per_1000_node_days * nodes)


def tells_rate(failures: int, up_s: float) -> bool:
    """Whether a run has enough failures of its own to estimate its rate without published ones."""
    return failures >= FAILURES_TELLING and up_s > 0


def learned_mtbf_s(prior_mtbf_s: float, failures: int, up_s: float) -> float:
    """The MTBF to expect after this many failures in this much time up.

    With many failures, their mean; with few, from the mean of a Gamma-Poisson posterior rate. The prior
    counts as one failure in its MTBF; if that is long, as the same rate over `PRIOR_S_MAX`.
    """
    if tells_rate(failures, up_s):
        return up_s / failures
    prior_s = min(prior_mtbf_s, PRIOR_S_MAX)
    return (prior_s + up_s) / (prior_s / prior_mtbf_s + failures)


# ---- several levels --------------------------------------------------------------------------------------


class CheckpointLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A place to keep checkpoints. survives: the share of failures that its checkpoints survive."""

    name: str
    stall_s: float
    survives: float
    write_s: float = 0.0


class PlannedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A level and its cadence. mtbf_s: between failures for which it is the cheapest surviving level.

    overhead: its stalls and the work that those failures undo, over useful time, to first order.
    """

    name: str
    mtbf_s: float
    interval_s: float
    overhead: float


class LevelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The levels worth having, the cheapest first, and the names of those that never pay."""

    levels: tuple[PlannedLevel, ...]
    dropped: tuple[str, ...]
    overhead: float


def plan_levels(levels: Sequence[CheckpointLevel], mtbf_s: float) -> LevelPlan:
    """The combination of levels with the least overhead; among equals, the one with the fewest levels.

    Benoit et al. 2017: with lambda the rate of the failures that a level survives and the one below does not,
    its interval is sqrt(2 C / lambda), and the overheads sqrt(2 lambda C) add up.
    """
    if not any(level.survives >= 1 for level in levels):
        raise InputError(
            "No level survives every failure, so some would end the run.",
            hint="Give one that survives 100 %.",
        )
    if len(levels) > LEVELS_MAX:
        raise InputError(f"There are more than {LEVELS_MAX} levels.", hint="Leave out the least useful ones.")
    ordered = sorted(levels, key=lambda level: (level.survives, level.stall_s))
    choices = (
        _planned(choice, mtbf_s)
        for count in range(1, len(ordered) + 1)
        for choice in itertools.combinations(ordered, count)
        if choice[-1].survives >= 1
    )
    best = min(choices, key=lambda planned: sum(level.overhead for level in planned))
    kept = {level.name for level in best}
    return LevelPlan(
        levels=tuple(best),
        dropped=tuple(level.name for level in levels if level.name not in kept),
        overhead=sum(level.overhead for level in best),
    )


def _planned(levels: Sequence[CheckpointLevel], mtbf_s: float) -> list[PlannedLevel]:
    planned: list[PlannedLevel] = []
    survived = 0.0
    for level in levels:
        share, survived = level.survives - survived, level.survives
        own_mtbf_s = mtbf_s / share if share > 0 else math.inf
        best_s = young_work_s(level.stall_s, own_mtbf_s) if share > 0 else math.inf
        interval_s = max(best_s, level.stall_s + level.write_s)
        overhead = level_overhead(interval_s, level, own_mtbf_s)
        planned.append(
            PlannedLevel(name=level.name, mtbf_s=own_mtbf_s, interval_s=interval_s, overhead=overhead)
        )
    return planned


def level_overhead(interval_s: float, level: CheckpointLevel, mtbf_s: float) -> float:
    """To first order: a stall every interval; at every failure half an interval and the unwritten work."""
    stalls = level.stall_s / interval_s if interval_s else 0.0
    undone = (interval_s / 2 + level.write_s) / mtbf_s if math.isfinite(mtbf_s) else 0.0
    return stalls + undone
