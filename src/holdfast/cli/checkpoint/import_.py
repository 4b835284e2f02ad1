"""`holdfast checkpoint import`: a checkpoint made of what another program wrote."""

from pathlib import Path

import click

from holdfast.cli.checkpoint.export import SUFFIXES
from holdfast.cli.checkpoint.options import directory_option
from holdfast.cli.checkpoint.place import located
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError


@click.command("import")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@directory_option
@click.option(
    "--like",
    metavar="RUN_OR_PATH",
    help="What FILE does not have comes from the newest checkpoint of this run, or in this directory.",
)
@click.option(
    "--part", default="model", show_default=True, help="What the tensors of a safetensors file are."
)
def command(file: Path, target: Path, like: str | None, part: str) -> None:
    """Make a checkpoint of FILE: a .pt file that `holdfast checkpoint export` wrote; or with --like a
    .safetensors file, or a directory of torch.distributed.checkpoint.

    torch loads the metadata of such a directory as a pickle: import only those that you trust.
    """
    from holdfast.train.importing import from_dcp, from_safetensors, from_torch, keep_imported
    from holdfast.train.opening import load_checkpoint

    base = None if like is None else load_checkpoint(located(like))
    kind = "dcp" if file.is_dir() else SUFFIXES.get(file.suffix)
    if kind is None:
        raise InputError(
            f"The suffix of {file} does not say which format it has.",
            hint="End it in .safetensors or .pt, or name a directory of torch.distributed.checkpoint.",
        )
    if kind == "torch":
        found = from_torch(file)
    elif base is None:
        raise InputError(
            f"{file} does not have all that a run needs to go on from it.",
            hint="Name with --like a checkpoint that has the rest.",
        )
    else:
        found = from_safetensors(file, part, base) if kind == "safetensors" else from_dcp(file, base)
    saved = keep_imported(found, base, target)
    click.echo(f"step {saved.step} of {printable(str(file))} is in {printable(str(target))}")
