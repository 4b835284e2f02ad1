"""`holdfast restore`: let a drained node have members again."""

import click

from holdfast.cli.going import RunFirst
from holdfast.cli.moving import move
from holdfast.cli.record import json_option
from holdfast.run.wire import Restore


@click.command("restore", cls=RunFirst)
@click.argument("run")
@click.argument("node")
@json_option
def command(run: str, node: str, as_json: bool) -> None:
    """Let NODE, which was drained, take part in RUN again: its members join between two steps.

    Exit code 1: the node is still being drained; 2: no such run is live on this machine, or it has no such
    node.
    """
    move(run, Restore(node=node), Restore(node=node), wait_s=0.0, as_json=as_json)
