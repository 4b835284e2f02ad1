"""`python -m bench.exam`: sit the exam. See docs/exam.md."""

import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import msgspec

from bench.exam import asking, report
from bench.exam.asking import Answer, sit
from bench.exam.cases import CASES
from bench.exam.marking import mark
from bench.exam.plan import LEVELS, Case, Level

SEEDS = "1,2"
HELD_OUT_OFFSET = 1_000
"""A held-out seed becomes another number, so that it is not used by mistake."""
MINUTE_S = 60.0


def _afters_s(text: str) -> tuple[float, ...]:
    units = {"s": 1.0, "m": MINUTE_S, "h": 3_600.0}
    return tuple(float(part[:-1]) * units[part[-1]] for part in text.split(","))


def _sit(job: tuple[str, int, tuple[Level, ...], tuple[float, ...]]) -> list[Answer]:
    name, seed, levels, afters_s = job
    case = next(case for case in CASES if case.name == name)
    return sit(case, seed, levels, afters_s)


def _chosen(pattern: str, *, quick: bool) -> list[Case]:
    return [
        case
        for case in CASES
        if (case.quick or not quick) and any(p in case.name for p in pattern.split(","))
    ]


def _mixed(chosen: set[tuple[str, int]]) -> list[tuple[str, int]]:
    """Kinds mixed, always alike: a run that is broken off has seen a bit of everything."""
    return sorted(chosen, key=lambda one: (one[1], zlib.crc32(one[0].encode())))


def _kept(path: Path | None) -> list[Answer]:
    if path is None or not path.exists():
        return []
    return [msgspec.json.decode(line, type=Answer) for line in path.read_bytes().splitlines()]


def _keep(path: Path | None, answers: list[Answer]) -> None:
    if path is not None:
        with path.open("ab") as file:
            file.writelines(msgspec.json.encode(answer) + b"\n" for answer in answers)


@click.command()
@click.option("--seeds", default=SEEDS, show_default=True, help="Numbers, with commas.")
@click.option("--held-out", is_flag=True, help="Use the seeds that are kept for the last run.")
@click.option(
    "--level", type=click.Choice(LEVELS), multiple=True, help="Telemetry that is there.  [default: all three]"
)
@click.option(
    "--case", "pattern", default="", help="Only cases whose name has one of these in it, with commas."
)
@click.option(
    "--at", "at_text", default="10m,45m,180m", show_default=True, help="How long after the onset to ask."
)
@click.option("--quick", is_flag=True, help="About 15 cases, full telemetry, 10 minutes after the onset.")
@click.option("--workers", default=1, show_default=True)
@click.option("--each", is_flag=True, help="Also print a line for every question.")
@click.option(
    "--answers",
    "kept_path",
    type=click.Path(path_type=Path),
    help="Keep the answers there; cases whose answers are there already are marked, not asked again.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Write figures and answers there; - is stdout.",
)
def main(
    seeds: str,
    held_out: bool,
    level: tuple[Level, ...],
    pattern: str,
    at_text: str,
    quick: bool,
    workers: int,
    each: bool,
    kept_path: Path | None,
    json_path: Path | None,
) -> None:
    """Sit the independent exam of `holdfast diagnose`."""
    asking.quiet_environment()
    begun = time.monotonic()
    levels: tuple[Level, ...] = level or (("full",) if quick else LEVELS)
    afters_s = _afters_s("10m" if quick else at_text)
    numbers = [int(text) + HELD_OUT_OFFSET * held_out for text in ("1" if quick else seeds).split(",")]
    kept = _kept(kept_path)
    there = {(answer.case, answer.seed) for answer in kept}
    chosen = {(case.name, seed) for seed in numbers for case in _chosen(pattern, quick=quick)}
    jobs = [(name, seed, levels, afters_s) for name, seed in _mixed(chosen - there)]
    marks = [mark(answer) for answer in kept if (answer.case, answer.seed) in chosen]
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for done, answers in enumerate(pool.map(_sit, jobs), 1):
            marked = [mark(answer) for answer in answers]
            marks += marked
            _keep(kept_path, answers)
            if each:
                click.echo(report.listing(marked))
            if sys.stderr.isatty():
                click.echo(f"\r{done}/{len(jobs)} {jobs[done - 1][0]:<40}", err=True, nl=False)
    took_s = time.monotonic() - begun
    document = msgspec.json.format(msgspec.json.encode(report.document(marks, took_s=took_s)), indent=1)
    if json_path and str(json_path) == "-":
        click.echo(document)
        return
    if json_path:
        json_path.write_bytes(document)
    click.echo(report.text(marks, took_s=took_s))


if __name__ == "__main__":
    main()
