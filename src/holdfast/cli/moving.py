"""Asks a live run for a move, and waits for it: for `holdfast migrate`, `drain` and `restore`."""

import asyncio
from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.flags import FiniteRange
from holdfast.cli.going import NotDone, answering, asker_of
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.run.wire import Answer, Move

ASK_INTERVAL_S = 0.2
WAIT_S = 600.0

wait_option: Callable[[Any], Any] = click.option(
    "--wait",
    "wait_s",
    type=FiniteRange(min=0),
    default=WAIT_S,
    metavar="S",
    help=f"How long to wait for it; the move goes on after that.  [default: {WAIT_S:g}]",
)


def move(run: str, wish: Move, again: Move, *, wait_s: float, as_json: bool) -> None:
    """Ask the run for the move, and with `again` for its state until it is done."""
    with answering(run):
        answer = asyncio.run(_asked(run, wish, again, wait_s))
    if answer.is_mistake:
        if answer.hint:
            raise InputError(f"{answer.sentence}.", hint=answer.hint)
        raise InputError(f"The run {run!r} has {answer.sentence}.", hint="Name one of them.")
    is_done = answer.ok and answer.is_done
    if as_json:
        print_json(answer)
    elif is_done:
        click.echo(printable(answer.sentence))
    if not is_done:
        raise NotDone(f"{answer.sentence}.", hint=answer.hint or _hint(run, answer))


def _hint(run: str, answer: Answer) -> str:
    if answer.ok:
        return "The move goes on. Ask again, or wait longer with --wait."
    return f"`holdfast attach {run}` shows what happened; ask again."


async def _asked(run: str, wish: Move, again: Move, wait_s: float) -> Answer:
    asker = await asker_of(run)
    due_s = asyncio.get_running_loop().time() + wait_s
    answer = await asker.ask(wish)
    while answer.ok and not answer.is_done and asyncio.get_running_loop().time() < due_s:
        await asyncio.sleep(ASK_INTERVAL_S)
        answer = await asker.ask(again)
    return answer
