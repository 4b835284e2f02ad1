"""`holdfast checkpoint import`: make a checkpoint of another program's file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.checkpoint.export import SUFFIXES
from holdfast.cli.checkpoint.options import place_option, run_option
from holdfast.cli.checkpoint.remote import is_remote, opened, tell
from holdfast.cli.record import home
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError
from holdfast.record.files import make_private_directory

if TYPE_CHECKING:
    from holdfast.train.importing import ImportedStates
    from holdfast.train.opening import Checkpoint
    from holdfast.train.place import Storage


@click.command("import")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@place_option
@click.option(
    "--like",
    metavar="RUN_OR_PATH",
    help="Take the parts that FILE lacks from the newest checkpoint of this run, directory or URL.",
)
@click.option("--part", default="model", show_default=True, help="The part that a safetensors file holds.")
@run_option
def command(file: Path, target: str, like: str | None, part: str, name: str) -> None:
    """Make a checkpoint of FILE: a .pt file that `holdfast checkpoint export` wrote; or with --like a
    .safetensors file, or a directory of torch.distributed.checkpoint.

    torch loads the metadata of such a directory as a pickle: import only those that you trust.
    """
    from holdfast.train.fetched import troubles_told
    from holdfast.train.importing import from_dcp, from_safetensors, from_torch
    from holdfast.train.owning import check_admits
    from holdfast.train.places import opened_place

    place = opened_place(target)
    if is_remote(target) or (like is not None and is_remote(like)):
        make_private_directory(home())  # for files in transit
    base, of = (None, "") if like is None else opened(like, None, home())
    with troubles_told(place):
        check_admits(place, lambda: name or of)
    kind = "dcp" if file.is_dir() else SUFFIXES.get(file.suffix)
    if kind is None:
        raise InputError(
            f"The suffix of {file} does not name a format.",
            hint="End it in .safetensors or .pt, or name a directory of torch.distributed.checkpoint.",
        )
    if kind == "torch":
        found = from_torch(file)
    elif base is None:
        raise InputError(
            f"{file} lacks parts that a run needs to go on from it.",
            hint="Name with --like a checkpoint that has them.",
        )
    else:
        found = from_safetensors(file, part, base) if kind == "safetensors" else from_dcp(file, base)
    step = _kept(found, base, place)
    click.echo(f"step {step} of {printable(str(file))} is in {printable(target)}")


def _kept(found: "ImportedStates", base: "Checkpoint | None", place: "Storage") -> int:
    """Write the checkpoint to the place, and return its step."""
    from holdfast.train.copying import copy_newest
    from holdfast.train.fetched import passing, troubles_told
    from holdfast.train.importing import keep_imported
    from holdfast.train.place import DirectoryStorage

    if not is_remote(place.name):
        return keep_imported(found, base, Path(place.name)).step
    with passing(home()) as directory:
        saved = keep_imported(found, base, directory)
        with troubles_told(place):
            copy_newest(DirectoryStorage(directory), saved.step, place, tell)
    return saved.step
