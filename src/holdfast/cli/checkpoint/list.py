"""`holdfast checkpoint list`: what a run has kept, and whether it can be trusted."""

from pathlib import Path

import click
import msgspec

from holdfast.cli.checkpoint.place import located
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.wording import stamp


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint's file. fault: why it cannot be loaded; empty: it was read, and its SHA-256 agrees."""

    step: int
    size_bytes: int
    written_ns: int
    fault: str
    path: str


@click.command("list")
@click.argument("run_or_path")
@json_option
def command(run_or_path: str, as_json: bool) -> None:
    """List the checkpoints of RUN_OR_PATH, the oldest first. Each is read, and its SHA-256 compared."""
    path = located(run_or_path)
    from holdfast.train.opening import ACCESS_HINT, checkpoints_in

    try:
        kept = checkpoints_in(path if path.is_dir() else path.parent)
        rows = [_row(step, kept.path(step)) for step in kept.steps()]
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint=ACCESS_HINT) from None
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"There is no checkpoint in {printable(kept.place)}.", err=True)
        return
    click.echo(f"{'step':>10}  {'size':>12}  {'written':20}  sound")
    for row in rows:
        sound = f"no: {printable(row.fault)}" if row.fault else "yes"
        size = (
            f"{row.size_bytes / 1e6:,.1f} MB" if row.size_bytes >= 1e6 else f"{row.size_bytes / 1e3:,.1f} kB"
        )
        click.echo(f"{row.step:>10}  {size:>12}  {stamp(row.written_ns):20}  {sound}")


def _row(step: int, path: Path) -> CheckpointRow:
    from holdfast.train.checkpoint import Unsound, verify

    fault = ""
    try:
        verify(path, step)
    except (OSError, Unsound) as error:
        fault = str(error)
    status = path.lstat()
    return CheckpointRow(
        step=step, size_bytes=status.st_size, written_ns=status.st_mtime_ns, fault=fault, path=str(path)
    )
