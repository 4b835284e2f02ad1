"""`holdfast checkpoint verify`: compare every byte of a run's checkpoints with its hash."""

import click

from holdfast.cli.checkpoint.rows import print_rows, rows_of
from holdfast.cli.record import json_option


@click.command("verify")
@click.argument("run_or_path")
@json_option
def command(run_or_path: str, as_json: bool) -> int:
    """Read every byte of the checkpoints of RUN_OR_PATH, and compare it with its hash. Exit code 0: all
    are sound; 1: one is not, or there are none.
    """
    root, rows = rows_of(run_or_path, is_thorough=True)
    print_rows(root, rows, "sound", as_json=as_json)
    return 1 if not rows or any(row.fault for row in rows) else 0
