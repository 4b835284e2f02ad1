"""How an agent or an operator reaches the coordinator: connect, prove the token, then send and receive.

The same with threads instead of asyncio, for a script's process, is link.py.
"""

import asyncio
from contextlib import suppress

from holdfast.run import wire
from holdfast.run.handshake import (
    ATTEMPT_INTERVAL_S,
    ATTEMPTS_MAX,
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_WAIT_S,
    Client,
    endpoint_of,
    stranger,
    unreachable,
)
from holdfast.run.wire import FRAME_BYTES_MAX, AnyMessage, MalformedFrame, Role


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
    """Connect, and prove the token to each other; else `Unreachable`, `Stranger` or `Rejected`."""
    for _ in range(ATTEMPTS_MAX):
        connection = await _attempt(host, port, token, role, name)
        if connection is not None:
            return connection
        await asyncio.sleep(ATTEMPT_INTERVAL_S)
    raise stranger(f"{host}:{port}")


async def _attempt(host: str, port: int, token: str, role: Role, name: str) -> Connection | None:
    """None: it hung up before it said yes or no."""
    place = f"{host}:{port}"
    try:
        async with asyncio.timeout(HANDSHAKE_WAIT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:  # a timeout is one, too
        raise unreachable(place, error) from None
    try:
        client = Client(token, role=role, name=name, endpoint=endpoint_of(writer.get_extra_info("peername")))
        async with asyncio.timeout(HANDSHAKE_WAIT_S):
            proof = client.answer(await _read(reader, HANDSHAKE_BYTES_MAX))
            writer.write(wire.frame(proof))
            run = client.accepted_by(await _read(reader, HANDSHAKE_BYTES_MAX))
    except (TimeoutError, MalformedFrame):
        await _close(writer)
        raise stranger(place) from None
    except (OSError, asyncio.IncompleteReadError):
        await _close(writer)
        return None
    except BaseException:
        await _close(writer)
        raise
    return Connection(reader, writer, run)


async def _read(reader: asyncio.StreamReader, bytes_max: int = FRAME_BYTES_MAX) -> AnyMessage:
    length = wire.frame_length(await reader.readexactly(wire.LENGTH_BYTES), bytes_max)
    return wire.unframe(await reader.readexactly(length))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
