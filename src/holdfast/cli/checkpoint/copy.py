"""`holdfast checkpoint copy`: a checkpoint in another directory as well."""

from pathlib import Path

import click

from holdfast.cli.checkpoint.options import directory_option, step_option
from holdfast.cli.checkpoint.place import located
from holdfast.cli.checkpoint.rows import amount
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError


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
    from holdfast.train.chunks import Unsound
    from holdfast.train.opening import ACCESS_HINT, LIST_HINT, root_of
    from holdfast.train.parts import copy_checkpoint, fault_of, kept_steps

    root = root_of(path if path.is_dir() else path.parent)
    try:
        usable = [kept for kept in kept_steps(root) if step in (None, kept.step) and not fault_of(kept)]
        if not usable:
            which = "" if step is None else f" of step {step}"
            raise InputError(f"{root} has no checkpoint{which} that a run can resume from.", hint=LIST_HINT)
        size_bytes, written_bytes = copy_checkpoint(usable[-1], root, target)
    except Unsound as error:
        raise InputError(f"The checkpoint {usable[-1].place} is damaged: {error}.", hint=LIST_HINT) from None
    except OSError as error:
        raise InputError(
            f"Cannot copy from {root} to {target}: {error.strerror}.", hint=ACCESS_HINT
        ) from None
    click.echo(
        f"step {usable[-1].step} of {printable(str(root))} is in {printable(str(target))}: "
        f"{amount(size_bytes)}, of which {amount(written_bytes)} were new there"
    )
