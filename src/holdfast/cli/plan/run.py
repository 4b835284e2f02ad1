"""`holdfast plan run`: when a run will be done, how sure that is, and what would make it sooner."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from holdfast.cli.durations import seconds, seconds_with_unit, some_seconds
from holdfast.cli.moments import moment_ns
from holdfast.cli.numbers import count, number_between
from holdfast.cli.plan.run_case import Asked, Assumed, Case, case
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option, store_option
from holdfast.cli.sweeping import sweep
from holdfast.cli.terminal import print_json
from holdfast.dashboard import wording
from holdfast.economics.cadence import DAY_S
from holdfast.economics.expectation import (
    Completion,
    Degraded,
    Effect,
    Prospect,
    Worth,
    completion,
    effect,
    ettr,
    slowdown_for,
    unit_gpus_for,
    worth,
)
from holdfast.record.errors import InputError
from holdfast.twin import outlook
from holdfast.twin.sweep import Task

TEN_PER_CENT = 0.10
"""The loss of output that one per cent of bad GPUs is said to cost."""
QUANTILES = (0.1, 0.5, 0.9)
SENSIBLE_TIMES = 100
"""A run that takes so many times its work is not foreseen. Beyond the horizon of `run_case` only the formula
answers: the twin would give up."""


class _Flags(Asked, frozen=True, kw_only=True):
    """The command line, typed; None for what was not given."""

    runs: int
    seed: int
    bad_percent: float
    slowdown: float
    prices_path: Path | None
    as_json: bool


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One way to foresee the end. goodput: of the time until then, the share that training needs."""

    goodput: float
    mean_days: float
    p10_days: float
    p50_days: float
    p90_days: float


class BadGpus(msgspec.Struct, frozen=True, kw_only=True):
    """What a share of bad GPUs does, and where it would cost a tenth of the output.

    tenth_unit_gpus  that many GPUs that go together, or more
    tenth_slowdown   a GPU this slow, or slower, in a run that waits for it
    """

    degraded: Degraded
    effect: Effect
    tenth_unit_gpus: int
    tenth_slowdown: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints.

    ettr     Kokolis et al.; None where a failure does not stop the whole run, of which they do not speak
    formula  by chance alone, as the twin; unsure: with the failure rate not known exactly, either
    done_ns  P10, P50 and P90 of the end, where a start was given

    twin_unfinished: simulated runs that were given up, counted as done then: the twin's days are too few.
    """

    title: str
    gpus: int
    member_gpus: int
    work_days: float
    policy: str
    mtbf_h: float
    interruptions: float
    ettr: float | None
    formula: Spread
    unsure: Spread | None
    twin: Spread | None
    twin_runs: int
    twin_unfinished: int
    done_ns: tuple[int, int, int] | None
    worth: tuple[Worth, ...]
    bad_gpus: BadGpus
    usd_per_gpu_hour: float
    is_rough: bool
    assumed: tuple[Assumed, ...]

    @property
    def best(self) -> Spread:
        """The one that knows most: of the rate's uncertainty, else of the cluster, else the formula."""
        return self.unsure or self.twin or self.formula


_DAYS = number_between(0.001, 10_000)
_SECONDS = number_between(0.001, 10**7)


@click.command("run")
@click.option(
    "--preset", metavar="NAME", help="A published cluster, such as llama3-405b; with --gpus, resized."
)
@click.option("--run", metavar="RUN", help="A run in the record, from where it is now; with --steps.")
@click.option("--gpus", type=count, help="A run of one's own on so many GPUs; with --days.")
@click.option("--days", type=_DAYS, help="How long it would train if nothing ever happened.")
@click.option("--steps", type=count, help="The number of the last step of --run.")
@click.option("--step-s", type=_SECONDS, help="Seconds a step.")
@click.option(
    "--member-gpus", type=count, metavar="N", help="GPUs of one model replica.  [default: a node's]"
)
@click.option(
    "--mtbf", "mtbf_s", type=seconds_with_unit, metavar="TIME", help="Between failures of the whole run."
)
@click.option(
    "--rates", type=click.Path(path_type=Path), metavar="FILE", help="What `plan fit --json` found, instead."
)
@click.option("--policy", metavar="NAME", help="What is done about a failure: restart, spares, holdfast, ...")
@click.option("--spares", type=click.IntRange(0, 10**6), metavar="N", help="Nodes that stand by.")
@click.option(
    "--interval", "interval_s", type=some_seconds, metavar="TIME", help="From one checkpoint to the next."
)
@click.option(
    "--stall", "stall_s", type=seconds, metavar="TIME", help="For how long a checkpoint stops training."
)
@click.option("--chip", help="Such as h100, for its price.")
@click.option("--start", "start_ns", callback=moment_ns, metavar="DATE", help="When it starts, for dates.")
@click.option(
    "--bad-percent",
    type=number_between(0.001, 50),
    default=1.0,
    show_default=True,
    help="GPUs that are bad.",
)
@click.option(
    "--slowdown",
    type=number_between(1.001, 100),
    default=1.3,
    show_default=True,
    help="What a slow GPU does to the step time.",
)
@click.option(
    "--runs",
    type=click.IntRange(0, 10_000),
    default=10,
    show_default=True,
    help="Simulated; 0: formulas only.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first of them.")
@prices_option
@store_option
@json_option
def command(**flags: Any) -> None:
    """Foresee the end of a run, and what would bring it nearer.

    The end has a spread (P10, P50, P90), from a formula and from simulated runs, side by side. What could be
    changed is priced. A share of bad GPUs is followed to the output it costs. docs/expectation.md has the
    formulas. Times are 90s, 5m, 3.1h or 2d; without a unit, seconds.

    Example: holdfast plan run --gpus 1024 --days 10 --mtbf 20h --start 2026-09-01
    """
    given = msgspec.convert(flags, _Flags)
    prices = load_planning_prices(given.prices_path)
    with in_currency(prices):
        found = answer(case(given, prices), given)
    if given.as_json:
        print_json(found)
        return
    from holdfast.cli.plan.run_text import show

    with in_currency(prices):
        show(found)


def answer(of: Case, flags: _Flags) -> Answer:
    """All that is foreseen of a case."""
    chance = outlook.prospect(of.study, of.policy, of.work_s / DAY_S)
    by_formula = _foreseen(chance, of)
    unsure = msgspec.structs.replace(chance, rate_spread=of.rate_spread)
    is_near = by_formula.mean_s <= of.study.duration_ns / 1e9
    simulated = _simulated(of, range(flags.seed, flags.seed + flags.runs)) if flags.runs and is_near else []
    setting = outlook.setting(of.study, of.policy)
    found = Answer(
        title=of.title,
        gpus=of.study.job.gpus,
        member_gpus=of.study.job.member_gpus,
        work_days=of.work_s / DAY_S,
        policy=of.policy.title,
        mtbf_h=setting.mttf_s / 3_600,
        interruptions=by_formula.interruptions,
        ettr=ettr(setting) if of.policy.recovery == "restart" else None,
        formula=_spread(by_formula),
        unsure=_spread(_foreseen(unsure, of)) if of.rate_spread else None,
        twin=_spread_of([run.end_s for run in simulated], of.work_s) if simulated else None,
        twin_runs=len(simulated),
        twin_unfinished=sum(not run.is_done for run in simulated),
        done_ns=None,
        worth=_worth(of),
        bad_gpus=_bad_gpus(of, flags),
        usd_per_gpu_hour=of.study.usd_per_gpu_hour,
        is_rough=by_formula.is_rough,
        assumed=of.assumed,
    )
    if of.start_ns is None:
        return found
    best = found.best
    p10, p50, p90 = (
        of.start_ns + round(days * DAY_S * 1e9) for days in (best.p10_days, best.p50_days, best.p90_days)
    )
    return msgspec.structs.replace(found, done_ns=(p10, p50, p90))


def _foreseen(prospect: Prospect, of: Case) -> Completion:
    found = completion(prospect, of.work_s)
    if found is None or found.mean_s > SENSIBLE_TIMES * of.work_s:
        raise InputError(
            f"{of.title}: under this policy the run would be done in no sensible time, as only "
            f"{wording.percent(prospect.goodput)} of it would be useful.",
            hint="Give more --spares, checkpoints more often (--interval), or another --policy.",
        )
    return found


def _spread(found: Completion) -> Spread:
    return Spread(
        goodput=found.work_s / found.mean_s,
        mean_days=found.mean_s / DAY_S,
        p10_days=found.p10_s / DAY_S,
        p50_days=found.p50_s / DAY_S,
        p90_days=found.p90_s / DAY_S,
    )


class _Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """When a simulated run ended, from its start, and whether all of its steps were done."""

    end_s: float
    is_done: bool


def _simulated(of: Case, seeds: Sequence[int]) -> list[_Simulated]:
    tasks = [Task(study=of.study, policy=of.policy, seed=seed) for seed in seeds]
    gpus = of.study.job.gpus + of.policy.spare_nodes * of.study.layout.gpus_per_node
    return [
        _Simulated(
            # Every GPU is paid for from the first moment to the last.
            end_s=3_600 * figures.paid_gpu_hours / gpus,
            is_done=figures.steps == of.study.job.steps_total,
        )
        for figures in sweep(tasks, processes=None, ray_address=None)
    ]


def _spread_of(ends_s: Sequence[float], work_s: float) -> Spread:
    p10, p50, p90 = np.quantile(ends_s, QUANTILES) / DAY_S
    mean_s = float(np.mean(ends_s))
    return Spread(
        goodput=work_s / mean_s,
        mean_days=mean_s / DAY_S,
        p10_days=float(p10),
        p50_days=float(p50),
        p90_days=float(p90),
    )


def _worth(of: Case) -> tuple[Worth, ...]:
    """What each change would bring, the most useful first; not what would bring nothing."""
    days = of.work_s / DAY_S
    now = outlook.prospect(of.study, of.policy, days)
    found = [
        worth(
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


def _bad_gpus(of: Case, flags: _Flags) -> BadGpus:
    job = of.study.job
    degraded = Degraded(
        share=flags.bad_percent / 100,
        slowdown=flags.slowdown,
        gpus=job.gpus,
        member_gpus=job.member_gpus,
        lanes=job.lanes,
        gpus_per_node=of.study.layout.gpus_per_node,
    )
    return BadGpus(
        degraded=degraded,
        effect=effect(degraded),
        tenth_unit_gpus=unit_gpus_for(degraded.share, TEN_PER_CENT),
        tenth_slowdown=slowdown_for(TEN_PER_CENT),
    )
