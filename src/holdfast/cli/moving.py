"""Asks a live run for a move, and waits for it: for `holdfast migrate`, `drain` and `restore`."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.flags import FiniteRange
from holdfast.cli.going import asker_of
from holdfast.cli.record import open_record
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import HoldfastError, InputError, complaint
from holdfast.run.wire import Answer, Move

ASK_INTERVAL_S = 0.2
WAIT_S = 600.0
EXIT_NOT_DONE = 1

wait_option: Callable[[Any], Any] = click.option(
    "--wait",
    "wait_s",
    type=FiniteRange(min=0),
    default=WAIT_S,
    metavar="S",
    help=f"How long to wait for it; the move goes on after that.  [default: {WAIT_S:g}]",
)
run_option: Callable[[Any], Any] = click.option(
    "--run", "run", required=True, metavar="RUN", help="A run that is live on this machine."
)


def moved(run: str, move: Move, again: Move, *, wait_s: float, as_json: bool) -> int:
    """Ask for the move, and with `again` for its state until it is done. Returns the exit code."""
    try:
        answer = asyncio.run(_asked(run, move, again, wait_s))
    except HoldfastError as error:
        if isinstance(error, InputError) and not _is_known(run):
            raise
        click.echo(error.told, err=True)
        return EXIT_NOT_DONE
    if answer.is_mistake:
        if answer.hint:
            raise InputError(f"{answer.sentence}.", hint=answer.hint)
        raise InputError(f"The run {run!r} has {answer.sentence}.", hint="Name one of them.")
    if as_json:
        print_json(answer)
    elif answer.ok and answer.is_done:
        click.echo(printable(answer.sentence))
    else:
        click.echo(complaint(f"{answer.sentence}.", answer.hint or _hint(run, answer)), err=True)
    return 0 if answer.ok and answer.is_done else EXIT_NOT_DONE


def _is_known(run: str) -> bool:
    """Whether the record has the run: then it is over; otherwise it never existed."""
    with open_record(os.environ.get("HOLDFAST_STORE")) as store:
        return run in {summary.run for summary in store.runs()}


def _hint(run: str, answer: Answer) -> str:
    if answer.ok:
        return "The move goes on. Ask again, or wait longer with --wait."
    return f"`holdfast attach {run}` shows what happened; ask again."


async def _asked(run: str, move: Move, again: Move, wait_s: float) -> Answer:
    asker = await asker_of(run)
    due_s = asyncio.get_running_loop().time() + wait_s
    answer = await asker.ask(move)
    while answer.ok and not answer.is_done and asyncio.get_running_loop().time() < due_s:
        await asyncio.sleep(ASK_INTERVAL_S)
        answer = await asker.ask(again)
    return answer
