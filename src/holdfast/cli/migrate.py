"""`holdfast migrate`: give a member's place in a live run to another process, or a node's to another node."""

import click

from holdfast.cli.moving import move, wait_option
from holdfast.cli.record import json_option
from holdfast.run.wire import Migrate


@click.command("migrate")
@click.argument("run")
@click.argument("member")
@click.option("--to", default="", metavar="NODE", help="The spare node that takes the place of a node.")
@wait_option
@json_option
def command(run: str, member: str, to: str, wait_s: float, as_json: bool) -> None:
    """Give the place of MEMBER in RUN, which is live on this machine, to a warm process of its node.

    The new process gets ready while MEMBER goes on, and takes over between two steps: nothing is computed
    again, and no member waits. The places of a node (n1 instead of MEMBER) go to a spare node. Exit code 1:
    the member stays; 2: no such run is live on this machine, or it has no such member or node.
    """
    asked, again = Migrate(member=member, to=to), Migrate(member=member, asks_only=True)
    move(run, asked, again, wait_s=wait_s, as_json=as_json)
