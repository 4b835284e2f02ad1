"""How an agent or an operator reaches the coordinator: connect, prove the token, then send and receive.

The same with threads instead of asyncio, for a script's process, is link.py.
"""

import asyncio
from contextlib import suppress

from holdfast.run import wire
from holdfast.run.handshake import HANDSHAKE_WAIT_S, accepted_by, answer, stranger, unreachable
from holdfast.run.wire import AnyMessage, MalformedFrame, Role


class Connection:
    """A proven connection to the coordinator of `run`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run: str) -> None:
        self.run = run
        self._reader = reader
        self._writer = writer

    @property
    def own_address(self) -> str:
        """The address of this machine on the way to the coordinator."""
        return str(self._writer.get_extra_info("sockname")[0])

    def send(self, message: AnyMessage) -> None:
        """Hand the message to the network. What a lost connection swallows, its end will tell."""
        if not self._writer.is_closing():
            self._writer.write(wire.frame(message))

    async def receive(self) -> AnyMessage | None:
        """The next message; None when the connection has ended."""
        try:
            return await _read(self._reader)
        except (OSError, asyncio.IncompleteReadError, MalformedFrame):
            return None

    async def close(self) -> None:
        await _close(self._writer)


async def dial(host: str, port: int, token: str, *, role: Role, name: str = "") -> Connection:
    """Connect and prove the token; `Unreachable`, `Stranger` or `Rejected` where that fails."""
    place = f"{host}:{port}"
    try:
        async with asyncio.timeout(HANDSHAKE_WAIT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:  # a timeout is one, too
        raise unreachable(place, error) from None
    try:
        async with asyncio.timeout(HANDSHAKE_WAIT_S):
            proof = answer(await _read(reader), token, role, name)
            writer.write(wire.frame(proof))
            run = accepted_by(await _read(reader))
    except (OSError, asyncio.IncompleteReadError, MalformedFrame):
        await _close(writer)
        raise stranger(place) from None
    except BaseException:
        await _close(writer)
        raise
    return Connection(reader, writer, run)


async def _read(reader: asyncio.StreamReader) -> AnyMessage:
    length = wire.frame_length(await reader.readexactly(wire.LENGTH_BYTES))
    return wire.unframe(await reader.readexactly(length))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
