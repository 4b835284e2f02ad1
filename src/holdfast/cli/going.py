"""Finds the live run that a verb is about, and asks it."""

import asyncio
import os

from holdfast.cli.record import home
from holdfast.run.asking import Asker
from holdfast.run.endpoint import Endpoint
from holdfast.run.locating import located
from holdfast.run.wire import Answer, Stop, Strike


def answer_of(run: str, message: Strike | Stop) -> Answer:
    """The run's answer to a single question."""

    async def ask() -> Answer:
        return await (await asker_of(run)).ask(message)

    return asyncio.run(ask())


async def asker_of(run: str) -> Asker:
    return Asker(home(), run, await located_here(run))


async def located_here(run: str) -> Endpoint:
    """The run on this machine, or where it went from here if $HOLDFAST_TOKEN is its token."""
    return await located(home(), run, os.environ.get("HOLDFAST_TOKEN", ""))
