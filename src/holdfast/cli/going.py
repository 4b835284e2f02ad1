"""Finds the live run that a verb is about, and asks it.

All verbs about one run take it first, `holdfast VERB RUN ...`, and share their exit codes (docs/verbs.md).
"""

import asyncio
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import click

from holdfast.cli.record import home
from holdfast.cli.terminal import say
from holdfast.record.errors import HoldfastError, InputError
from holdfast.run.asking import Asker
from holdfast.run.endpoint import Endpoint
from holdfast.run.handshake import Stranger, Unreachable
from holdfast.run.locating import located
from holdfast.run.wire import Answer, Stop, Strike


class NotDone(HoldfastError):
    """The run could not do what it was rightly asked, or did not answer."""

    exit_code: ClassVar[int] = 1


class RunFirst(click.Command):
    """A verb whose run was named by `--run RUN` before it came first: that is still taken, with a line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = _run_first(args)
        if given != args:
            say(f"The run comes first now: `{ctx.command_path} {shlex.join(given)}`.")
        return super().parse_args(ctx, given)


def _run_first(words: list[str]) -> list[str]:
    """The words, with the value of `--run` before all others."""
    for place, word in enumerate(words):
        flag, is_joined, run = word.partition("=")
        if flag == "--run" and is_joined:
            return [run, *words[:place], *words[place + 1 :]]
        if word == "--run" and place + 1 < len(words):
            return [words[place + 1], *words[:place], *words[place + 2 :]]
    return words


def answer_of(run: str, message: Strike | Stop) -> Answer:
    """The run's answer to a single question."""

    async def ask() -> Answer:
        return await (await asker_of(run)).ask(message)

    with answering(run):
        return asyncio.run(ask())


@contextmanager
def answering(run: str) -> Iterator[None]:
    """If the run cannot be asked although it was rightly named, raise `NotDone`."""
    try:
        yield
    except InputError:
        raise
    except (Unreachable, Stranger) as error:  # their hints are for who starts a run
        hint = f"If the run {run!r} is still running, ask again. `holdfast report {run}` says how it ended."
        raise NotDone(error.sentence, hint=hint) from None
    except HoldfastError as error:
        raise NotDone(error.sentence, hint=error.hint) from None


async def asker_of(run: str) -> Asker:
    return Asker(home(), run, await located_here(run))


async def located_here(run: str) -> Endpoint:
    """The run on this machine, or where it went from here if $HOLDFAST_TOKEN is its token."""
    return await located(home(), run, os.environ.get("HOLDFAST_TOKEN", ""))
