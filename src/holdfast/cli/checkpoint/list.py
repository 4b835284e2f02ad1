"""`holdfast checkpoint list`: the checkpoints of a run, and whether it can resume from them."""

import click

from holdfast.cli.checkpoint.rows import print_rows, rows_of
from holdfast.cli.record import json_option


@click.command("list")
@click.argument("run_or_path")
@json_option
def command(run_or_path: str, as_json: bool) -> None:
    """List the checkpoints of RUN_OR_PATH, the oldest first, and which of them a run can resume from.

    It reads manifests and the sizes of files. `holdfast checkpoint verify` reads everything.
    """
    root, rows = rows_of(run_or_path)
    print_rows(root, rows, "complete", as_json=as_json)
