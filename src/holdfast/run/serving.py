"""A client's connection on the side of a coordinator, or of an heir that may become one."""

import asyncio
import socket
from typing import Protocol

from holdfast.run import wire
from holdfast.run.handshake import HANDSHAKE_BYTES_MAX, Host, endpoint_of
from holdfast.run.tls import Channel, Identity

HANDSHAKE_S = 60.0
"""How long a connection may take to prove that it has the token: on a machine with too few cores, a client
may get none for seconds. If there are many unproven connections, the oldest is dropped much earlier
(UNPROVEN_S in coordinator.py).
"""
SEND_BUFFER_BYTES_MAX = 32 << 20
"""A client that leaves more than this unread is given up. A member whose interpreter is busy for a while
reads nothing and must not be given up: messages for it meanwhile are smaller than this (train/minutes.py,
train/meeting.py).
"""


class Desk(Protocol):
    """The server side of connections. identity: its TLS identity; None for no encryption."""

    identity: Identity | None

    def opened(self, connection: "ClientConnection") -> None:
        """A client has connected and has proved nothing yet."""

    def handshake(self, endpoint: str) -> Host:
        """The server's side of a handshake on a connection that arrived there."""

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        """Why this client, which has the token, may not connect; None if it may."""

    def accepted(
        self, connection: "ClientConnection", received: int | None
    ) -> tuple[wire.Accepted, list[bytes]]:
        """Admit a client. received: how many messages it received before; None if it is new. Return the
        answer and the messages that it missed.
        """

    def closed(self, connection: "ClientConnection") -> None:
        """The connection has ended."""

    def heard(self, connection: "ClientConnection", message: wire.AnyMessage) -> None:
        """Handle a message of a proven connection. Raise `MalformedFrame` if its role must not send it."""


class ClientConnection(asyncio.Protocol):
    """One client: first it proves the token, then each of its messages goes to the desk."""

    def __init__(self, desk: Desk) -> None:
        self.role: wire.Role = "operator"
        self.name = ""
        self.session = 0
        """The number of an agent's or worker's session in the estate."""
        self.closed = asyncio.Event()
        self.unread_bytes_max = SEND_BUFFER_BYTES_MAX
        self._desk = desk
        self._host: Host | None = None
        self._channel = Channel()
        self._frames = wire.FrameBuffer(HANDSHAKE_BYTES_MAX)
        self._is_accepted = False
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timeout = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.abort)
        self._desk.opened(self)
        try:
            self._host = self._desk.handshake(endpoint_of(transport.get_extra_info("sockname")))
        except (TypeError, ValueError):  # the connection has already ended
            self.abort()
            return
        self.send(self._host.challenge)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            if self._host is not None and self._host.challenge.tls and not self._channel.fingerprint:
                assert self._desk.identity is not None
                self._channel.host(self._desk.identity)
            said = self._channel.open(data)
            self._transport.write(self._channel.pending())
            for message in self._frames.feed(said):
                if self._is_accepted:
                    self._desk.heard(self, message)
                else:
                    self._shake_hands(message)
        except wire.MalformedFrame as error:
            if not self._is_accepted and self._channel.is_ready:
                self.send(wire.Refused(sentence=f"This is not a Holdfast process: {error}."))
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self.closed.set()
        self._desk.closed(self)

    def send(self, message: wire.AnyMessage) -> None:
        self.write(wire.frame(message))

    def write(self, data: bytes) -> None:
        """Hand the data to the kernel, or buffer them. A client that does not read is given up."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() + len(data) > self.unread_bytes_max:
            self.abort()
        elif not self._transport.is_closing():
            self._transport.write(self._channel.seal(data))

    def end(self) -> None:
        """Close, once everything is sent."""
        assert self._transport is not None
        self._transport.close()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    @property
    def unanswered(self) -> int:
        """How often the kernel has retransmitted the same data to it, each time after twice as long."""
        assert self._transport is not None
        own = self._transport.get_extra_info("socket")
        try:
            _state, _phase, retransmits = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)
        except OSError:  # it has ended
            return 0
        return int(retransmits)

    def _shake_hands(self, message: wire.AnyMessage) -> None:
        if not isinstance(message, wire.Proof):
            raise wire.MalformedFrame(f"{type(message).__name__} before the proof")
        assert self._host is not None
        refusal = self._host.refusal(message) or self._desk.refusal(message)
        if refusal is not None:
            self.send(self._host.sealed(refusal))
            self.end()
            return
        if self._timeout is not None:
            self._timeout.cancel()
        self.role, self.name, self._is_accepted = message.role, message.name, True
        self._channel.is_proven, self._frames.bytes_max = True, wire.FRAME_BYTES_MAX
        accepted, missed = self._desk.accepted(self, message.received)
        self.send(self._host.sealed(accepted))
        for data in missed:
            self.write(data)
