"""`holdfast checkpoint prune`: remove old checkpoints."""

import click

from holdfast.cli.checkpoint.place import located
from holdfast.cli.checkpoint.remote import is_remote, place_of
from holdfast.cli.checkpoint.rows import amount
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError


@click.command("prune")
@click.argument("run_or_path")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="How many to keep: the newest that a run can resume from.",
)
def command(run_or_path: str, keep: int) -> None:
    """Remove checkpoints of RUN_OR_PATH that are older than the newest few a run can resume from, and chunks
    that no checkpoint needs. Safe while a run writes there. RUN_OR_PATH may be s3://BUCKET/PREFIX, too.
    """
    if is_remote(run_or_path):
        from holdfast.train.copying import retain
        from holdfast.train.fetched import troubles_told

        place = place_of(run_or_path)
        with troubles_told(place):
            _tell(place.name, *retain(place, keep, is_thorough=True))
        return
    path = located(run_or_path)
    from holdfast.train.kept import ACCESS_HINT, root_of
    from holdfast.train.parts import prune

    root = root_of(path)
    try:
        steps, freed = prune(root, keep)
    except OSError as error:
        raise InputError(f"Cannot prune {root}: {error.strerror}.", hint=ACCESS_HINT) from None
    _tell(str(root), steps, freed)


def _tell(root: str, steps: list[int], freed: int) -> None:
    removed = f"removed step {', '.join(map(str, steps))}" if steps else "no checkpoint to remove"
    click.echo(f"{printable(root)}: {removed}; freed {amount(freed)} of chunks")
