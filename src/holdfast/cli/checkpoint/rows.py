"""Checkpoints as rows of a table, one for each step."""

from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.checkpoint.place import PLACE_HINT, located
from holdfast.cli.checkpoint.remote import is_remote, place_of
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.wording import stamp

if TYPE_CHECKING:
    from holdfast.train.kept import KeptStep
    from holdfast.train.place import Storage

LIST_S_MAX = 20.0
"""How long an answer may take if only manifests are read."""


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, with one part for each rank of a replica. size_bytes: of its tensors. fault: why a run
    cannot resume from it; empty if it can.
    """

    step: int
    parts: int
    parts_total: int
    size_bytes: int
    written_ns: int
    fault: str
    path: str


def rows_of(run_or_path: str, *, is_thorough: bool = False) -> tuple[str, list[CheckpointRow]]:
    """The place and its checkpoints. is_thorough: read every byte."""
    if is_remote(run_or_path):
        request_s = None if is_thorough else LIST_S_MAX
        return _remote_rows(place_of(run_or_path, request_s=request_s), is_thorough)
    path = located(run_or_path)
    from holdfast.train.kept import ACCESS_HINT, kept_steps, root_of

    try:
        root = root_of(path)
        rows = [_row(kept, is_thorough) for kept in kept_steps(root)]
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint=ACCESS_HINT) from None
    if not rows and path.is_file():
        raise InputError(f"{path} is not in a directory of checkpoints.", hint=PLACE_HINT)
    return str(root), rows


def _remote_rows(place: "Storage", is_thorough: bool) -> tuple[str, list[CheckpointRow]]:
    from holdfast.train.copying import fault_at, size_at, steps_in
    from holdfast.train.fetched import troubles_told

    with troubles_told(place):
        listing = place.listed()
        return place.name, [
            CheckpointRow(
                step=kept.step,
                parts=len(kept.present),
                parts_total=len(kept.keys),
                size_bytes=size_at(place, kept),
                written_ns=round(1e9 * max(listing[key].modified_s for key in kept.present)),
                fault=fault_at(place, kept, listing, is_thorough=is_thorough),
                path=f"{place.name}/{kept.pattern}",
            )
            for kept in steps_in(listing)
        ]


def print_rows(root: str, rows: list[CheckpointRow], verdict: str, *, as_json: bool) -> None:
    """verdict: the heading of the last column, which says what was checked."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"There is no checkpoint in {printable(root)}.", err=True)
        return
    click.echo(f"{'step':>10}  {'parts':>7}  {'size':>12}  {'written':20}  {verdict}")
    for row in rows:
        answer = f"no: {printable(row.fault)}" if row.fault else "yes"
        parts = f"{row.parts}/{row.parts_total}"
        click.echo(
            f"{row.step:>10}  {parts:>7}  {amount(row.size_bytes):>12}  {stamp(row.written_ns):20}  {answer}"
        )


def amount(size_bytes: int) -> str:
    if size_bytes < 1e3:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.1f} kB"


def _row(kept: "KeptStep", is_thorough: bool) -> CheckpointRow:
    from holdfast.train.chunks import Unsound
    from holdfast.train.kept import fault_of
    from holdfast.train.manifest_file import read_manifest

    paths = [path for path, is_there in zip(kept.paths, kept.there, strict=True) if is_there]
    size_bytes = 0
    for path in paths:
        try:
            size_bytes += read_manifest(path, kept.step).size_bytes
        except (OSError, Unsound):
            continue  # told as its fault
    return CheckpointRow(
        step=kept.step,
        parts=len(paths),
        parts_total=kept.ranks,
        size_bytes=size_bytes,
        written_ns=max(path.lstat().st_mtime_ns for path in paths),
        fault=fault_of(kept, is_thorough=is_thorough),
        path=kept.place,
    )
