"""`holdfast checkpoint copy`: copy a checkpoint to another place."""

import click

from holdfast.cli.checkpoint.options import place_option, run_option, step_option
from holdfast.cli.checkpoint.remote import place_of, run_at, tell
from holdfast.cli.checkpoint.rows import amount
from holdfast.cli.terminal import printable


@click.command("copy")
@click.argument("run_or_path")
@place_option
@step_option
@run_option
def command(run_or_path: str, target: str, step: int | None, name: str) -> None:
    """Copy a checkpoint of RUN_OR_PATH to another place: the newest sound one, or that of --step.
    RUN_OR_PATH may be s3://BUCKET/PREFIX, too. Exit code 1: there are checkpoints, but none is sound.

    Every byte is compared with its hash on the way. Chunks that the other place already has are not written
    again. A place that belongs to another run is refused.
    """
    from holdfast.train.copying import copy_newest
    from holdfast.train.fetched import troubles_told
    from holdfast.train.owning import check_admits
    from holdfast.train.places import opened_place

    to, source = opened_place(target), place_of(run_or_path)
    with troubles_told(source, to):
        check_admits(to, lambda: name or run_at(source))
        kept, done = copy_newest(source, step, to, tell)
    click.echo(
        f"step {kept.step} of {printable(source.name)} is in {printable(target)}: "
        f"{amount(done.size_bytes)}, of which {amount(done.written_bytes)} were new there"
    )
