"""A viewer of a run: the lines for the operator as they come, the run's status, and how it ended.

The launcher is one, and so is `holdfast attach`. A viewer owns nothing: it can be killed, and when the
coordinator dies, it continues with the successor after the last line that it has seen.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.record.untrusted import UNDECODABLE
from holdfast.run import wire
from holdfast.run.dial import Connection, dial
from holdfast.run.handshake import Elsewhere, Rejected, Stranger, Unreachable
from holdfast.run.seeking import SEEK_INTERVAL_S, SEEK_S, Address, answer_wait_s, around
from holdfast.run.site import Site
from holdfast.run.status import Status

STATUS_INTERVAL_S = 0.1
"""How often a viewer with a live display asks for the run's status."""

_statuses = msgspec.msgpack.Decoder(Status)


def status_of(packed: bytes) -> Status:
    """The status that a coordinator sent. Raise `MalformedFrame` if it is not valid."""
    try:
        return _statuses.decode(packed)
    except UNDECODABLE as error:
        raise wire.MalformedFrame(str(error)) from None


def end_lines(run: str, over: wire.RunClosed, recorded_at: str = "") -> list[str]:
    """The complaint, and how the run ended unless the complaint is a sentence that says it all. recorded_at:
    the machine that has the record; empty for this one.
    """
    lines = [over.complaint.rstrip()] if over.complaint else []
    if not over.complaint.startswith("holdfast: "):
        lines.append(f"holdfast: {end_line(run, over, recorded_at)}")
    return lines


def end_line(run: str, over: wire.RunClosed, recorded_at: str = "") -> str:
    """How the run ended, how it goes on if it was stopped, and who knows more."""
    again = ""
    if over.outcome == "stopped":
        again = f"; {_way_on(run, over.saved_step)}"
    report = f"`holdfast report {run}` shows where its time went"
    if recorded_at:
        report = f"its record is on {recorded_at}: there, {report}"
    return f"run {run} {over.outcome}{again}; {report}"


def _way_on(run: str, saved_step: int | None) -> str:
    """What happens if the run is started again."""
    if saved_step is None:
        return "Holdfast saves no checkpoints of this script: started again, it goes on from its own, if any"
    newest = (
        f"its checkpoint of step {saved_step:,}" if saved_step else "its newest checkpoint, if it has one"
    )
    return f"started again with `--run {run}`, it goes on from {newest}"


class Viewer:
    """One viewer's connection. show: called with each line. seek_s: how long to look for a coordinator along
    the line of succession. seen: lines up to this number are not sent.
    """

    def __init__(
        self, site: Site, show: Callable[[wire.Said], None], *, seek_s: float = SEEK_S, seen: int = 0
    ) -> None:
        self.place: Address = (site.host, site.port)
        """Where the coordinator is, as far as known."""
        self._line: tuple[Address, ...] = ()
        self._seek_s = seek_s
        self._site = site
        self._show = show
        self._seen = seen
        self._connection: Connection | None = None
        self._asker = wire.fresh_asker()
        self._wishes = 0
        self._stops: list[wire.Stop] = []
        """Requests that no coordinator has answered yet."""
        self._status: Status | None = None
        self._status_came = asyncio.Event()
        self._over: asyncio.Future[wire.RunClosed | None] = asyncio.get_running_loop().create_future()
        self.away_s: float | None = None
        """How long the last fault that struck a node takes it away."""

    async def follow(self) -> None:
        """Follow until the coordinator hangs up after the end, or no coordinator is left."""
        try:
            while not self._over.done():
                self._connection = await self._found()
                self.place = self._connection.place
                self._connection.send(wire.WatchRun(seen=self._seen))
                for stop in self._stops:
                    self._connection.send(stop)
                while (message := await self._connection.receive()) is not None:
                    self._heard(message)
                self._line = self._connection.line
                await self._connection.close()
                self._connection = None
        except (Unreachable, Stranger, Rejected):
            pass  # there is no coordinator any more
        finally:
            self._connection = None
            if not self._over.done():
                self._over.set_result(None)

    async def _found(self) -> Connection:
        """A connection to the coordinator, where it was or along the line. Raise `Unreachable` if there is
        none.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            wait_s = answer_wait_s(self._line)
            for host, port in around(self.place, self._line):
                try:
                    return await dial(host, port, self._site.token, role="operator", wait_s=wait_s)
                except (Unreachable, Stranger) as error:
                    look_s = SEEK_S if isinstance(error, Elsewhere) else 0.0
                    if loop.time() - began_s >= (self._seek_s if self._line else look_s):
                        raise
            await asyncio.sleep(SEEK_INTERVAL_S)

    def _heard(self, message: wire.AnyMessage) -> None:
        match message:
            case wire.Said():
                self._seen = message.number
                self._show(message)
            case wire.NodeStruck(for_s=for_s):
                self.away_s = for_s
            case wire.StatusTold(packed=packed):
                self._status = status_of(packed)
                self._status_came.set()
            case wire.Answer():
                del self._stops[:1]
            case wire.RunClosed():
                if not self._over.done():
                    self._over.set_result(message)

    @property
    def is_connected(self) -> bool:
        """Whether it has a coordinator at present."""
        return self._connection is not None

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether the run may go on although this viewer lost its coordinator: it had heirs."""
        return bool(self._line)

    async def over(self) -> wire.RunClosed | None:
        """How the run ended; None if its coordinator is gone without a successor."""
        return await asyncio.shield(self._over)

    def stop(self, reason: str) -> None:
        """Ask this coordinator, or the next one, to end the run."""
        self._wishes += 1
        stop = wire.Stop(reason=reason, asker=self._asker, number=self._wishes)
        self._stops.append(stop)
        if self._connection is not None:
            self._connection.send(stop)

    async def ask(self) -> None:
        """Keep asking for the run's status."""
        while True:
            if self._connection is not None:
                self._connection.send(wire.AskStatus())
            await asyncio.sleep(STATUS_INTERVAL_S)

    async def await_status(self) -> None:
        """Wait for the first status, or for the end of the run."""
        came = asyncio.create_task(self._status_came.wait())
        waits: list[asyncio.Future[Any]] = [came, self._over]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        came.cancel()
        with suppress(asyncio.CancelledError):
            await came

    def status(self) -> Status:
        """The last status. Any thread may ask, after the first has arrived."""
        assert self._status is not None
        return self._status
