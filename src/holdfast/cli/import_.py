"""`holdfast import`: other programs' logs, and Holdfast's own journals, into the store."""

from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from holdfast.cli.record import events_of, ingest_directory, json_option, open_record, store_option
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.importers import Imported, Options, import_file
from holdfast.record.journal import Damage, holds_journal, read
from holdfast.record.store import Ingested, Store

SKIPPED_SHOWN_MAX = 20
"""How many unreadable lines are shown with their reason; all of them are counted."""


class FileResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one file."""

    file: str
    format: str
    lines: int | None
    runs: int | None
    new: int
    known: int
    conflicting: int
    skipped: int
    skipped_lines: tuple[str, ...]
    summary: str


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--run", metavar="NAME", help="The run that everything in the files belongs to.")
@click.option("--gpus", type=int, help="How many GPUs the run has, where the file does not say.")
@click.option("--gpus-per-node", type=int, help="GPUs of a node, where the file counts nodes.  [default: 8]")
@click.option("--reference-step-s", type=float, help="How long a healthy step takes, in seconds.")
@click.option("--usd-per-gpu-hour", type=float, help="What a GPU-hour costs.")
@store_option
@json_option
def command(
    files: tuple[Path, ...],
    run: str | None,
    gpus: int | None,
    gpus_per_node: int | None,
    reference_step_s: float | None,
    usd_per_gpu_hour: float | None,
    store_url: str | None,
    as_json: bool,
) -> int:
    """Take in what happened, from FILES of any known format.

    The format is recognised: journals of Holdfast (a file or a whole directory), event logs of Google's
    resiliency tool, `sacct -P` output of Slurm, CSV and JSON lines (docs/import.md). Taking in the same file
    twice changes nothing. Lines that cannot be read are counted and shown with their numbers.
    """
    options = Options(
        run=run,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        reference_step_s=reference_step_s,
        usd_per_gpu_hour=usd_per_gpu_hour,
    )
    results, problems = [], []
    with open_record(store_url) as store:
        for path in files:
            try:
                results.append(_take(store, path, options))
            except HoldfastError as error:
                problems.append(error)
    _show(results, as_json=as_json)
    if len(problems) == len(files) == 1:
        raise problems[0]
    for problem in problems:
        click.echo(f"holdfast: {problem.sentence}", err=True)
    return 2 if problems else 0


def _take(store: Store, path: Path, options: Options) -> FileResult:
    imported = import_file(path, options)
    if imported.format == "journal":
        return _take_journal(store, path)
    skipped = [f"line {skip.line}: {skip.reason}" for skip in imported.skipped]
    ingested = store.ingest(imported.events)
    return _result(path, imported, ingested, skipped, imported.skipped_count)


def _take_journal(store: Store, path: Path) -> FileResult:
    damages: list[Damage] = []
    if path.is_dir():
        if not holds_journal(path):
            raise InputError(f"{path} is a directory and holds no journal.", hint="Name the files in it.")
        ingested = ingest_directory(store, path, damages)
    else:
        ingested = store.ingest(events_of(read(path), damages))
    skipped = [f"{damage.file}, line {damage.line}: {damage.reason}" for damage in damages]
    return _result(path, Imported(format="journal"), ingested, skipped, len(skipped))


def _result(
    path: Path, imported: Imported, ingested: Ingested, skipped: Iterable[str], skipped_count: int
) -> FileResult:
    journal = imported.format == "journal"
    return FileResult(
        file=str(path),
        format=imported.format,
        lines=None if journal else imported.lines,
        runs=None if journal else imported.runs,
        new=ingested.new,
        known=ingested.known,
        conflicting=ingested.conflicting,
        skipped=skipped_count,
        skipped_lines=tuple(skipped)[:SKIPPED_SHOWN_MAX],
        summary="" if journal else imported.summary(),
    )


def _show(results: list[FileResult], *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results), indent=2).decode())
        return
    for result in results:
        click.echo(_sentence(result))
        for line in result.skipped_lines:
            click.echo(f"  skipped {line}", err=True)
        if result.skipped > len(result.skipped_lines):
            click.echo(f"  and {result.skipped - len(result.skipped_lines)} more", err=True)


def _sentence(result: FileResult) -> str:
    counts = [f"{result.new:,} new"]
    if result.known:
        counts.append(f"{result.known:,} known")
    if result.conflicting:
        counts.append(f"{result.conflicting:,} conflicting with what is known and left out")
    told = f" ({result.summary})" if result.summary else ""
    skipped = f"; {result.skipped:,} lines skipped" if result.skipped else ""
    return f"{result.file}: {result.format}{told}, events: {', '.join(counts)}{skipped}"
