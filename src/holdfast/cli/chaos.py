"""`holdfast chaos`: inject a fault into a live run, on purpose."""

import secrets
from typing import get_args

import click

from holdfast.cli.flags import FiniteRange
from holdfast.cli.going import NotDone, answer_of
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.run.wire import FaultKind, Strike

FOR_S, FOR_S_MAX = 3.0, 86_400.0


@click.command("chaos")
@click.argument("run")
@click.argument("fault", type=click.Choice(get_args(FaultKind)))
@click.argument("target", default="")
@click.option(
    "--for",
    "for_s",
    type=FiniteRange(0, FOR_S_MAX),
    default=FOR_S,
    metavar="S",
    help=f"How long a pause lasts, or a node stays away.  [default: {FOR_S:g}]",
)
@click.option("--seed", type=click.IntRange(min=0), help="Chooses the member if no TARGET is given.")
@json_option
def command(run: str, fault: FaultKind, target: str, for_s: float, seed: int | None, as_json: bool) -> None:
    """Strike RUN, which is live on this machine: kill a member, lose a node, or pause a member.

    TARGET is a member (n0.1) or a node (n0); without one, a member is chosen at random. To lose
    a node, name the node.
    """
    seed = secrets.randbits(32) if seed is None else seed
    strike = Strike(fault=fault, target=target, seed=seed, for_s=for_s)
    answer = answer_of(run, strike)
    if not answer.ok:
        refused = InputError if answer.is_mistake else NotDone
        raise refused(f"Nothing was struck: {answer.sentence}.", hint=answer.hint)
    if as_json:
        print_json(answer)
    else:
        click.echo(printable(answer.sentence))
