"""`holdfast checkpoint verify`: compare every byte of a run's checkpoints with its hash."""

import click

from holdfast.cli.checkpoint.place import PLACE_HINT
from holdfast.cli.checkpoint.rows import print_rows, rows_of
from holdfast.cli.record import json_option
from holdfast.record.errors import InputError


@click.command("verify")
@click.argument("run_or_path")
@json_option
def command(run_or_path: str, as_json: bool) -> int:
    """Read every byte of the checkpoints of RUN_OR_PATH, and compare it with its hash. Exit code 0: all
    are sound; 1: one is not; 2: there is none.
    """
    root, rows = rows_of(run_or_path, is_thorough=True)
    if not rows:
        raise InputError(f"There is no checkpoint in {root}.", hint=PLACE_HINT)
    print_rows(root, rows, "sound", as_json=as_json)
    return int(any(row.fault for row in rows))
