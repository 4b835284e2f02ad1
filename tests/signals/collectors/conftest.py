"""Sources that collectors read in tests: the mock-up CDU, any HTTP service, and a GPU's recorded answers."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

ROOT = Path(__file__).parents[3]
POLL_INTERVAL_S = 0.01
DATA = ROOT / "tests" / "data"
pynvml: Any = import_module("pynvml")  # has no types


@pytest.fixture
def data() -> Path:
    return DATA


@contextmanager
def _running_cdu(*arguments: str) -> Iterator[str]:
    command = [sys.executable, str(ROOT / "testbed" / "cdu.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def cdu_service() -> Iterator[str]:
    """The URL of a service with two units that needs no login."""
    with _running_cdu("--cdus=2") as url:
        yield url


@pytest.fixture
def set_cdu(cdu_service: str) -> Iterator[Callable[..., None]]:
    """Changes what the first unit shows; everything is as before after the test."""
    before = httpx.get(f"{cdu_service}/state").json()["cdu-0000"]

    def change(**quantities: Any) -> None:
        httpx.put(f"{cdu_service}/state", json={"cdu": "cdu-0000", **quantities}).raise_for_status()

    yield change
    change(**before)


@pytest.fixture(scope="session")
def guarded_cdu_service() -> Iterator[str]:
    """The same, for the user `ada` with the password `tide`."""
    with _running_cdu("--user=ada", "--password=tide") as url:
        yield url


Answer = tuple[int, bytes]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], Answer]], str]]:
    """Starts a service that answers each path as a function says; gives its URL."""
    with ExitStack() as stack:

        def start(answer: Callable[[str], Answer]) -> str:
            server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(answer))
            stack.callback(server.server_close)
            thread = threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL_S,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield start


def _handler(answer: Callable[[str], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002
            """Requests are no news."""

    return Handler


UNRECORDED = ("PowerManagementLimit", "EnforcedPowerLimit", "FanSpeed")
"""What was not asked of that H200; it is refused, as by a GPU that does not know."""


class RecordedNvml:
    """Answers as a real H200 did, and refuses any call that was not made then.

    Constants and errors are those of the real binding, so a name that it does not have fails here as well.
    """

    def __init__(self, path: Path) -> None:
        self.begun = 0
        self.refused = {f"nvmlDeviceGet{name}" for name in UNRECORDED}
        self._answers = {
            _key(call["call"]): _as_nvml(call["answer"]) for call in msgspec.json.decode(path.read_bytes())
        }

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if isinstance(real, type) or not callable(real):
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            if name in self.refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self._answers[_key([name, [_plain(one) for one in arguments], options])]

        return call

    def nvmlInit(self) -> None:  # noqa: N802
        if "nvmlInit" in self.refused:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.begun += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.begun -= 1


class _Handle:
    """What stands for a GPU in calls."""


_HANDLE = _Handle()


def _key(call: Any) -> bytes:
    return msgspec.json.encode(call)


def _plain(argument: Any) -> Any:
    return {"handle": True} if isinstance(argument, _Handle) else argument


def _as_nvml(answer: Any) -> Any:
    match answer:
        case {"handle": True}:
            return _HANDLE
        case {"struct": fields}:
            return SimpleNamespace(**{name: _as_nvml(value) for name, value in fields.items()})
        case dict():
            return SimpleNamespace(**answer)
        case list():
            return [_as_nvml(one) for one in answer]
    return answer


@pytest.fixture
def nvml() -> RecordedNvml:
    return RecordedNvml(DATA / "nvml" / "h200-load.json")
