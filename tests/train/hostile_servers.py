"""Hostile servers on loopback: raw sockets that answer as an attacker would, or never answer."""

import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "tls"
DRIP_S = 0.05
"""Pause between two bytes: any time-out of a single read is far longer."""
BOMB_BYTES = 64 << 20
DRAIN_S = 5.0
GZIP_FORM = 31
"""zlib's window bits for gzip."""
CHUNK = b"x" * 65_536

Act = Callable[[socket.socket, threading.Event], None]
"""What is done to a client after its request; the event is set when the server stops."""


@contextmanager
def hostile(act: Act, *, tls: bool = False, heads: list[bytes] | None = None) -> Iterator[str]:
    """The URL of a server that does this to every client. heads: collects the requests."""
    over = threading.Event()
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def serve(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                if tls:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(DATA / "self-signed.pem", DATA / "self-signed-key.pem")
                    connection = context.wrap_socket(connection, server_side=True)
                head = connection.recv(65_536)
                if heads is not None:
                    heads.append(head)
                act(connection, over)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            thread.join()
            for connection in connections:
                connection.close()


def says(head: str, body: bytes = b"") -> Act:
    """Answers once, and closes."""

    def act(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        # With a request's body unread, closing would reset the connection and take the answer back.
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(DRAIN_S)
        while connection.recv(len(CHUNK)):
            pass

    return act


def is_silent(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


def drips_its_head(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not over.wait(DRIP_S):
        connection.sendall(b"x")


def drips_its_body(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not over.wait(DRIP_S):
        connection.sendall(b"\n")


def has_a_head_without_end(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        connection.sendall(b"X: " + CHUNK + b"\r\n")


def has_a_body_without_end(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not over.is_set():
        connection.sendall(CHUNK)


def is_a_gzip_bomb(connection: socket.socket, over: threading.Event) -> None:
    packing = zlib.compressobj(9, wbits=GZIP_FORM)
    packed = b"".join(packing.compress(bytes(1 << 20)) for _ in range(BOMB_BYTES >> 20)) + packing.flush()
    says(f"HTTP/1.1 200 OK\nContent-Encoding: gzip\nContent-Length: {len(packed)}", packed)(connection, over)


def redirects(to: str) -> Act:
    return says(f"HTTP/1.1 302 Found\nLocation: {to}\nContent-Length: 0")
