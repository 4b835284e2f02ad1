"""What strangers must not be able to do to a metrics page: keep others out, take threads, memory or
descriptors.
"""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hostile_servers as servers
import pytest
from waiting import WAIT_S, until

from holdfast.run.pages import BACKLOG, CLIENTS_MAX, CLOSE_S_MAX, REQUEST_BYTES_MAX, MetricsPage, serving

pytestmark = pytest.mark.slow

IDLE_CLIENTS = 400
BODY = b"holdfast_up 1\n"


@pytest.fixture
def port() -> Iterator[int]:
    page = MetricsPage(content_type="text/plain", body=BODY)
    with serving("127.0.0.1", 0, {"/metrics": lambda: page}) as port:
        yield port


@pytest.fixture
def strangers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def came(strangers: ExitStack, port: int, count: int, says: bytes = b"") -> list[socket.socket]:
    """This many connections, each of which sends this and then waits."""
    found = []
    for _ in range(count):
        connection = strangers.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
        connection.sendall(says)
        found.append(connection)
    return found


def scraped(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        body: bytes = answer.read()
        return body


def answer(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize("says", [b"", b"GET /metrics HTTP/1.1\r\nX: "], ids=["silent", "half a request"])
def test_slow_clients_do_not_keep_others_out(port: int, strangers: ExitStack, says: bytes) -> None:
    came(strangers, port, 2 * CLIENTS_MAX, says)
    assert scraped(port) == BODY


def test_idle_clients_take_neither_threads_nor_more_descriptors_than_there_are_places(
    port: int, strangers: ExitStack
) -> None:
    threads = threading.active_count()
    connections = came(strangers, port, IDLE_CLIENTS)
    assert scraped(port) == BODY
    assert threading.active_count() == threads
    held = len(list(Path("/proc/self/fd").iterdir())) - IDLE_CLIENTS
    assert held < CLIENTS_MAX + 2 * BACKLOG
    assert connections[0].recv(1) == b""  # the first one was dropped


def test_a_client_that_does_not_listen_is_left_and_costs_one_page(strangers: ExitStack) -> None:
    made = []

    def make() -> MetricsPage:
        made.append(time.monotonic())
        return MetricsPage(content_type="text/plain", body=bytes(32 << 20))

    with serving(
        "127.0.0.1", 0, {"/metrics": make, "/small": lambda: MetricsPage(content_type="", body=BODY)}
    ) as port:
        came(strangers, port, 1, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert answer(port, b"GET /small HTTP/1.1\r\n\r\n").endswith(BODY)
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < CLOSE_S_MAX  # closing does not wait for it
    assert len(made) <= 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"HEAD /metrics?x HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", b"400"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 4294967296\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 2 * REQUEST_BYTES_MAX, None),
    ],
    ids=["get", "head", "up", "proxy", "post", "tls", "old", "endless"],
)
def test_requests_are_answered_or_refused_and_repeat_nothing(
    port: int, request_: bytes, status: bytes | None
) -> None:
    try:
        head = answer(port, request_)
    except ConnectionResetError:
        head = b""
    assert (head.split(b" ")[1] if head else None) == status
    assert b"passwd" not in head
    assert scraped(port) == BODY


def test_collect_serves_through_a_crowd_of_silent_clients(tmp_path: Path, strangers: ExitStack) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output, servers.hostile(servers.says("HTTP/1.1 200 OK", b"m 1\n")) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "collect", "--scrape", url, "--listen", "127.0.0.1:0"],
            env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
            stderr=output,
        )
        try:
            port = _port(log, process)
            came(strangers, port, 300)
            assert b"holdfast_collector_up" in scraped(port)
            tasks = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
        finally:
            process.kill()
            process.wait()
    assert tasks < 30
    assert "Traceback" not in log.read_text(encoding="utf-8")


def _port(log: Path, process: "subprocess.Popen[bytes]") -> int:
    until(lambda: "Serving the readings at" in log.read_text(encoding="utf-8") or process.poll() is not None)
    return int(log.read_text(encoding="utf-8").partition("127.0.0.1:")[2].partition("/")[0])
