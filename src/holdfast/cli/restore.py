"""`holdfast restore`: let a drained node have members again."""

import click

from holdfast.cli.moving import moved, run_option
from holdfast.cli.record import json_option
from holdfast.run.wire import Restore


@click.command("restore")
@click.argument("node")
@run_option
@json_option
def command(node: str, run: str, as_json: bool) -> int:
    """Let NODE, which was drained, take part in the run again: its members join between two steps.

    Exit code 1: the run is over, or the node is still being drained; 2: the run has no such node.
    """
    return moved(run, Restore(node=node), Restore(node=node), wait_s=0.0, as_json=as_json)
