"""`holdfast checkpoint list`: what a run has kept, and whether it can be trusted."""

from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.checkpoint.place import located
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.wording import stamp

if TYPE_CHECKING:
    from holdfast.train.parts import KeptStep


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint's file, or its parts, one for each rank of a replica. fault: why it cannot be loaded;
    empty: it was read, and its SHA-256 agrees.
    """

    step: int
    parts: int
    parts_total: int
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
    from holdfast.train.opening import ACCESS_HINT, root_of
    from holdfast.train.parts import kept_steps

    try:
        root = root_of(path if path.is_dir() else path.parent)
        rows = [_row(kept) for kept in kept_steps(root)]
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint=ACCESS_HINT) from None
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"There is no checkpoint in {printable(str(root))}.", err=True)
        return
    click.echo(f"{'step':>10}  {'parts':>7}  {'size':>12}  {'written':20}  sound")
    for row in rows:
        sound = f"no: {printable(row.fault)}" if row.fault else "yes"
        size = (
            f"{row.size_bytes / 1e6:,.1f} MB" if row.size_bytes >= 1e6 else f"{row.size_bytes / 1e3:,.1f} kB"
        )
        parts = f"{row.parts}/{row.parts_total}"
        click.echo(f"{row.step:>10}  {parts:>7}  {size:>12}  {stamp(row.written_ns):20}  {sound}")


def _row(kept: "KeptStep") -> CheckpointRow:
    from holdfast.train.checkpoint import verify
    from holdfast.train.chunks import Unsound

    fault = kept.missing
    paths = [path for path, is_there in zip(kept.paths, kept.there, strict=True) if is_there]
    for path in paths:
        try:
            verify(path, kept.step)
        except (OSError, Unsound) as error:
            fault = fault or (str(error) if kept.ranks == 1 else f"in {path.parent.name} {error}")
    statuses = [path.lstat() for path in paths]
    return CheckpointRow(
        step=kept.step,
        parts=len(paths),
        parts_total=kept.ranks,
        size_bytes=sum(status.st_size for status in statuses),
        written_ns=max(status.st_mtime_ns for status in statuses),
        fault=fault,
        path=kept.place,
    )
