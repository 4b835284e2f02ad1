"""`holdfast checkpoint copy`: a checkpoint in another directory as well."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.checkpoint.options import directory_option, step_option
from holdfast.cli.checkpoint.place import located
from holdfast.cli.checkpoint.rows import amount
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError

if TYPE_CHECKING:
    from holdfast.train.parts import KeptStep


@click.command("copy")
@click.argument("run_or_path")
@directory_option
@step_option
def command(run_or_path: str, target: Path, step: int | None) -> None:
    """Keep a checkpoint of RUN_OR_PATH in another directory as well: the newest sound one, or that of --step.

    Every byte is compared with its hash on the way. What the other directory has already is not written
    again.
    """
    path = located(run_or_path)
    from holdfast.train.opening import ACCESS_HINT, VERIFY_HINT, root_of
    from holdfast.train.parts import fault_of, kept_steps

    root = root_of(path if path.is_dir() else path.parent)
    hint = VERIFY_HINT.format(shlex.quote(run_or_path))
    try:
        wanted = [kept for kept in kept_steps(root) if step in (None, kept.step)]
        usable = [kept for kept in wanted if not fault_of(kept)]
        if not usable:
            which = "" if step is None else f" of step {step}"
            raise InputError(f"{root} has no checkpoint{which} that a run can resume from.", hint=hint)
        copied, size_bytes, written_bytes = _copy_newest(usable, root, target, hint)
    except OSError as error:
        raise InputError(
            f"Cannot copy from {root} to {target}: {error.strerror}.", hint=ACCESS_HINT
        ) from None
    if step is None and copied != wanted[-1].step:
        click.echo(f"Step {copied} is taken, not {wanted[-1].step}, which is not sound. {hint}", err=True)
    click.echo(
        f"step {copied} of {printable(str(root))} is in {printable(str(target))}: "
        f"{amount(size_bytes)}, of which {amount(written_bytes)} were new there"
    )


def _copy_newest(usable: "list[KeptStep]", root: Path, target: Path, hint: str) -> tuple[int, int, int]:
    """Of the newest that is sound: its step, its size, and what was written. Only now every byte is read."""
    from holdfast.train.chunks import Unsound
    from holdfast.train.parts import copy_checkpoint

    damage = ""
    for kept in reversed(usable):
        try:
            return kept.step, *copy_checkpoint(kept, root, target)
        except Unsound as error:
            damage = damage or f"The checkpoint {kept.place} is damaged: {error}."
    raise InputError(damage, hint=hint)
