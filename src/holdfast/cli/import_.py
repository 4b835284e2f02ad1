"""`holdfast import`: read other programs' logs, and Holdfast's own journals, into the store."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable, say
from holdfast.record.errors import HoldfastError
from holdfast.record.importers import Options, Watch
from holdfast.record.importers.taking import FileResult, Taking
from holdfast.signals.step_files import steps_in


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[Path, ...] = argument(nargs=-1, required=True, type=click.Path(path_type=Path))
    run: str | None = option(
        "The run that the files belong to; Holdfast's own events keep theirs.  [default: as the file says,",
        "else the file's name]",
        metavar="NAME",
    )
    gpus: int | None = option("How many GPUs the run has, if the file does not say.", type=int)
    gpus_per_node: int | None = option(
        "GPUs of a node, if the file counts nodes.  [default: 8 for Google's and InfiniteHBD's logs, else",
        "unknown]",
        type=int,
    )
    reference_step_s: float | None = option("How long a healthy step takes, in seconds.", type=float)
    usd_per_gpu_hour: float | None = option("What a GPU-hour costs.", type=float)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("import")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Import events from FILES of any known format.

    The format is recognised: journals of Holdfast (a file or a whole directory), event logs of Google's
    resiliency tool, `sacct -P` output of Slurm, InfiniteHBD's fault trace, CSV and JSON lines, and the
    formats of `--step-log`: Megatron's log, TensorBoard's and W&B's files or directories (docs/import.md).
    W&B's CSV export and logs without times are read for what they have.
    Importing the same file twice changes nothing. Lines that cannot be read are counted and shown with their
    numbers.
    """
    options = msgspec.convert(given, Options, from_attributes=True)
    results, problems = [], []
    with open_record(given.store_url) as store:
        taking = Taking(store=store, options=options, steps_in=steps_in, watched=_watched)
        for path in given.files:
            try:
                results.append(taking.take(path))
            except HoldfastError as error:
                problems.append(error)
    _show(results, as_json=given.as_json)
    if len(problems) == len(given.files) == 1:
        raise problems[0]
    for problem in problems:
        say(problem.sentence)
    return 2 if problems else 0


@contextmanager
def _watched(path: Path) -> Iterator[Watch | None]:
    """Show on a terminal how far a file was read; nothing appears for a short file."""
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as stack:
        bar: Watch | None = None

        def watch(read_bytes: int) -> None:
            nonlocal bar
            bar = bar or stack.enter_context(_bar(path))
            bar(read_bytes)

        yield watch


@contextmanager
def _bar(path: Path) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        # The size of a pipe is unknown; the bar then only moves.
        total_bytes = path.stat().st_size if path.is_file() else None
        task = progress.add_task(printable(path.name), total=total_bytes)
        yield lambda read_bytes: progress.update(task, completed=read_bytes)


def _show(results: list[FileResult], *, as_json: bool) -> None:
    if as_json:
        print_json(results)
        return
    for result in results:
        click.echo(printable(_sentence(result)))
        for told in result.told:
            click.echo(printable(f"  {told}"))
        for line in result.skipped_lines:
            click.echo(printable(f"  skipped {line}"), err=True)
        if result.skipped > len(result.skipped_lines):
            click.echo(f"  and {result.skipped - len(result.skipped_lines):,} more", err=True)


def _sentence(result: FileResult) -> str:
    counts = [f"{result.new:,} new"]
    if result.known:
        counts.append(f"{result.known:,} known")
    if result.conflicting:
        counts.append(f"{result.conflicting:,} left out because they conflict with known events")
    told = f" ({result.summary})" if result.summary else ""
    replaced = f"; {result.replaced:,} lines with bytes that are not text" if result.replaced else ""
    skipped = f"; {result.skipped:,} lines skipped" if result.skipped else ""
    return f"{result.file}: {result.format}{told}, events: {', '.join(counts)}{replaced}{skipped}"
