"""How an agent or an operator reaches the coordinator: connect, prove the token, then send and receive.

The same with threads instead of asyncio, for a script's process, is link.py.
"""

import asyncio
import socket
from contextlib import suppress

from holdfast.record.errors import HoldfastError
from holdfast.run import wire
from holdfast.run.wire import Accepted, AnyMessage, Challenge, MalformedFrame, Proof, Refused, Role

HANDSHAKE_WAIT_S = 5.0
"""A coordinator answers at once; what is silent for so long is something else."""


class Unreachable(HoldfastError):
    """Nobody listens there, or the way there is blocked."""


class Stranger(HoldfastError):
    """Somebody listens there who is no coordinator of this version of Holdfast."""


class Rejected(HoldfastError):
    """The coordinator does not want us: a wrong token, or a name that is taken."""


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
    except (OSError, TimeoutError) as error:
        reason = _reason(error)
        raise Unreachable(
            f"The coordinator at {place} cannot be reached: {reason}.",
            hint="Start `holdfast run` with the same --coordinator on that host; check port and firewall.",
        ) from None
    try:
        async with asyncio.timeout(HANDSHAKE_WAIT_S):
            run = await _prove(reader, writer, token, Proof(role=role, name=name, proof=b""))
    except (OSError, TimeoutError, asyncio.IncompleteReadError, MalformedFrame):
        await _close(writer)
        raise Stranger(
            f"What listens at {place} is no coordinator of Holdfast.",
            hint="Choose another port with --coordinator HOST:PORT.",
        ) from None
    except BaseException:
        await _close(writer)
        raise
    return Connection(reader, writer, run)


async def _prove(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, proof: Proof) -> str:
    """The name of the run whose coordinator has accepted us."""
    challenge = await _read(reader)
    if not isinstance(challenge, Challenge):
        raise MalformedFrame("no challenge")
    answer = Proof(role=proof.role, name=proof.name, proof=wire.prove(token, challenge.nonce))
    writer.write(wire.frame(answer))
    verdict = await _read(reader)
    if isinstance(verdict, Refused):
        raise Rejected(verdict.sentence, hint=verdict.hint)
    if not isinstance(verdict, Accepted):
        raise MalformedFrame("no verdict")
    return verdict.run


async def _read(reader: asyncio.StreamReader) -> AnyMessage:
    length = wire.frame_length(await reader.readexactly(wire.LENGTH_BYTES))
    return wire.unframe(await reader.readexactly(length))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _reason(error: OSError | TimeoutError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    return (error.strerror or "no answer").lower()
