"""Finds the live run that a verb is about."""

import asyncio
import os

from holdfast.cli.record import home
from holdfast.run.endpoint import Endpoint
from holdfast.run.locating import located


def endpoint_of(run: str) -> Endpoint:
    return asyncio.run(located_here(run))


async def located_here(run: str) -> Endpoint:
    """The run on this machine, or where it went from here if $HOLDFAST_TOKEN is its token."""
    return await located(home(), run, os.environ.get("HOLDFAST_TOKEN", ""))
