"""A store whose server restarts: its readers continue, and nothing that was recorded is lost."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Protocol

import pytest
from waiting import WAIT_S

from holdfast.detect.kernel_faults import PENDING_MAX, FaultRecord, Names
from holdfast.record.errors import StoreError
from holdfast.record.events import RunStarted
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.store import Store
from holdfast.record.stores import open_store
from holdfast.signals.collectors.kernel_log import KernelEvent

pytestmark = pytest.mark.slow

EMPTY = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
UNREACHABLE = "postgresql://127.0.0.1:9/none"
"""A store without a server."""
NO_SERIES = b'{"status":"success","data":[]}'


class Server(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


class Lines:
    """What a process prints on one of its streams, line by line."""

    def __init__(self, stream: Any) -> None:
        self._lines: Queue[str] = Queue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def await_line(self, part: str) -> str:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                self.seen.append(self._lines.get(timeout=max(0.0, deadline_s - time.monotonic())))
            except Empty:
                pytest.fail(f"no line with {part!r} in {self.seen}")
            if part in self.seen[-1]:
                return self.seen[-1]

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._lines.put(line)


@contextmanager
def verb(tmp_path: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def prometheus() -> Iterator[tuple[str, "Queue[str]"]]:
    """A server that has no data, and reports each request."""
    asked: Queue[str] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            asked.put(self.path)
            body = EMPTY if self.path.endswith("/query") else NO_SERIES
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def started(number: int) -> RunStarted:
    return RunStarted(id=f"s{number}", occurred_ns=number, run="r")


def ids(store: Store) -> list[str]:
    return [event.id for event in store.select()]


def test_an_open_store_is_written_again_after_its_server_restarted(
    postgres_process: Server, postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    with open_store(postgres_database(), tmp_path) as store:
        store.ingest([started(1)], marks={"m": 1})
        with stopped(postgres_process):
            with pytest.raises(StoreError, match="cannot be used"):
                store.ingest([started(2)])
            with pytest.raises(StoreError, match="cannot be used"):
                store.marks()
        found = store.ingest([started(1), started(2)], marks={"m": 2})
        assert (found.new, found.known) == (1, 1)
        assert ids(store) == ["s1", "s2"]
        assert store.marks() == {"m": 2}


def test_watch_looks_while_its_store_is_down_and_writes_the_backlog(
    postgres_process: Server, postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    url = postgres_database()
    with (
        prometheus() as (server, asked),
        verb(tmp_path, "watch", "r", "--every", "200ms", "--prometheus", server, "--store", url) as process,
    ):
        told = Lines(process.stderr)
        told.await_line("Nothing can be said")  # the first look
        with stopped(postgres_process):
            with Recorder(tmp_path / JOURNAL_DIRECTORY) as recorder:
                recorder.record(RunStarted, run="r", identity="while-down")
            told.await_line("The watch continues")
            while not asked.empty():
                asked.get()
            for _ in range(4):  # more than the requests of a look that is under way
                asked.get(timeout=WAIT_S)
            assert process.poll() is None
        told.await_line("can be read and written again")
        with open_store(url, tmp_path) as store:
            assert len(ids(store)) == 1


def test_watch_begins_though_its_store_is_down(
    postgres_process: Server, postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    url = postgres_database()
    words = ("watch", "r", "--every", "200ms", "--store", url)
    with prometheus() as (server, asked), ExitStack() as stack:
        with stopped(postgres_process):
            process = stack.enter_context(verb(tmp_path, *words, "--prometheus", server))
            told = Lines(process.stderr)
            told.await_line("The watch continues without the record; it will retry the store.")
            told.await_line("Nothing can be said")  # a look
            with Recorder(tmp_path / JOURNAL_DIRECTORY) as recorder:
                recorder.record(RunStarted, run="r", identity="while-down")
            for _ in range(8):
                asked.get(timeout=WAIT_S)
            assert process.poll() is None
        told.await_line("can be read and written again")
        with open_store(url, tmp_path) as store:
            assert len(ids(store)) == 1
    assert sum("The watch continues" in line for line in told.seen) == 1


def test_a_single_look_needs_its_store(tmp_path: Path) -> None:
    with (
        prometheus() as (server, _),
        verb(tmp_path, "watch", "--once", "--prometheus", server, "--store", UNREACHABLE) as process,
    ):
        Lines(process.stderr).await_line("cannot be used")
        assert process.wait(WAIT_S) == 2


def test_events_are_followed_through_a_restart(
    postgres_process: Server, postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    url = postgres_database()
    with open_store(url, tmp_path) as store:
        store.ingest([started(1)])
    with verb(tmp_path, "events", "r", "--follow", "--json", "--store", url) as process:
        lines, told = Lines(process.stdout), Lines(process.stderr)
        lines.await_line('"s1"')
        with stopped(postgres_process):
            told.await_line("It is tried again")
        told.await_line("can be used again")
        with open_store(url, tmp_path) as store:
            store.ingest([started(2)])
        lines.await_line('"s2"')
    assert [json.loads(line)["id"] for line in lines.seen] == ["s1", "s2"]


def test_faults_that_had_to_be_let_go_are_counted(tmp_path: Path) -> None:
    faults = [
        KernelEvent(source="xid", code=79, device="0000:9b:00", host="n1", at_ns=number, message="x")
        for number in range(PENDING_MAX + 3)
    ]
    record = FaultRecord(UNREACHABLE, tmp_path, source="nvidia-catalogue-2025-10-29")
    with pytest.raises(StoreError):
        record.add(faults, Names(gpus={}, ports={}), now_ns=1)
    assert record.dropped == 3
