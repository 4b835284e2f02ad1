"""`holdfast bench diagnose`: how often a diagnosis is right, how soon, its false alarms, and its cost.

Incidents of every kind are played in the twin, between quiet hours, planned maintenance and decoys, and the
reports are compared with the truth. The same seeds always give the same figures. Seeds for tuning detectors
are kept apart from the reported ones.
"""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from statistics import median

import click
import msgspec
from rich.console import Console
from rich.table import Table

from bench.papers import HIDEABLE, MECHANISM_OF, Marks, Paper, examine
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.detect.detecting import METRICS
from holdfast.detect.physics import BALANCE
from holdfast.diagnose.assess import Circumstances, Inquiry, assess
from holdfast.drills.scenarios import SCENARIOS, play
from holdfast.drills.telemetry import Replay
from holdfast.drills.wiring import topology_of
from holdfast.drills.world import cast
from holdfast.signals.frame import Frame
from holdfast.twin.cluster import Layout
from holdfast.wording.units import DAY_S

TUNING_SEEDS = range(1, 100)
"""The only seeds for work on detectors."""
FIRST_SEED = 101
SMALL_GPUS, LARGE_GPUS = 1_024, 16_384
LARGE_SHARE = 2
"""One in this many small plays is repeated on the large cluster."""
QUIET_S = 6 * 3_600.0
EVALUATION_METRICS = 20
EVALUATION_KIND, EVALUATION_SEED = "cooling-inlet", 1
"""The one with the most findings: half of the hall is hot."""
GROWTH_GPUS = 4_096
ROUNDS = 3
DIRT_HELP = "Times as many missed scrapes, stuck sensors and wrong units as usual."
UNKNOWN = "unknown"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of incident. Times are medians, None if it was never noticed in time."""

    kind: str
    plays: int
    precision: float
    recall: float
    domain_accuracy: float
    owner_accuracy: float
    detect_s_median: float | None
    name_s_median: float | None
    false_alarms: int


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A play with a wrong diagnosis, with what is needed to play it again."""

    kind: str
    seed: int
    gpus: int
    said: tuple[tuple[str, str], ...]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a window of half an hour in which something is wrong, on one core.

    growth: seconds a GPU at `gpus` over those at a quarter of them: 1 where the cost is linear.
    peak_bytes: of a fresh process, the readings and Python included.
    """

    gpus: int
    metrics: int
    values: int
    seconds: float
    growth: float
    peak_bytes: int


class DiagnoseBench(msgspec.Struct, frozen=True, kw_only=True):
    """precision: of the causes that were reported, the share that was right. recall: of the incidents, the
    share whose cause was reported. False alarms count in precision and by cluster-day of quiet. An incident
    without a known explanation (`unknown`) has no named cause: it costs recall, but not precision.
    """

    incidents: int
    kinds: int
    seeds: tuple[int, int]
    tuning_seeds: tuple[int, int]
    gpus: tuple[int, ...]
    without: tuple[str, ...]
    dirt: float
    precision: float
    recall: float
    domain_accuracy: float
    owner_accuracy: float
    detect_s_median: float
    detect_s_p90: float
    name_s_median: float
    false_alarms: int
    quiet_days: float
    false_alarms_per_day: float
    by_kind: tuple[Kind, ...]
    misses: tuple[Miss, ...]
    evaluation: Evaluation


@click.command("diagnose")
@click.option("--seeds", type=click.IntRange(min=1), default=8, show_default=True, help="Of each kind.")
@click.option("--first-seed", type=click.IntRange(min=0), default=FIRST_SEED, show_default=True)
@click.option("--quiet-days", type=click.FloatRange(min=0), default=10.0, show_default=True)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(tuple(HIDEABLE)),
    help="Let monitoring not have these metrics. May be repeated.",
)
@click.option("--dirt", type=click.FloatRange(min=0), default=1.0, show_default=True, help=DIRT_HELP)
@click.option("--small-only", is_flag=True, help=f"Leave out the cluster of {LARGE_GPUS:,} GPUs.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)
@json_option
def command(
    seeds: int,
    first_seed: int,
    quiet_days: float,
    without: tuple[str, ...],
    dirt: float,
    small_only: bool,
    processes: int,
    as_json: bool,
) -> None:
    """Diagnose hundreds of simulated incidents, and compare the answers with the truth."""
    papers = [
        msgspec.structs.replace(paper, without=without, dirt=dirt)
        for paper in _papers(range(first_seed, first_seed + seeds), quiet_days, not small_only)
    ]
    with get_context("spawn").Pool(processes) as pool:
        marks = list(_with_progress(pool.imap_unordered(examine, papers), len(papers)))
        evaluation = pool.apply(_evaluate, (SMALL_GPUS if small_only else LARGE_GPUS,))
    bench = _summary(marks, (first_seed, first_seed + seeds - 1), without, dirt, evaluation)
    if as_json:
        print_json(bench)
    else:
        _show(bench)


def _papers(seeds: range, quiet_days: float, with_large: bool) -> Iterator[Paper]:
    """The papers, the longest first, so that no process has a long one left at the end."""
    names = tuple(SCENARIOS)
    if with_large:
        for seed in seeds[::LARGE_SHARE]:
            for name in names:
                yield Paper(scenario=name, seed=seed, gpus=LARGE_GPUS)
    for number in range(round(quiet_days * DAY_S / QUIET_S)):
        yield Paper(scenario="quiet", seed=seeds[0] + number, gpus=SMALL_GPUS, duration_s=QUIET_S)
    for seed in seeds:
        for name in names:
            yield Paper(scenario=name, seed=seed, gpus=SMALL_GPUS)


def _with_progress(marks: Iterator[Marks], count: int) -> Iterator[Marks]:
    for number, one in enumerate(marks, start=1):
        if sys.stderr.isatty():
            click.echo(f"\r{number} of {count} played", err=True, nl=number == count)
        yield one


def _summary(
    marks: Sequence[Marks],
    seeds: tuple[int, int],
    without: tuple[str, ...],
    dirt: float,
    evaluation: Evaluation,
) -> DiagnoseBench:
    incidents = [one for one in marks if one.is_incident]
    quiet_days = sum(one.quiet_s for one in marks) / DAY_S
    alarms = sum(one.false_alarms for one in marks)
    noticed = sorted(one.detect_s for one in incidents if one.detect_s is not None)
    named = [one.name_s for one in incidents if one.name_s is not None]
    return DiagnoseBench(
        incidents=len(incidents),
        kinds=len({one.paper.scenario for one in incidents}),
        seeds=seeds,
        tuning_seeds=(TUNING_SEEDS[0], TUNING_SEEDS[-1]),
        gpus=tuple(sorted({one.paper.gpus for one in marks})),
        without=without,
        dirt=dirt,
        precision=_precision(marks),
        recall=_share(one.named for one in incidents),
        domain_accuracy=_share(one.domain_right for one in incidents),
        owner_accuracy=_share(one.owner_right for one in incidents),
        # An incident that was never noticed counts as noticed later than all others.
        detect_s_median=_quantile(noticed, len(incidents), 0.5),
        detect_s_p90=_quantile(noticed, len(incidents), 0.9),
        name_s_median=_quantile(sorted(named), len(incidents), 0.5),
        false_alarms=alarms,
        quiet_days=quiet_days,
        false_alarms_per_day=alarms / quiet_days if quiet_days else 0.0,
        by_kind=tuple(_kind(name, marks) for name in dict.fromkeys(one.paper.scenario for one in marks)),
        misses=tuple(
            Miss(kind=one.paper.scenario, seed=one.paper.seed, gpus=one.paper.gpus, said=one.said)
            for one in sorted(marks, key=lambda one: (one.paper.scenario, one.paper.seed, one.paper.gpus))
            if one.false_alarms or (one.is_incident and (not one.named or len(one.said) > 1))
        ),
        evaluation=evaluation,
    )


def _kind(name: str, marks: Sequence[Marks]) -> Kind:
    mine = [one for one in marks if one.paper.scenario == name]
    noticed = [one.detect_s for one in mine if one.detect_s is not None]
    named = [one.name_s for one in mine if one.name_s is not None]
    return Kind(
        kind=name,
        plays=len(mine),
        precision=_precision(mine),
        recall=_share(one.named for one in mine) if name in MECHANISM_OF else 1.0,
        domain_accuracy=_share(one.domain_right for one in mine),
        owner_accuracy=_share(one.owner_right for one in mine),
        detect_s_median=median(noticed) if noticed else None,
        name_s_median=median(named) if named else None,
        false_alarms=sum(one.false_alarms for one in mine),
    )


def _precision(marks: Sequence[Marks]) -> float:
    said = sum(mechanism != UNKNOWN for one in marks if one.is_incident for mechanism, _ in one.said)
    said += sum(one.false_alarms for one in marks)
    return sum(one.right for one in marks) / said if said else 1.0


def _share(flags: Iterator[bool]) -> float:
    known = list(flags)
    return sum(known) / len(known) if known else 1.0


def _quantile(ordered: Sequence[float], count: int, share: float) -> float:
    place = min(int(share * count), count - 1)
    return ordered[place] if place < len(ordered) else float("inf")


# -- what it costs to look -------------------------------------------------------------------------------


READ = frozenset((*METRICS, *BALANCE))
"""The metrics that an assessment reads; others would cost nothing."""


class _Some:
    """A source with so many metrics of GPUs, made beforehand, and all that is small beside them."""

    def __init__(self, source: Replay, metrics: Sequence[str]) -> None:
        self._source, self._metrics = source, tuple(metrics)

    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        return self._source.frame(metric, window_ns) if metric in self._metrics else None


def _evaluate(gpus: int) -> Evaluation:
    """In a process of its own, whose memory is that of this alone."""
    small_s, _ = _timed(min(GROWTH_GPUS, gpus // 2))
    seconds, values = _timed(gpus)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Evaluation(
        gpus=gpus,
        metrics=EVALUATION_METRICS,
        values=values,
        seconds=seconds,
        growth=(seconds / gpus) / (small_s / min(GROWTH_GPUS, gpus // 2)),
        peak_bytes=peak if sys.platform == "darwin" else peak * 1024,
    )


def _timed(gpus: int) -> tuple[float, int]:
    """Seconds of one core for one look, and how many readings that was."""
    played = play(EVALUATION_KIND, EVALUATION_SEED, layout=Layout(gpus=gpus))
    topology = topology_of(cast(played.layout, with_pools=False), played.run)
    replay = Replay(played.telemetry)
    whole = (0, 2**62)
    frames = {name: replay.frame(name, whole) for name in replay.metrics()}
    by_size = sorted(frames.keys() & READ, key=lambda name: (-_values(frames[name]), name))
    chosen = by_size[:EVALUATION_METRICS] + [name for name in by_size if _values(frames[name]) < gpus * 100]
    source, times_s = _Some(replay, chosen), []
    now_ns = max(int(frame.times_ns[-1]) for frame in frames.values() if frame is not None)
    known = Circumstances(events=played.events)
    for _ in range(ROUNDS):
        began_s = time.process_time()
        said = assess(source, topology, Inquiry(now_ns=now_ns), known).incidents
        times_s.append(time.process_time() - began_s)
        assert said, "the evaluation that is timed has something to find"
    return min(times_s), sum(_values(frames[name]) for name in chosen)


def _values(frame: Frame | None) -> int:
    return 0 if frame is None else int(frame.values.size)


# -- for people ------------------------------------------------------------------------------------------


def _show(bench: DiagnoseBench) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind")
    for heading in ("plays", "precision", "recall", "domain", "owner", "detected", "named", "false"):
        table.add_column(heading, justify="right")
    for kind in bench.by_kind:
        table.add_row(
            kind.kind,
            str(kind.plays),
            f"{kind.precision:.2f}",
            f"{kind.recall:.2f}",
            f"{kind.domain_accuracy:.2f}",
            f"{kind.owner_accuracy:.2f}",
            _seconds(kind.detect_s_median),
            _seconds(kind.name_s_median),
            str(kind.false_alarms),
        )
    Console(highlight=False).print(table)
    click.echo()
    click.echo(
        f"{bench.incidents} incidents of {bench.kinds} kinds, seeds {bench.seeds[0]} to {bench.seeds[1]}:"
    )
    click.echo(f"  precision {bench.precision:.3f}, recall {bench.recall:.3f}", nl=False)
    click.echo(f", domain right {bench.domain_accuracy:.3f}, owner right {bench.owner_accuracy:.3f}")
    click.echo(
        f"  detected after {bench.detect_s_median:.0f} s, nine in ten {bench.detect_s_p90:.0f} s", nl=False
    )
    click.echo(f"; the right cause named after {bench.name_s_median:.0f} s (medians)")
    click.echo(f"  {bench.false_alarms} false alarms in {bench.quiet_days:.1f} quiet cluster-days", nl=False)
    click.echo(f": {bench.false_alarms_per_day:.2f} a day")
    one = bench.evaluation
    click.echo(f"One look at {one.gpus:,} GPUs, half an hour of {one.metrics} metrics of each", nl=False)
    click.echo(f" ({one.values / 1e6:.0f} million readings): {one.seconds:.2f} s", nl=False)
    click.echo(f", {one.peak_bytes / 1e9:.2f} GB; {one.growth:.2f} times the cost a GPU of a smaller one")
    for miss in bench.misses:
        said = ", ".join(f"{mechanism} at {subject}" for mechanism, subject in miss.said) or "nothing"
        click.echo(f"  missed: {miss.kind}, seed {miss.seed}, {miss.gpus:,} GPUs: said {said}")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
