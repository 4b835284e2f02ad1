"""`holdfast attach`: show a run that goes on on this machine, from any terminal."""

import asyncio
import sys

import click

from holdfast.cli.record import home
from holdfast.record.errors import HoldfastError
from holdfast.run.endpoint import find_endpoint, run_directory
from holdfast.run.lines import LINES_FILE, LinesReader
from holdfast.run.site import Site
from holdfast.run.watching import Viewer, end_lines
from holdfast.run.wire import RunClosed

LOOK_INTERVAL_S = 0.1
EXIT_INTERRUPTED = 130


@click.command("attach")
@click.argument("run")
def command(run: str) -> int:
    """Show RUN, which goes on on this machine: its lines so far, and those that follow, until it ends.

    Any number of terminals may look at a run. An interrupt ends the view, and not the run: that is
    `holdfast stop`. Exit code: the run's; 130 after an interrupt.
    """
    try:
        over = asyncio.run(_shown(run))
    except KeyboardInterrupt:
        click.echo(f"holdfast: run {run} goes on; `holdfast attach {run}` shows it again", err=True)
        return EXIT_INTERRUPTED
    if over is None:
        raise HoldfastError(
            f"The coordinator of the run {run!r} is gone, and has no successor.",
            hint="Start the run again; it goes on from its checkpoint.",
        )
    for line in end_lines(run, over):
        click.echo(line, err=True)
    return over.code


async def _shown(run: str) -> RunClosed | None:
    """How the run has ended, once it has."""
    endpoint = find_endpoint(home(), run)
    try:
        lines = LinesReader(run_directory(home(), run) / LINES_FILE)
    except OSError as error:
        raise HoldfastError(f"The lines of the run {run!r} cannot be read: {error.strerror}.") from None
    viewer = Viewer(Site(host=endpoint.host, port=endpoint.port, token=endpoint.token), lambda said: None)
    following = asyncio.create_task(viewer.follow())
    try:
        while not following.done():
            _print(lines)
            await asyncio.wait([following], timeout=LOOK_INTERVAL_S)
        _print(lines)
        return await viewer.over()
    finally:
        lines.close()


def _print(lines: LinesReader) -> None:
    for line in lines.new():
        out = sys.stdout.buffer if line.stream == "stdout" else sys.stderr.buffer
        out.write(line.data)
    sys.stdout.flush()
    sys.stderr.flush()
