"""How an agent or an operator reaches the coordinator: connect, prove the token, then send and receive.

If the coordinator dies, an agent continues with its successor over another connection, where it stopped: no
message of either side is lost or received twice (sent.py).

link.py does the same with threads instead of asyncio, for a script's process.
"""

import asyncio
from contextlib import suppress
from typing import Self

import msgspec

from holdfast.record.errors import HoldfastError
from holdfast.run import handshake, seeking, wire
from holdfast.run.endpoint import Endpoint
from holdfast.run.seeking import Address
from holdfast.run.sent import SentFrames
from holdfast.run.wire import Answer, AnyMessage, MalformedFrame, Move, Role, Stop, Strike

READ_BYTES = 1 << 16


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller and where it connects. received: as in `Proof`. wait_s: how long to wait for an answer."""

    host: str
    port: int
    token: str
    role: Role
    name: str = ""
    received: int | None = None
    wait_s: float = handshake.HANDSHAKE_WAIT_S


class Connection:
    """A proven connection to the coordinator of `run`. entry: the handshake that made it."""

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
        self._is_to_be_chosen = False
        """Whether a process that may become the coordinator has answered since the coordinator was lost."""
        self.line: tuple[Address, ...] = ()
        """Where to look for another coordinator; empty if the run has no heirs."""

    @property
    def place(self) -> Address:
        """The coordinator's address."""
        return self._caller.host, self._caller.port

    @property
    def term(self) -> int:
        return self._entry.accepted.term

    @property
    def is_encrypted(self) -> bool:
        return bool(self._channel.fingerprint)

    @property
    def own_address(self) -> str:
        """This machine's address on the connection to the coordinator."""
        return str(self._writer.get_extra_info("sockname")[0])

    def send(self, message: AnyMessage) -> None:
        """Hand the message to the network. `resume` sends again what a lost connection swallowed."""
        frame = wire.frame(message)
        self._sent.add(frame)
        if not self._writer.is_closing():
            self._writer.write(self._channel.seal(frame))

    async def receive(self) -> AnyMessage | None:
        """The next message; None when the connection has ended."""
        while True:
            message = await self._next()
            match message:
                case None:
                    return None
                case wire.Reigning() if self._caller.role != "heir":
                    continue
                case wire.LineOfSuccession(places=places):
                    self.line = places
                    self._received += self._caller.role != "operator"
                case _:
                    self._received += 1
                    return message

    async def _next(self) -> AnyMessage | None:
        data = b""
        try:
            while (message := next(self._frames.feed(self._channel.open(data)), None)) is None:
                read = await self._read()
                if read == b"":
                    return None
                data = read or b""
        except (OSError, MalformedFrame):
            return None
        return message

    async def _read(self) -> bytes | None:
        """The next data. None if this coordinator has long been silent and another one has taken over."""
        wait_s, loop = seeking.SILENT_S, asyncio.get_running_loop()
        due_s = loop.time() + seeking.SEEK_S
        while self.line:
            try:
                async with asyncio.timeout(wait_s):
                    return await self._reader.read(READ_BYTES)
            except TimeoutError:
                wait_s = seeking.SILENT_INTERVAL_S
            if self._caller.role == "operator" or loop.time() > due_s:
                return b""  # an operator asks the new coordinator again
            try:
                if await self._resumed([one for one in self.line if one != self.place]):
                    return None
            except handshake.Rejected:
                return b""
        return await self._reader.read(READ_BYTES)

    async def resume(self) -> bool:
        """Continue with the coordinator's successor. False if there is none, or it has given us up."""
        if not self._entry.accepted.has_successor:
            return False
        await self.close()
        loop = asyncio.get_running_loop()
        began_s, self._is_to_be_chosen = loop.time(), False
        while True:
            try:
                if await self._resumed(seeking.around(self.place, self.line)):
                    return True
            except handshake.Rejected:
                return False
            look_s = seeking.look_s(self.line, is_to_be_chosen=self._is_to_be_chosen)
            if loop.time() - began_s >= look_s:
                return False
            await asyncio.sleep(seeking.SEEK_INTERVAL_S)

    async def _resumed(self, places: list[Address]) -> bool:
        """Connect to a coordinator at one of these places; whether that worked. Raise `Rejected` if it has
        given us up.
        """
        for host, port in places:
            wait_s = seeking.answer_wait_s(self.line)
            caller = msgspec.structs.replace(
                self._caller, received=self._received, host=host, port=port, wait_s=wait_s
            )
            try:
                other = await _called(caller)
            except (handshake.Unreachable, handshake.Stranger) as error:
                self._is_to_be_chosen |= isinstance(error, handshake.Elsewhere)
                continue
            missed = self._sent.after(other._entry.accepted.received)
            if other.term < self.term or missed is None:
                await other.close()
                continue
            self.abort()
            self._take_over(other)
            self._writer.write(self._channel.seal(b"".join(missed)))
            return True
        return False

    def _take_over(self, other: Self) -> None:
        """Use its connection from now on."""
        self._reader, self._writer, self._entry = other._reader, other._writer, other._entry
        self._channel, self._frames, self._caller = other._channel, other._frames, other._caller

    async def close(self) -> None:
        """Close after the last messages are sent, or after `CLOSE_S`."""
        await _close(self._writer)

    def abort(self) -> None:
        """Close at once, because the other end no longer listens."""
        self._writer.transport.abort()


async def dial(
    host: str,
    port: int,
    token: str,
    *,
    role: Role,
    name: str = "",
    wait_s: float = handshake.HANDSHAKE_WAIT_S,
) -> Connection:
    """Connect, and prove the token to each other. Raise `Unreachable`, `Stranger` or `Rejected`."""
    return await _called(Caller(host=host, port=port, token=token, role=role, name=name, wait_s=wait_s))


async def _called(caller: Caller) -> Connection:
    for _ in range(handshake.ATTEMPTS_MAX):
        connection = await _attempt(caller)
        if connection is not None:
            return connection
        await asyncio.sleep(handshake.ATTEMPT_INTERVAL_S)
    raise handshake.stranger(f"{caller.host}:{caller.port}")


async def _attempt(caller: Caller) -> Connection | None:
    """Try once. None if the other end hung up before it answered."""
    place, heard = f"{caller.host}:{caller.port}", False
    try:
        async with asyncio.timeout(caller.wait_s):
            reader, writer = await asyncio.open_connection(caller.host, caller.port)
    except (OSError, UnicodeError) as error:  # OSError covers timeouts; UnicodeError: invalid host name
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
        async with asyncio.timeout(caller.wait_s):
            while entry.run is None:
                data = await reader.read(READ_BYTES) or _hung_up()
                heard = True
                writer.write(entry.take(data))
    except (TimeoutError, MalformedFrame) as error:
        await _close(writer)
        is_silent = isinstance(error, TimeoutError) and not heard
        raise handshake.silent(place, caller.wait_s) if is_silent else handshake.stranger(place) from None
    except OSError:
        await _close(writer)
        return None
    except BaseException:
        await _close(writer)
        raise
    return Connection(caller, reader, writer, entry)


def _hung_up() -> bytes:
    raise ConnectionError("the connection ended")


CLOSE_S = 2.0
"""How long sending the last messages may take; with the network cut, it would never end."""


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # covers timeouts
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
    writer.transport.abort()


ANSWER_WAIT_S = 10.0


class Unanswered(HoldfastError):
    """The connection ended before the answer came: the coordinator was lost, or the run is over."""


async def asked(
    endpoint: Endpoint,
    run: str,
    message: Strike | Move | Stop,
    *,
    wait_s: float = handshake.HANDSHAKE_WAIT_S,
) -> Answer:
    """The coordinator's answer to the operator. Raise `HoldfastError` if none comes."""
    connection = await dial(endpoint.host, endpoint.port, endpoint.token, role="operator", wait_s=wait_s)
    try:
        if connection.run != run:
            raise handshake.Stranger(
                f"The coordinator at {endpoint.host}:{endpoint.port} serves the run {connection.run!r}, "
                f"not {run!r}."
            )
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
        raise Unanswered(f"The run {run!r} ended before it could answer.")
    return answer
