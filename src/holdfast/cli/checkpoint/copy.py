"""`holdfast checkpoint copy`: a checkpoint in another place as well."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.checkpoint.options import place_option, step_option
from holdfast.cli.checkpoint.place import located
from holdfast.cli.checkpoint.remote import is_remote, place_of, tell
from holdfast.cli.checkpoint.rows import amount
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError

if TYPE_CHECKING:
    from holdfast.train.kept import KeptStep


@click.command("copy")
@click.argument("run_or_path")
@place_option
@step_option
def command(run_or_path: str, target: str, step: int | None) -> None:
    """Keep a checkpoint of RUN_OR_PATH in another place as well: the newest sound one, or that of --step.
    RUN_OR_PATH may be s3://BUCKET/PREFIX, too. Exit code 1: there are some, and none is sound.

    Every byte is compared with its hash on the way. What the other place has already is not written again.
    """
    from holdfast.train.places import opened_place

    opened_place(target)  # or it is refused
    if is_remote(run_or_path) or is_remote(target):
        found, root, (size_bytes, written_bytes) = _copied_remotely(run_or_path, target, step)
    else:
        found, root, (size_bytes, written_bytes) = _copied(run_or_path, Path(target), step)
    click.echo(
        f"step {found} of {printable(root)} is in {printable(target)}: "
        f"{amount(size_bytes)}, of which {amount(written_bytes)} were new there"
    )


Copied = tuple[int, str, tuple[int, int]]
"""The step, where it is from, and how many bytes it has, and how many were new."""


def _copied_remotely(run_or_path: str, target: str, step: int | None) -> Copied:
    from holdfast.train.fetched import copy_newest, troubles_told
    from holdfast.train.places import opened_place

    source, to = place_of(run_or_path), opened_place(target)
    with troubles_told(source, to):
        kept, done = copy_newest(source, step, to, tell)
    return kept.step, source.name, (done.size_bytes, done.written_bytes)


def _copied(run_or_path: str, target: Path, step: int | None) -> Copied:
    path = located(run_or_path)
    from holdfast.train.chunks import DamagedCheckpoints
    from holdfast.train.kept import ACCESS_HINT, fault_of, kept_steps, root_of
    from holdfast.train.opening import VERIFY_HINT

    root = root_of(path)
    hint = VERIFY_HINT.format(shlex.quote(run_or_path))
    try:
        wanted = [kept for kept in kept_steps(root) if step in (None, kept.step)]
        usable = [kept for kept in wanted if not fault_of(kept)]
        if not usable:
            which = "" if step is None else f" of step {step}"
            raise (DamagedCheckpoints if wanted else InputError)(
                f"{root} has no checkpoint{which} that a run can resume from.", hint=hint
            )
        copied, size_bytes, written_bytes = _copy_newest(usable, root, target, hint)
    except OSError as error:
        raise InputError(
            f"Cannot copy from {root} to {target}: {error.strerror}.", hint=ACCESS_HINT
        ) from None
    if step is None and copied != wanted[-1].step:
        click.echo(f"Step {copied} is taken, not {wanted[-1].step}, which is not sound. {hint}", err=True)
    return copied, str(root), (size_bytes, written_bytes)


def _copy_newest(usable: "list[KeptStep]", root: Path, target: Path, hint: str) -> tuple[int, int, int]:
    """Of the newest that is sound: its step, its size, and what was written. Only now every byte is read."""
    from holdfast.train.chunks import DamagedCheckpoints, Unsound
    from holdfast.train.parts import copy_checkpoint

    damage = ""
    for kept in reversed(usable):
        try:
            return kept.step, *copy_checkpoint(kept, root, target)
        except Unsound as error:
            damage = damage or f"The checkpoint {kept.place} is damaged: {error}."
    raise DamagedCheckpoints(damage, hint=hint)
