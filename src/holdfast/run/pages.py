"""Serve pages over HTTP, such as metrics for Prometheus, to every client that can reach the port.

One thread with an event loop serves all clients, and no client may take longer than a few seconds to ask or
to read. When there are too many, the oldest connection is dropped, so that hundreds of silent clients cannot
keep out one that asks. A page is made when it is requested. The run never waits for this server, and an error
here affects only its client.
"""

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus

import msgspec

from holdfast.record.errors import InputError

CLIENT_S_MAX = 10.0
"""How long a client may take, from its connection until it has the whole page."""
CLIENTS_MAX = 64
"""Connections at a time. Each may hold a page in memory and uses one of the run's descriptors."""
BACKLOG = 128
"""How many connections may wait to be accepted, and how many are accepted at once."""
REQUEST_BYTES_MAX = 8 << 10
CLOSE_S_MAX = 5.0

_REQUEST = re.compile(rb"(GET|HEAD) (/[!-~]*) HTTP/1\.[01]\r\n")
_END = b"\r\n\r\n"


class MetricsPage(msgspec.Struct, frozen=True, kw_only=True):
    content_type: str
    body: bytes


MakePage = Callable[[], MetricsPage]


@contextlib.contextmanager
def serving(host: str, port: int, pages: Mapping[str, MakePage]) -> Iterator[int]:
    """Serve these pages by their paths while the block lasts, and yield the port. Port 0 takes a free one.

    Raise `InputError` if the address cannot be used.
    """
    server = _Server(_listening(host, port), pages)
    thread = threading.Thread(target=server.run, name="holdfast-pages", daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.stop()
        thread.join(CLOSE_S_MAX)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: invalid host name
        raise InputError(
            f"Metrics cannot be served at {host}:{port}: {_reason(error).lower()}.",
            hint="Choose a free port (0 takes any), and an address of this machine.",
        ) from None


def _reason(error: Exception) -> str:
    """The kernel's message, without the words that `create_server` adds."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


class _Server:
    def __init__(self, listening: socket.socket, pages: Mapping[str, MakePage]) -> None:
        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._pages = dict(pages)
        self._clients: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.new_event_loop()
        # Ignore clients that left and missing descriptors: asyncio itself waits a second.
        self._loop.set_exception_handler(lambda loop, context: None)
        self._over = asyncio.Event()

    def run(self) -> None:
        """Serve until `stop`; the thread's main function."""
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._meet, sock=self._listening, backlog=BACKLOG, limit=REQUEST_BYTES_MAX
        )
        await self._over.wait()
        server.close()
        clients = asyncio.all_tasks() - {asyncio.current_task()}
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.sleep(0)  # their connections close with the next turn of the loop

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.current_task()
        assert client is not None
        if len(self._clients) >= CLIENTS_MAX:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        self._clients[client] = None
        try:
            async with asyncio.timeout(CLIENT_S_MAX):
                writer.write(self._answer(await reader.readuntil(_END)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._clients.pop(client, None)
            writer.transport.abort()

    def _answer(self, request: bytes) -> bytes:
        asked = _REQUEST.match(request)
        if asked is None:
            return _plain(HTTPStatus.BAD_REQUEST, "Ask with GET.")
        make = self._pages.get(asked[2].partition(b"?")[0].decode())
        if make is None:
            return _plain(HTTPStatus.NOT_FOUND, f"Pages: {', '.join(self._pages)}.")
        try:
            page = make()
        except Exception:
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "The page could not be made.")
        head = _head(HTTPStatus.OK, page)
        return head if asked[1] == b"HEAD" else head + page.body


def _plain(status: HTTPStatus, text: str) -> bytes:
    page = MetricsPage(content_type="text/plain; charset=utf-8", body=f"{text}\n".encode())
    return _head(status, page) + page.body


def _head(status: HTTPStatus, page: MetricsPage) -> bytes:
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "\r\n".join(lines).encode() + _END
