"""`holdfast bench twin`: how long a simulated run takes, how that grows with its failures, and in what
memory.

No peer simulates this, so the limits are a user's: a run in seconds, a thousand seeds in minutes, a hundred
thousand GPUs in a laptop's memory.
"""

import resource
import sys
import time
from multiprocessing import get_context

import click
import msgspec

from holdfast.cli.record import json_option
from holdfast.cli.sweeping import sweep
from holdfast.cli.terminal import print_json
from holdfast.twin.policies import policy
from holdfast.twin.presets import preset, resized
from holdfast.twin.study import Study
from holdfast.twin.sweep import Figures, Task, play
from holdfast.wording import many
from holdfast.wording.units import DAY_NS

PRESET = "llama3-405b"
DAYS = 54
LARGE_GPUS = 100_096
"""100,000, rounded up to whole replicas of 128."""
TIMES_MORE = 4
ROUNDS = 3
SEEDS_MIN = 4


class TwinBench(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. Times are of one process, the best of the rounds.

    days               how long the simulated runs are
    llama3_s           16,384 GPUs under Holdfast's policy, from the seed to the ledger
    llama3_restart_s   the same under a full restart
    us_per_failure     of the run under Holdfast's policy; us_per_failure_4x: with four times the failures
    growth             us_per_failure_4x / us_per_failure: 1 where the cost is linear in failures
    seeds, seeds_s     so many seeds under that policy on `processes` processes, and how long they took
    thousand_seeds_min what a thousand would take at that rate
    gpus_100k, s_100k  a cluster of 100,000 GPUs for as long
    peak_bytes_100k    the most memory of a fresh process that simulates it, Python and all included
    is_exact           whether every ledger agreed with its run to the nanosecond
    """

    days: int
    llama3_s: float
    llama3_restart_s: float
    failures: int
    us_per_failure: float
    us_per_failure_4x: float
    growth: float
    seeds: int
    processes: int
    seeds_s: float
    thousand_seeds_min: float
    gpus_100k: int
    s_100k: float
    peak_bytes_100k: int
    is_exact: bool


@click.command("twin")
@click.option("--seeds", type=click.IntRange(min=SEEDS_MIN), default=20, show_default=True)
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--days", type=click.IntRange(min=1), default=DAYS, show_default=True, help="Fewer for a quick look."
)
@json_option
def command(seeds: int, processes: int, days: int, as_json: bool) -> None:
    """Simulate Llama 3's 54 days: seconds for a run, growth with failures, seeds, and 100,000 GPUs."""
    bench = measure(seeds, processes, days)
    if as_json:
        print_json(bench)
        return
    click.echo(
        f"16,384 GPUs for {many(bench.days, 'day')}: {bench.llama3_s:.2f} s under Holdfast's policy", nl=False
    )
    click.echo(f" ({bench.failures} failures), {bench.llama3_restart_s:.2f} s under a full restart")
    click.echo(f"  one failure: {bench.us_per_failure:,.0f} us; of four times as many: ", nl=False)
    click.echo(f"{bench.us_per_failure_4x:,.0f} us ({bench.growth:.2f} times)")
    click.echo(f"  {bench.seeds} seeds on {bench.processes} processes: {bench.seeds_s:.1f} s", nl=False)
    click.echo(f"; a thousand would take {bench.thousand_seeds_min:.1f} minutes")
    click.echo(f"100,000 GPUs for {many(bench.days, 'day')}: {bench.s_100k:.2f} s", nl=False)
    click.echo(f", {bench.peak_bytes_100k / 1e6:,.0f} MB at most")
    agrees = "agreed" if bench.is_exact else "did not agree"
    click.echo(f"The ledger of every run {agrees} with the simulation to the nanosecond.")


def measure(seeds: int, processes: int, days: int) -> TwinBench:
    usual, often = task("holdfast", days), task("holdfast", days, failures_times=TIMES_MORE)
    llama3_s, first = _timed(usual)
    restart_s, restarted = _timed(task("restart", days))
    often_s, more = _timed(often)
    per_failure = llama3_s / (first.interruptions + first.planned)
    per_failure_more = often_s / (more.interruptions + more.planned)
    tasks = [msgspec.structs.replace(usual, seed=seed) for seed in range(seeds)]
    began_s = time.perf_counter()
    swept = sweep(tasks, processes=processes, ray_address=None)
    seeds_s = time.perf_counter() - began_s
    with get_context("spawn").Pool(1) as pool:
        large_s, peak_bytes, large = pool.apply(_large, (days,))
    return TwinBench(
        days=days,
        llama3_s=llama3_s,
        llama3_restart_s=restart_s,
        failures=first.interruptions + first.planned,
        us_per_failure=1e6 * per_failure,
        us_per_failure_4x=1e6 * per_failure_more,
        growth=per_failure_more / per_failure,
        seeds=seeds,
        processes=processes,
        seeds_s=seeds_s,
        thousand_seeds_min=seeds_s / seeds * 1000 / 60,
        gpus_100k=LARGE_GPUS,
        s_100k=large_s,
        peak_bytes_100k=peak_bytes,
        is_exact=all(one.is_exact for one in (first, restarted, more, large, *swept)),
    )


def task(policy_name: str, days: int, *, failures_times: float = 1, gpus: int | None = None) -> Task:
    """Llama 3's run, so many days of it, with more failures or on more GPUs where asked."""
    chosen = preset(PRESET) if gpus is None else resized(preset(PRESET), gpus)
    study = Study(
        name=chosen.name,
        job=chosen.job,
        layout=chosen.layout,
        hazards=chosen.hazards.scaled(failures_times),
        duration_ns=days * DAY_NS,
        usd_per_gpu_hour=0.0,
    )
    spares = round(chosen.practice.spare_nodes * failures_times)
    return Task(study=study, policy=policy(policy_name, chosen.job.gpus, spares), seed=1)


def _timed(one: Task) -> tuple[float, Figures]:
    times_s = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        figures = play(one)
        times_s.append(time.process_time() - began_s)
    return min(times_s), figures


def _large(days: int) -> tuple[float, int, Figures]:
    """In a process of its own, whose memory is that of this run alone."""
    began_s = time.process_time()
    figures = play(task("holdfast", days, gpus=LARGE_GPUS))
    taken_s = time.process_time() - began_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return taken_s, peak if sys.platform == "darwin" else peak * 1024, figures
