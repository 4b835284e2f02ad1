"""`holdfast bench policies`: every way to go on after a failure, by cluster size and spares.

The same failures under each policy, Llama 3's rates throughout; the README's comparison comes from here.
"""

from collections.abc import Iterator
from itertools import product

import click
import msgspec

from holdfast.cli.record import json_option
from holdfast.cli.sweeping import sweep
from holdfast.cli.terminal import print_json
from holdfast.twin.policies import policy
from holdfast.twin.presets import preset, resized
from holdfast.twin.study import Study
from holdfast.twin.sweep import Figures, Spread, Task, spread
from holdfast.wording import many
from holdfast.wording.units import DAY_NS

PRESET = "llama3-405b"
SIZES = (1_024, 16_384, 131_072)
SPARES_SHARE = 32 / 2_048
"""Of the job's nodes: as many spares as Llama 3's preset keeps."""
POLICIES = ("restart", "restart-best", "snapshots", "replicas", "holdfast", "holdfast-smaller")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one cluster.

    effective_time  of the time in the run, the share in steps that were kept
    useful_of_paid  of all that was paid for, spares too, the share that was useful
    is_best         whether no other policy has a larger useful share, on these GPUs with these spares
    """

    gpus: int
    spare_nodes: int
    policy: str
    effective_time: Spread
    useful_of_paid: Spread
    is_best: bool
    is_exact: bool


class PolicyBench(msgspec.Struct, frozen=True, kw_only=True):
    preset: str
    days: float
    runs: int
    cells: tuple[Cell, ...]


@click.command("policies")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Seeds of each.")
@click.option("--days", type=click.IntRange(min=1), default=7, show_default=True, help="Of each run.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--gpus", "sizes", type=click.IntRange(min=128), multiple=True, help="Cluster sizes, repeatable."
)
@json_option
def command(runs: int, days: int, processes: int, sizes: tuple[int, ...], as_json: bool) -> None:
    """Simulate every policy on small and large clusters, with and without spares."""
    bench = measure(runs=runs, days=days, processes=processes, sizes=sizes or SIZES)
    if as_json:
        print_json(bench)
        return
    click.echo(
        f"Llama 3's failure rates, {many(days, 'day')}, {many(runs, 'seed')}: effective time, useful of"
    )
    click.echo("what is paid for; * marks the most useful of each cluster.")
    for (gpus, spares), cells in _by_cluster(bench.cells):
        click.echo(f"\n{gpus:,} GPUs, {many(spares, 'spare node')}")
        for cell in cells:
            useful = f"{100 * cell.useful_of_paid.p50:5.1f} %{'*' if cell.is_best else ''}"
            click.echo(f"  {cell.policy:<18}{100 * cell.effective_time.p50:5.1f} %   {useful}")
    agrees = "agreed" if all(cell.is_exact for cell in bench.cells) else "did not agree"
    click.echo(f"\nThe ledger of every run {agrees} with the simulation to the nanosecond.")


def measure(*, runs: int, days: int, processes: int, sizes: tuple[int, ...]) -> PolicyBench:
    clusters = [(gpus, spares) for gpus in sizes for spares in (0, max(1, round(gpus / 8 * SPARES_SHARE)))]
    cases = list(product(clusters, POLICIES))
    tasks = [_task(*cluster, name, days, seed) for cluster, name in cases for seed in range(1, runs + 1)]
    figures = sweep(tasks, processes=processes, ray_address=None)
    groups = [figures[at : at + runs] for at in range(0, len(figures), runs)]
    return PolicyBench(preset=PRESET, days=days, runs=runs, cells=tuple(_cells(cases, groups)))


def _task(gpus: int, spares: int, name: str, days: int, seed: int) -> Task:
    usual = preset(PRESET)
    chosen = usual if gpus == usual.job.gpus else resized(usual, gpus)
    study = Study(
        name=chosen.name,
        job=chosen.job,
        layout=chosen.layout,
        hazards=chosen.hazards,
        duration_ns=days * DAY_NS,
        usd_per_gpu_hour=0.0,
    )
    # Every policy has the same spares here: some keep four of their own otherwise.
    played = msgspec.structs.replace(policy(name, gpus, spares), spare_nodes=spares)
    return Task(study=study, policy=played, seed=seed)


def _cells(cases: list[tuple[tuple[int, int], str]], groups: list[list[Figures]]) -> Iterator[Cell]:
    useful = [spread([one.goodput for one in group]) for group in groups]
    best: dict[tuple[int, int], float] = {}
    for (cluster, _), of_paid in zip(cases, useful, strict=True):
        best[cluster] = max(best.get(cluster, 0.0), of_paid.p50)
    for (cluster, name), of_paid, group in zip(cases, useful, groups, strict=True):
        yield Cell(
            gpus=cluster[0],
            spare_nodes=cluster[1],
            policy=name,
            effective_time=spread([one.effective_time for one in group]),
            useful_of_paid=of_paid,
            is_best=of_paid.p50 == best[cluster],
            is_exact=all(one.is_exact for one in group),
        )


def _by_cluster(cells: tuple[Cell, ...]) -> Iterator[tuple[tuple[int, int], list[Cell]]]:
    found: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.gpus, cell.spare_nodes), []).append(cell)
    yield from found.items()
