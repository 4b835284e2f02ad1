"""`holdfast drain`: have a live run go on without a node."""

import click

from holdfast.cli.going import RunFirst
from holdfast.cli.moving import move, wait_option
from holdfast.cli.record import json_option
from holdfast.run.wire import Drain


@click.command("drain", cls=RunFirst)
@click.argument("run")
@click.argument("node")
@wait_option
@json_option
def command(run: str, node: str, wait_s: float, as_json: bool) -> None:
    """Have the members of NODE in RUN leave between two steps; it has none until `holdfast restore`.

    The other nodes share its lanes until a spare node, if there is one, takes its place. Nothing is computed
    again. Exit code 1: the node keeps its members; 2: no such run is live on this machine, or it has no such
    node.
    """
    move(run, Drain(node=node), Drain(node=node, asks_only=True), wait_s=wait_s, as_json=as_json)
