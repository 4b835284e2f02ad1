"""`holdfast attach`: show a live run of this machine, from any terminal."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress

import click

from holdfast.cli.going import NotDone, answering, located_here
from holdfast.cli.record import home
from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError
from holdfast.run.dial import dial
from holdfast.run.endpoint import run_directory
from holdfast.run.handshake import Unreachable
from holdfast.run.lines import LINES_FILE, LinesReader
from holdfast.run.site import Site
from holdfast.run.watching import Viewer, end_lines
from holdfast.run.wire import RunClosed, Said

LOOK_INTERVAL_S = 0.1
EXIT_INTERRUPTED = 130


@click.command("attach")
@click.argument("run")
def command(run: str) -> int:
    """Show RUN, which is live on this machine: its lines so far, and those that follow, until it ends.

    If another machine has taken the run over from this one, Holdfast's own lines from there are shown; this
    needs the run's token in $HOLDFAST_TOKEN. Any number of terminals may show a run. An interrupt ends the
    view, not the run: `holdfast stop` does that. Exit code: the run's; 130 after an interrupt.
    """
    try:
        with answering(run):
            over, recorded_at = asyncio.run(_shown(run))
    except KeyboardInterrupt:
        click.echo(f"holdfast: run {run} goes on; `holdfast attach {run}` shows it again", err=True)
        return EXIT_INTERRUPTED
    if over is None:
        raise NotDone(
            f"The coordinator of the run {run!r} is gone, and has no successor.",
            hint="Start the run again; it goes on from its checkpoint.",
        )
    for line in end_lines(run, over, recorded_at):
        click.echo(line, err=True)
    return over.code


async def _shown(run: str) -> tuple[RunClosed | None, str]:
    """Show the run until it ends. Returns how it ended, and the machine with its record; empty for this."""
    endpoint = await located_here(run)
    here = (endpoint.host, endpoint.port) if endpoint.pid else None
    with suppress(Unreachable):  # the viewer looks for another one
        # A viewer waits long for a coordinator that it knows: one that never answered is not waited for.
        await (await dial(endpoint.host, endpoint.port, endpoint.token, role="operator")).close()

    def show(said: Said) -> None:
        if viewer.place != here:  # Holdfast's lines from there are not in the file here
            click.echo(
                printable(f"[{said.member}] {said.text}" if said.member else f"holdfast: {said.text}"),
                err=True,
            )

    viewer = Viewer(Site(host=endpoint.host, port=endpoint.port, token=endpoint.token), show)
    with _lines(run) if here else nullcontext() as lines:
        following = asyncio.create_task(viewer.follow())
        while not following.done():
            _print(lines)
            await asyncio.wait([following], timeout=LOOK_INTERVAL_S)
        _print(lines)
        return await viewer.over(), "" if viewer.place == here else viewer.place[0]


@contextmanager
def _lines(run: str) -> Iterator[LinesReader]:
    try:
        lines = LinesReader(run_directory(home(), run) / LINES_FILE)
    except OSError as error:
        raise InputError(
            f"The lines of the run {run!r} cannot be read: {error.strerror}.",
            hint=f"If it has ended meanwhile, `holdfast report {run}` says how.",
        ) from None
    with closing(lines):
        yield lines


def _print(lines: LinesReader | None) -> None:
    if lines is None:
        return
    for line in lines.new():
        out = sys.stdout.buffer if line.stream == "stdout" else sys.stderr.buffer
        out.write(line.data)
    sys.stdout.flush()
    sys.stderr.flush()
