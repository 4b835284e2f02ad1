"""What to expect of a run: the useful share of its time, when it will be done, and which changes would help.

Both models have closed forms. Kokolis et al. 2024 give the mean of the effective training time ratio (ETTR)
for failures of one kind, to first order. `Prospect` has several kinds of interruption and is exact if they
are a Poisson process of the time that the run is up. It also gives the spread: an interruption stops the run
and undoes work; repeating it takes up-time, in which the run may be interrupted again. Delays branch as in a
queue's busy period, and their moments follow from those of one interruption. Quantiles come from the gamma
distribution with the first three moments (Pearson III). The formulas ignore failures that come in groups and
the varying wait for repairs. The twin covers both; forecasts show formula and twin side by side.
"""

from collections.abc import Sequence
from math import ceil, log, sqrt

import msgspec
import numpy as np
from scipy import stats

from holdfast import wording
from holdfast.economics.cadence.cadence import mtbf_of_nodes_s
from holdfast.wording.units import DAY_S

NEVER = 1e-12
"""A probability small enough to ignore."""
INTERRUPTIONS_FEW = 10
"""With fewer expected, the run may well have none, so its quantiles are rough."""


# ---- the mean, by Kokolis et al. -------------------------------------------------------------------------


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The five numbers of "Revisiting Reliability in Large-Scale ML Research Clusters" (arXiv:2410.21680v2).

    restart_s (u0): from a failure to the next step. stall_s (w): for a checkpoint, every interval_s (dt).
    """

    nodes: float
    failures_per_1000_node_days: float
    restart_s: float
    interval_s: float
    stall_s: float = 0.0

    @property
    def mttf_s(self) -> float:
        """The mean time to failure of a job that needs all of its nodes: 1 / (N r_f)."""
        return mtbf_of_nodes_s(self.nodes, self.failures_per_1000_node_days)


def ettr(setting: Setting) -> float:
    """(1 - N r_f (u0 + dt/2)) / (1 + w/dt): expected effective training time ratio.

    Its authors found it within about 5 % of simulation. Where a failure costs more time than passes between
    failures, the job makes no progress to first order: 0, and `standstill` says why.
    """
    return max(0.0, 1 - _lost_s(setting) / setting.mttf_s) / (1 + setting.stall_s / setting.interval_s)


def standstill(setting: Setting) -> str:
    """Why `ettr` is 0, as a sentence; empty if it is not."""
    lost_s = _lost_s(setting)
    if lost_s < setting.mttf_s:
        return ""
    lost, between = (wording.duration(round(part_s * 1e9)) for part_s in (lost_s, setting.mttf_s))
    return (
        f"By ETTR the run makes no progress: a failure costs {lost}, on average, and one comes every "
        f"{between}. ETTR counts failures that come during a recovery in full, which is too pessimistic here."
    )


def _lost_s(setting: Setting) -> float:
    """What a failure costs: the restart, and half an interval of work."""
    return setting.restart_s + setting.interval_s / 2


# ---- mean and spread, several kinds of interruption ------------------------------------------------------

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(24)
"""Enough for x^3 e^(-x) over an interval of several mean times between failures."""


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of interruption: how often it comes, how long the run stops, how much work is repeated.

    per_day       per day of up-time: nothing interrupts a run that is down
    undone_s_min  always repeated: the checkpoint being written cannot be loaded yet
    undone_s_max  failures strike at any time between checkpoints: any amount between the two
    """

    name: str
    per_day: float
    stop_s: float
    undone_s_min: float = 0.0
    undone_s_max: float = 0.0

    def moment(self, lost: int, undone: int, rate_per_s: float) -> float:
        """E[L^lost U^undone] of the repeated work U and the total loss L = stop + U, in seconds.

        If a run is interrupted at a total rate r, an interruption is x after a checkpoint with a density that
        falls as e^(-r x): few runs reach the end of a long interval.
        """
        span_s = self.undone_s_max - self.undone_s_min
        since_s = span_s * (_POINTS + 1) / 2
        # Relative to the first point, so that not all weights vanish at very high rates.
        weights = _WEIGHTS * np.exp(-rate_per_s * (since_s - since_s[0]))
        again_s = self.undone_s_min + since_s
        return float(np.average((self.stop_s + again_s) ** lost * again_s**undone, weights=weights))


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """A run's conditions.

    stall_share       time stalled by checkpoints over training time
    nodes_out         mean number of nodes in repair
    spare_nodes       nodes that stand by beyond those the run needs
    unit_nodes        nodes of a unit that is useless if it lacks one; 0: the run needs every node
    rate_spread       standard deviation of the failure rate over the rate, if it is uncertain
    """

    nodes: int
    interruptions: tuple[Interruption, ...]
    stall_share: float = 0.0
    nodes_out: float = 0.0
    spare_nodes: int = 0
    unit_nodes: int = 0
    rate_spread: float = 0.0

    @property
    def rate_per_s(self) -> float:
        """The rate of interruptions of all kinds."""
        return sum(kind.per_day for kind in self.interruptions) / DAY_S

    @property
    def staffed(self) -> float:
        """The mean share of its full strength that the run has, with spares in place of nodes in repair.

        The number of nodes in repair is a Poisson variable: repairs do not wait for each other.
        """
        away = stats.poisson(self.nodes_out)
        if not self.unit_nodes:
            return float(away.cdf(self.spare_nodes))
        missing = self.nodes_out - float(away.sf(np.arange(self.spare_nodes)).sum())
        return max(0.0, 1 - missing * self.unit_nodes / self.nodes)

    @property
    def goodput(self) -> float:
        """Expected share of time that is useful training at full strength; 0 if the run makes no progress."""
        again, lost = self.moment(0, 1), self.moment(1, 0)
        return self.staffed * max(0.0, 1 - again) / (1 - again + lost) / (1 + self.stall_share)

    def moment(self, lost: int, undone: int) -> float:
        """Rate times E[L^lost U^undone], per second of up-time, for all kinds together."""
        rate_per_s = self.rate_per_s
        return sum(
            kind.per_day / DAY_S * kind.moment(lost, undone, rate_per_s) for kind in self.interruptions
        )


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """How long a piece of work takes. is_rough: few interruptions are expected, so quantiles are rough."""

    work_s: float
    mean_s: float
    p10_s: float
    p50_s: float
    p90_s: float
    interruptions: float
    is_rough: bool


def completion(prospect: Prospect, work_s: float) -> Completion | None:
    """How long work takes that needs `work_s` undisturbed; None if it is never done."""
    staffed = prospect.staffed
    delays = _delay_moments(prospect)
    if delays is None or staffed <= 0:
        return None
    worked_s = work_s * (1 + prospect.stall_share) / staffed
    mean_s = worked_s * (1 + delays[0])
    by_rate_s = worked_s * delays[0] * prospect.rate_spread
    spread_s = sqrt(worked_s * delays[1] + by_rate_s**2)
    skew = worked_s * delays[2] / spread_s**3 if spread_s else 0.0
    p10_s, p50_s, p90_s = (
        # A run is never faster than undisturbed work.
        max(worked_s, float(stats.pearson3.ppf(q, skew, loc=mean_s, scale=spread_s))) if spread_s else mean_s
        for q in (0.1, 0.5, 0.9)
    )
    expected = prospect.rate_per_s * worked_s / (1 - prospect.moment(0, 1))
    return Completion(
        work_s=work_s,
        mean_s=mean_s,
        p10_s=p10_s,
        p50_s=p50_s,
        p90_s=p90_s,
        interruptions=expected,
        is_rough=expected < INTERRUPTIONS_FEW,
    )


def _delay_moments(prospect: Prospect) -> tuple[float, float, float] | None:
    """The first three cumulants of the delay per second of work; None if the work is never done.

    An interruption delays the run by B: its loss L, plus the delays of all interruptions while U is repeated.
    With r the rate and b_n = E[B^n], the moments of a compound Poisson sum over U give b_n in terms of the
    earlier ones. The delay of work W is such a sum over W: its cumulants are r b_n W.
    """
    m = prospect.moment
    if m(0, 1) >= 1:
        return None
    left = 1 - m(0, 1)
    rb_1 = m(1, 0) / left
    rb_2 = (m(2, 0) + 2 * m(1, 1) * rb_1 + m(0, 2) * rb_1**2) / left
    rb_3 = (
        m(3, 0)
        + 3 * m(2, 1) * rb_1
        + 3 * (m(1, 1) * rb_2 + m(1, 2) * rb_1**2)
        + 3 * m(0, 2) * rb_1 * rb_2
        + m(0, 3) * rb_1**3
    ) / left
    return rb_1, rb_2, rb_3


def spares_for(nodes_out: float, share_of_time: float) -> int:
    """The fewest spare nodes with which the run is complete for this share of the time."""
    return int(stats.poisson(nodes_out).ppf(share_of_time))


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of a change: goodput gained, days sooner on average, GPU-hours not paid for.

    Spares are paid for, too: more of them may finish the run sooner and still cost more than they save.
    """

    name: str
    goodput: float
    gained: float
    days_sooner: float
    gpu_hours: float
    usd: float


def worth(
    name: str, *, before: Prospect, after: Prospect, work_s: float, gpus: int, usd_per_gpu_hour: float
) -> Worth | None:
    """The difference between two prospects of a run on `gpus` GPUs; None if either is never done."""
    slow, fast = completion(before, work_s), completion(after, work_s)
    if slow is None or fast is None:
        return None
    paid_before, paid_after = (gpus * (1 + of.spare_nodes / of.nodes) for of in (before, after))
    gpu_hours = (slow.mean_s * paid_before - fast.mean_s * paid_after) / 3_600
    return Worth(
        name=name,
        goodput=after.goodput,
        gained=after.goodput - before.goodput,
        days_sooner=(slow.mean_s - fast.mean_s) / DAY_S,
        gpu_hours=gpu_hours,
        usd=gpu_hours * usd_per_gpu_hour,
    )


# ---- one per cent of the GPUs, ten per cent of the output ------------------------------------------------


class Degraded(msgspec.Struct, frozen=True, kw_only=True):
    """At any time this share of the GPUs, anywhere in the cluster, is bad.

    slowdown     factor of a slow GPU on the step time of its replica; a dead GPU does no steps
    member_gpus  GPUs of one model replica, which is as fast as its slowest GPU
    """

    share: float
    slowdown: float
    gpus: int
    member_gpus: int
    lanes: int
    gpus_per_node: int = 8


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The mean effect of bad GPUs. Each output is a share of the undisturbed one.

    waiting         slow GPUs; all wait for the slowest
    rebalanced      slow GPUs; lanes are dealt by speed
    gathered        the same, with all affected nodes in as few replicas as possible; no difference if a node
                    holds several replicas
    dead_waiting    dead GPUs; the run needs all GPUs, so it runs only while none is dead
    without_members dead GPUs; the run goes on without every replica that has one
    without_nodes   dead GPUs; their nodes are taken out and replicas are formed anew from whole nodes
    """

    nodes_hit: float
    members_hit: float
    waiting: float
    rebalanced: float
    gathered: float
    dead_waiting: float
    without_members: float
    without_nodes: float


def effect(of: Degraded) -> Effect:
    """The effect of a share of bad GPUs on a synchronous run, under different ways to handle them."""
    members = of.gpus // of.member_gpus
    members_hit = hit_share(of.share, of.member_gpus)
    nodes_hit = hit_share(of.share, of.gpus_per_node)
    all_hit = hit_share(of.share, members * of.member_gpus)
    return Effect(
        nodes_hit=nodes_hit,
        members_hit=members_hit,
        waiting=1 - all_hit * (1 - 1 / of.slowdown),
        rebalanced=_rebalanced(of, of.member_gpus),
        gathered=_rebalanced(of, min(of.member_gpus, of.gpus_per_node)),
        dead_waiting=1 - all_hit,
        without_members=1 - members_hit,
        without_nodes=1 - nodes_hit,
    )


def hit_share(share: float, unit_gpus: float) -> float:
    """The share of units of this many GPUs that have a bad one: 1 - (1 - f)^n."""
    return float(1 - (1 - share) ** unit_gpus)


def unit_gpus_for(share: float, loss: float) -> int:
    """The smallest unit, lost as a whole, with which this share of bad GPUs costs that much output."""
    return ceil(log(1 - loss) / log(1 - share))


def slowdown_for(loss: float) -> float:
    """How slow one GPU must be for a run that waits for it to lose this share."""
    return 1 / (1 - loss)


def _rebalanced(of: Degraded, unit_gpus: int) -> float:
    """The mean over the number of units with a bad GPU, gathered in as few members as possible."""
    members, units = of.gpus // of.member_gpus, of.gpus // unit_gpus
    hit = stats.binom(units, hit_share(of.share, unit_gpus))
    counts = np.arange(hit.ppf(NEVER), hit.isf(NEVER) + 1)
    slow = np.ceil(counts * unit_gpus / of.member_gpus).astype(int)
    output = {count: rebalanced_output(members, count, of.slowdown, of.lanes) for count in set(slow.tolist())}
    return float(np.average([output[count] for count in slow.tolist()], weights=hit.pmf(counts)))


def rebalanced_output(members: int, slow: int, slowdown: float, lanes: int) -> float:
    """The output if lanes are dealt so that all members finish in the shortest common time.

    Lanes cannot be split: with few lanes per member there is little to rebalance.
    """
    even = ceil(lanes / members)
    times: Sequence[float] = sorted(
        {*map(float, range(even, ceil(even * slowdown) + 1)), *(n * slowdown for n in range(even + 1))}
    )
    for time in times:
        if time >= even and (members - slow) * int(time) + slow * int(time / slowdown + 1e-9) >= lanes:
            return even / time
    return 1 / slowdown
