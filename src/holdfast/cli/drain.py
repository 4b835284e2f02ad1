"""`holdfast drain`: have a live run go on without a node."""

import click

from holdfast.cli.moving import moved, run_option, wait_option
from holdfast.cli.record import json_option
from holdfast.run.wire import Drain


@click.command("drain")
@click.argument("node")
@run_option
@wait_option
@json_option
def command(node: str, run: str, wait_s: float, as_json: bool) -> int:
    """Have the members of NODE leave between two steps; it has no members until `holdfast restore`.

    The other nodes share its lanes until a spare node, if there is one, takes its place. Nothing is computed
    again. Exit code 1: the run is over, or the node keeps its members; 2: the run has no such node.
    """
    return moved(run, Drain(node=node), Drain(node=node, asks_only=True), wait_s=wait_s, as_json=as_json)
