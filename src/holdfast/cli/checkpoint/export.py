"""`holdfast checkpoint export`: write a checkpoint as a file that other programs open."""

from pathlib import Path

import click
import msgspec

from holdfast.cli.checkpoint.options import step_option, target_option
from holdfast.cli.checkpoint.remote import opened
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError

SUFFIXES = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch"}


@click.command("export")
@click.argument("run_or_path")
@target_option("FILE", "The file to write: model.safetensors, model.pt, or a directory for dcp.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["safetensors", "torch", "dcp"]),
    help="Needed if FILE's suffix does not name it.",
)
@step_option
@click.option(
    "--part",
    help="Only this part: model, average, optimizer, ...  [default: model for safetensors, else all]",
)
def command(run_or_path: str, target: Path, format_: str | None, step: int | None, part: str | None) -> None:
    """Write a checkpoint of RUN_OR_PATH to a file: the newest sound one, or that of --step.

    A .safetensors file holds the tensors of the model. A .pt file holds all that was protected, for
    torch.load(FILE, weights_only=True): {"model": ..., "optimizer": ..., "step": ...}. With --format dcp
    the same is in a directory, for torch.distributed.checkpoint.load. The parts of a sharded run are joined.
    RUN_OR_PATH may be s3://BUCKET/PREFIX, too: the checkpoint is then fetched to FILE's directory for the
    time being. Exit code 1: there are checkpoints, but none is sound.
    """
    format_ = format_ or SUFFIXES.get(target.suffix)
    if format_ is None:
        raise InputError(
            f"The suffix of {target} does not name a format.",
            hint="End it in .safetensors or .pt, or give --format; --format dcp writes a directory.",
        )
    checkpoint, run = opened(run_or_path, step, target.parent)
    from holdfast.train.opening import to_dcp, to_safetensors, to_torch

    if format_ == "safetensors":
        part = part or "model"
    if part is not None and part not in checkpoint.states:
        raise InputError(
            f"The checkpoint {checkpoint.place} has no part named {part!r}.",
            hint=f"Name with --part one of: {', '.join(checkpoint.states)}.",
        )
    if format_ == "safetensors":
        assert part is not None
        to_safetensors(checkpoint, target, part=part, told={"run": run} if run else {})
    else:
        if part is not None:
            checkpoint = msgspec.structs.replace(checkpoint, states={part: checkpoint.states[part]})
        (to_dcp if format_ == "dcp" else to_torch)(checkpoint, target)
    click.echo(f"step {checkpoint.step} of {printable(checkpoint.place)} is in {printable(str(target))}")
