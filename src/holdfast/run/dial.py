"""How an agent or an operator reaches the coordinator: connect, prove the token, then send and receive.

If the coordinator dies, an agent goes on with its successor over another connection, where it was: nothing
that either has said is lost or heard twice (sent.py).

The same with threads instead of asyncio, for a script's process, is link.py.
"""

import asyncio
from contextlib import suppress
from typing import Self

import msgspec

from holdfast.record.errors import HoldfastError
from holdfast.run import handshake, wire
from holdfast.run.endpoint import Endpoint
from holdfast.run.sent import SentFrames
from holdfast.run.wire import Answer, AnyMessage, MalformedFrame, Move, Role, Stop, Strike

READ_BYTES = 1 << 16


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, and where. received: as in `Proof`."""

    host: str
    port: int
    token: str
    role: Role
    name: str = ""
    received: int | None = None


class Connection:
    """A proven connection to the coordinator of `run`. entry: the way it was made."""

    def __init__(
        self,
        caller: Caller,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        entry: handshake.Entry,
    ) -> None:
        self.run = entry.run or ""
        self._caller = caller
        self._reader = reader
        self._writer = writer
        self._entry = entry
        self._channel = entry.channel
        self._frames = entry.frames
        self._sent = SentFrames()
        self._received = 0

    @property
    def is_encrypted(self) -> bool:
        return bool(self._channel.fingerprint)

    @property
    def own_address(self) -> str:
        """The address of this machine on the way to the coordinator."""
        return str(self._writer.get_extra_info("sockname")[0])

    def send(self, message: AnyMessage) -> None:
        """Hand the message to the network. What a lost connection swallows is sent again by `resume`."""
        frame = wire.frame(message)
        self._sent.add(frame)
        if not self._writer.is_closing():
            self._writer.write(self._channel.seal(frame))

    async def receive(self) -> AnyMessage | None:
        """The next message; None when the connection has ended."""
        data = b""
        try:
            while (message := next(self._frames.feed(self._channel.open(data)), None)) is None:
                data = await self._reader.read(READ_BYTES)
                if not data:
                    return None
        except (OSError, MalformedFrame):
            return None
        self._received += 1
        return message

    async def resume(self) -> bool:
        """Go on with the coordinator's successor; False: there is none, or it has given us up."""
        if not self._entry.accepted.has_successor:
            return False
        await self.close()
        caller = msgspec.structs.replace(self._caller, received=self._received)
        try:
            other = await _called(caller)
        except (handshake.Unreachable, handshake.Stranger, handshake.Rejected):
            return False
        missed = self._sent.after(other._entry.accepted.received)
        if missed is None:
            await other.close()
            return False
        self._take_over(other)
        self._writer.write(self._channel.seal(b"".join(missed)))
        return True

    def _take_over(self, other: Self) -> None:
        """Speak over its connection from now on."""
        self._reader, self._writer, self._entry = other._reader, other._writer, other._entry
        self._channel, self._frames = other._channel, other._frames

    async def close(self) -> None:
        await _close(self._writer)


async def dial(host: str, port: int, token: str, *, role: Role, name: str = "") -> Connection:
    """Connect, and prove the token to each other; else `Unreachable`, `Stranger` or `Rejected`."""
    return await _called(Caller(host=host, port=port, token=token, role=role, name=name))


async def _called(caller: Caller) -> Connection:
    for _ in range(handshake.ATTEMPTS_MAX):
        connection = await _attempt(caller)
        if connection is not None:
            return connection
        await asyncio.sleep(handshake.ATTEMPT_INTERVAL_S)
    raise handshake.stranger(f"{caller.host}:{caller.port}")


async def _attempt(caller: Caller) -> Connection | None:
    """None: it hung up before it said yes or no."""
    place = f"{caller.host}:{caller.port}"
    try:
        async with asyncio.timeout(handshake.HANDSHAKE_WAIT_S):
            reader, writer = await asyncio.open_connection(caller.host, caller.port)
    except OSError as error:  # a timeout is one, too
        raise handshake.unreachable(place, error) from None
    try:
        endpoint = handshake.endpoint_of(writer.get_extra_info("peername"))
        client = handshake.HandshakeClient(
            caller.token,
            role=caller.role,
            name=caller.name,
            endpoint=endpoint,
            received=caller.received,
        )
        entry = handshake.Entry(client)
        async with asyncio.timeout(handshake.HANDSHAKE_WAIT_S):
            while entry.run is None:
                writer.write(entry.take(await reader.read(READ_BYTES) or _hung_up()))
    except (TimeoutError, MalformedFrame):
        await _close(writer)
        raise handshake.stranger(place) from None
    except OSError:
        await _close(writer)
        return None
    except BaseException:
        await _close(writer)
        raise
    return Connection(caller, reader, writer, entry)


def _hung_up() -> bytes:
    raise ConnectionError("the connection ended")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


ANSWER_WAIT_S = 10.0


async def asked(endpoint: Endpoint, run: str, message: Strike | Move | Stop) -> Answer:
    """The coordinator's answer to the operator; `HoldfastError` where none comes."""
    connection = await dial(endpoint.host, endpoint.port, endpoint.token, role="operator")
    try:
        connection.send(message)
        async with asyncio.timeout(ANSWER_WAIT_S):
            answer = await connection.receive()
    except TimeoutError:
        raise HoldfastError(
            f"The run {run!r} does not answer.",
            hint="Its coordinator may be stopped (SIGSTOP), or its machine busy.",
        ) from None
    finally:
        await connection.close()
    if not isinstance(answer, Answer):
        raise HoldfastError(f"The run {run!r} ended before it could answer.")
    return answer
