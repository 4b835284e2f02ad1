"""`holdfast replace`: another process in a member's place, in a live run."""

import asyncio

import click

from holdfast.cli.record import home, json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import HoldfastError, InputError, complaint
from holdfast.run.dial import asked
from holdfast.run.endpoint import find_endpoint
from holdfast.run.wire import Answer, Replace

ASK_INTERVAL_S = 0.2
WAIT_S = 600.0
EXIT_NOT_DONE = 1


@click.command("replace")
@click.argument("run")
@click.argument("member")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=WAIT_S,
    metavar="S",
    help=f"How long to wait until it is done; it goes on all the same.  [default: {WAIT_S:g}]",
)
@json_option
def command(run: str, member: str, wait_s: float, as_json: bool) -> int:
    """Give the place of MEMBER in RUN, which goes on on this machine, to a warm process of its node.

    The new process gets ready while MEMBER goes on, and takes over between two steps: nothing is computed
    again. A node (n1) in place of MEMBER is drained: a spare node takes part instead, if there is one. Exit
    code 1: the run is over, or the member stays; 2: it has no such member.
    """
    try:
        answer = asyncio.run(_replaced(run, member, wait_s))
    except HoldfastError as error:
        click.echo(complaint(error.sentence, error.hint), err=True)
        return EXIT_NOT_DONE
    if answer.is_mistake:
        raise InputError(f"The run {run!r} has {answer.sentence}.", hint="Name one of them.")
    if as_json:
        print_json(answer)
    elif answer.ok and answer.is_done:
        click.echo(printable(answer.sentence))
    else:
        click.echo(f"holdfast: {printable(answer.sentence)}.", err=True)
    return 0 if answer.ok and answer.is_done else EXIT_NOT_DONE


async def _replaced(run: str, member: str, wait_s: float) -> Answer:
    """Ask for it, and then how it stands."""
    endpoint = find_endpoint(home(), run)
    due_s = asyncio.get_running_loop().time() + wait_s
    answer = await asked(endpoint, run, Replace(member=member))
    while answer.ok and not answer.is_done and asyncio.get_running_loop().time() < due_s:
        await asyncio.sleep(ASK_INTERVAL_S)
        answer = await asked(endpoint, run, Replace(member=member, asks_only=True))
    return answer
