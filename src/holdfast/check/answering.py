"""The other side of the fabric check, on a node that is known to be good: `holdfast check --answer`.

It answers only nodes that prove the token, one connection at a time, each within bounds of time and bytes.
It sends zeros and discards the data that it receives. It ends by itself.

Every connection is accepted at once, even while another is answered. If too many wait, the kernel drops some;
to the node at the other end that looks like a cut link, and a healthy node would fail its check.
"""

import os
import socket
import threading
import time
from contextlib import closing, suppress
from queue import Empty, Full, Queue

from holdfast.check.fabric import (
    COUNTED,
    ECHO,
    PIECE_BYTES_MAX,
    PING_BYTES,
    PINGS,
    RECEIVE,
    REQUEST,
    SEND,
    BoundedSocket,
)
from holdfast.record.errors import InputError
from holdfast.run import wire
from holdfast.run.handshake import HANDSHAKE_BYTES_MAX, Host, endpoint_of
from holdfast.run.seeking import Address

HANDSHAKE_S, CONNECTION_S = 3.0, 60.0
"""How long a node may take to prove the token, and then for all of its requests."""
BYTES_MAX = 256 << 30
"""For one connection, in both directions together."""
WAITING_MAX = 16
"""Connections that wait for their turn. Further ones are closed, which tells the node that we are busy."""
NAME = "check"


class FabricAnswerer:
    """Listens at `place`. Raises `InputError` if that is not possible."""

    def __init__(self, place: Address, token: str) -> None:
        self._token = token
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        try:
            self._listener = socket.create_server(place, family=family, backlog=WAITING_MAX)
        except OSError as error:
            number = error.errno or 0  # below 0: an error of the resolver
            reason = "its name is not known" if number < 0 else os.strerror(number).lower()
            raise InputError(
                f"Cannot listen at {place[0]}:{place[1]}: {reason}.",
                hint="Name an address of this machine and a port that is free.",
            ) from None

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def stop(self) -> None:
        """End `serve`; no further node is answered. For another thread to call."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def serve(self, until_s: float) -> None:
        """Answer one node after the other. until_s: by the monotonic clock."""
        waiting: Queue[socket.socket | None] = Queue(WAITING_MAX)
        answering = threading.Thread(target=self._answer_all, args=(waiting,), daemon=True)
        answering.start()
        with closing(self._listener):
            self._accept(waiting, until_s)
            _close_all(waiting)
        waiting.put(None)
        answering.join()

    def _accept(self, waiting: "Queue[socket.socket | None]", until_s: float) -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            self._listener.settimeout(left_s)
            try:
                connection, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue  # the node hung up before it was accepted
            except OSError:
                return  # the time is over, or `stop` was called
            try:
                waiting.put_nowait(connection)
            except Full:
                connection.close()

    def _answer_all(self, waiting: "Queue[socket.socket | None]") -> None:
        try:
            while (connection := waiting.get()) is not None:
                with connection, suppress(OSError, wire.MalformedFrame):
                    self._answer(connection)  # if one fails, the next is still answered
        finally:
            with suppress(OSError):  # the listener is closed already, unless this thread failed
                self.stop()

    def _answer(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._is_let_in(connection):
            FabricQuestions(BoundedSocket(connection, time.monotonic() + CONNECTION_S)).answer()

    def _is_let_in(self, connection: socket.socket) -> bool:
        host = Host(self._token, endpoint=endpoint_of(connection.getsockname()))
        due_s = time.monotonic() + HANDSHAKE_S
        connection.settimeout(HANDSHAKE_S)
        connection.sendall(wire.frame(host.challenge))
        frames = wire.FrameBuffer(HANDSHAKE_BYTES_MAX)
        data = b""
        while (proof := next(frames.feed(data), None)) is None:
            connection.settimeout(max(due_s - time.monotonic(), 0.001))
            if not (data := connection.recv(HANDSHAKE_BYTES_MAX)):
                return False
        if not isinstance(proof, wire.Proof):
            return False
        refusal = host.refusal(proof)
        if refusal is not None:
            connection.sendall(wire.frame(host.sealed(refusal)))
            return False
        connection.sendall(wire.frame(host.sealed(wire.Accepted(run=NAME))))
        return True


def _close_all(waiting: "Queue[socket.socket | None]") -> None:
    """Close the connections that still wait for their turn."""
    while True:
        try:
            connection = waiting.get_nowait()
        except Empty:
            return
        if connection is not None:
            connection.close()


class FabricQuestions:
    """The requests of a node that has proven the token."""

    def __init__(self, connection: BoundedSocket) -> None:
        self._connection = connection
        self._bytes_left = BYTES_MAX

    def answer(self) -> None:
        """Answer until the connection ends. Raises `MalformedFrame` for an unknown or too large request."""
        while True:
            asked, count = REQUEST.unpack(self._connection.read(REQUEST.size))
            self._spend(asked, count)
            if asked == ECHO:
                for _ in range(count):
                    self._connection.write(self._connection.read(PING_BYTES))
                continue
            if asked == SEND:
                self._connection.drain(count)
            else:
                self._connection.pour(count)
            self._connection.write(COUNTED.pack(*self._connection.sent_again()))

    def _spend(self, asked: bytes, count: int) -> None:
        most = {ECHO: PINGS, SEND: PIECE_BYTES_MAX, RECEIVE: PIECE_BYTES_MAX}.get(asked, 0)
        self._bytes_left -= count * PING_BYTES if asked == ECHO else count
        if not 0 < count <= most or self._bytes_left < 0:
            raise wire.MalformedFrame("unknown or too large request")
