"""`holdfast checkpoint prune`: remove what is old."""

import click

from holdfast.cli.checkpoint.place import located
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
    """Remove checkpoints of RUN_OR_PATH that are older than the newest few a run can resume from, and
    chunks that none needs. Safe while a run writes to the directory.
    """
    path = located(run_or_path)
    from holdfast.train.opening import ACCESS_HINT, root_of
    from holdfast.train.parts import prune

    root = root_of(path if path.is_dir() else path.parent)
    try:
        steps, freed = prune(root, keep)
    except OSError as error:
        raise InputError(f"Cannot prune {root}: {error.strerror}.", hint=ACCESS_HINT) from None
    removed = f"removed step {', '.join(map(str, steps))}" if steps else "no checkpoint is old enough"
    click.echo(f"{printable(str(root))}: {removed}; freed {amount(freed)} of chunks")
