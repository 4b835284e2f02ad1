"""Prometheus as a source: what was really scraped, windows in parts, and what is said when it goes wrong."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from waiting import free_port

from holdfast.record.errors import InputError
from holdfast.signals.frame import Reading, per_second
from holdfast.signals.http_client import Access
from holdfast.signals.opening import SignalPlace, opened
from holdfast.signals.prometheus import Prometheus
from holdfast.signals.quality import inspect
from holdfast.signals.source import SourceError

METRIC = "DCGM_FI_DEV_GPU_TEMP"
SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("prometheus", "victoria")]
SECOND_NS = 10**9
STEP_NS = 10 * SECOND_NS
WINDOW_NS = (1_700_000_000 * SECOND_NS, 1_700_000_060 * SECOND_NS)
EMPTY = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


# -- live ---------------------------------------------------------------------------------------------


def test_a_real_node_exporter_is_read(url: str, lived: tuple[int, int, int]) -> None:
    with Prometheus(url, step_s=1) as source:
        frame = source.frame("node_cpu_seconds_total", (lived[0], lived[2]))
        assert frame is not None
        assert frame.kind == "counter"
        assert set(frame.subjects) == {"127.0.0.1"}
        assert {labels["mode"] for labels in frame.labels} >= {"idle", "user"}
        assert {flaw.kind for flaw in inspect(frame).flaws} <= {"gaps"}  # a busy server misses scrapes
        growth = per_second(frame).values
        assert 0 <= np.nanmin(growth) <= np.nanmax(growth) < 2  # seconds of one processor, by the second
        assert "node_load1" in source.metrics()


def test_a_gap_stays_a_gap(url: str, lived: tuple[int, int, int]) -> None:
    begin_ns, dark_ns, end_ns = lived
    with Prometheus(url, step_s=1) as source:
        frame = source.frame("made_level", (begin_ns, end_ns))
    assert frame is not None
    dark = (frame.times_ns > dark_ns + SECOND_NS) & (frame.times_ns < dark_ns + 2 * SECOND_NS)
    assert dark.sum() == 1
    assert np.isnan(frame.values[dark]).all()
    assert np.isfinite(frame.values).sum() >= 5


def test_a_restart_is_a_reset_and_no_fall(url: str, lived: tuple[int, int, int]) -> None:
    with Prometheus(url, step_s=1) as source:
        frame = source.frame("made_steps_total", (lived[0], lived[2]))
    assert frame is not None
    resets = [flaw for flaw in inspect(frame).flaws if flaw.kind == "reset"]
    assert len(resets) == 1, frame.values
    growth = per_second(frame).values
    assert np.nanmin(growth) >= 0
    assert np.nanmedian(growth) == pytest.approx(48, rel=0.2)


def test_query_range_would_fill_a_gap(prometheus: str, history: tuple[Reading, ...]) -> None:
    """Why raw samples are asked for: for five minutes Prometheus repeats a value that is no more."""
    begin_ns = min(reading.at_ns for reading in history) // STEP_NS * STEP_NS
    first_s, last_s = begin_ns // SECOND_NS + 210, begin_ns // SECOND_NS + 250
    form = {"query": f'{METRIC}{{hostname="n0",gpu="0"}}', "start": first_s, "end": last_s, "step": 10}
    answer = httpx.post(f"{prometheus}/api/v1/query_range", data=form).json()
    assert len(answer["data"]["result"][0]["values"]) == 5
    with Prometheus(prometheus, where={"hostname": "n0", "gpu": "0"}) as source:
        assert source.frame(METRIC, (first_s * SECOND_NS, last_s * SECOND_NS)) is None


def test_a_window_too_large_for_the_server_is_asked_for_in_parts(
    prometheus: str, history: tuple[Reading, ...]
) -> None:
    """All of the history is more than this server gives at once."""
    begin_ns = min(reading.at_ns for reading in history) // STEP_NS * STEP_NS
    form = {"query": f"{METRIC}[2h]", "time": (begin_ns // SECOND_NS) + 3_600}
    assert "too many samples" in httpx.post(f"{prometheus}/api/v1/query", data=form).json()["error"]
    with Prometheus(prometheus) as source:
        frame = source.frame(METRIC, (begin_ns, begin_ns + 3_600 * SECOND_NS))
    assert frame is not None
    assert np.isfinite(frame.values).sum() == sum(reading.metric == METRIC for reading in history)


def test_labels_choose_a_cluster(url: str, history: tuple[Reading, ...]) -> None:
    begin_ns = min(reading.at_ns for reading in history)
    with Prometheus(url, where={"hostname": "n2"}) as source:
        frame = source.frame(METRIC, (begin_ns, begin_ns + 600 * SECOND_NS))
        assert frame is not None
        assert sorted(frame.subjects) == ["n2.0", "n2.1"]
        assert source.metrics() == (METRIC, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")


def test_a_name_cannot_break_out_of_its_query(url: str) -> None:
    with Prometheus(url) as source:
        assert source.frame('x"} or {__name__=~".+', WINDOW_NS) is None


# -- what goes wrong ----------------------------------------------------------------------------------

Answer = tuple[int, bytes]


def _matrix(values: str) -> bytes:
    """An answer with one series that has these values."""
    return EMPTY.replace(
        b"[]", f'[{{"metric": {{"hostname": "n1", "gpu": "0"}}, "values": {values}}}]'.encode()
    )


Seen = list[tuple[str, dict[str, str]]]


@contextmanager
def answering(answer: Callable[[int], Answer]) -> Iterator[tuple[str, Seen]]:
    """A server that answers the n-th request so; its URL, and what it was asked."""
    seen: Seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            seen.append((self.path, dict(self.headers)))
            status, body = answer(len(seen))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not needed."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "sentence", "requests"),
    [
        ((200, b"<html>Grafana</html>"), "answers, but not as a Prometheus does", 1),
        ((200, b'{"status":"success","data":[1]}'), "answers, but not as a Prometheus does", 1),
        ((401, b"who?"), r"refuses access \(401\)", 1),
        ((400, b'{"status":"error","error":"parse error: x."}'), "answered 400: parse error: x.$", 1),
        ((404, b'{"status":"error","error":""}'), "answered 404: Not Found", 1),
        ((503, b"<h1>tired</h1>"), "answered 503: Service Unavailable.$", 3),
        ((501, b"<!DOCTYPE HTML><p>Unsupported"), "answers, but not as a Prometheus does", 1),
        ((200, _matrix('[[1, "abc"]]')), "not as a Prometheus does", 1),
        ((200, _matrix("[[1]]")), "not as a Prometheus does", 1),
        (
            (422, b'{"status":"error","error":"too many samples"}'),
            "refuses to return so much: too many samples",
            7,
        ),
    ],
)
def test_what_goes_wrong_is_said_in_a_sentence(answer: Answer, sentence: str, requests: int) -> None:
    with (
        answering(lambda _: answer) as (url, seen),
        Prometheus(url) as source,
        pytest.raises(SourceError, match=sentence),
    ):
        source.frame(METRIC, WINDOW_NS)
    assert len(seen) <= requests


def test_a_server_that_recovers_is_asked_again() -> None:
    with answering(lambda n: (502, b"") if n < 3 else (200, EMPTY)) as (url, seen), Prometheus(url) as source:
        assert source.frame(METRIC, WINDOW_NS) is None
    assert len(seen) == 3


def test_a_server_that_is_not_there_is_said_to_be() -> None:
    with (
        Prometheus(f"http://127.0.0.1:{free_port()}") as source,
        pytest.raises(SourceError, match=r"cannot be reached: .*refused"),
    ):
        source.metrics()


def test_a_server_that_is_too_slow_is_said_to_be() -> None:
    waiting = threading.Event()

    def never(_: int) -> Answer:
        waiting.wait(2)
        return 200, EMPTY

    with answering(never) as (url, _), Prometheus(url, timeout_s=0.05) as source:
        with pytest.raises(SourceError, match="did not answer in time"):
            source.frame(METRIC, WINDOW_NS)
        waiting.set()


@pytest.mark.parametrize(
    ("access", "header", "value"),
    [
        (Access(bearer="abc"), "Authorization", "Bearer abc"),
        (Access(user="me", password="secret"), "Authorization", "Basic bWU6c2VjcmV0"),
        (Access(headers={"X-Scope-OrgID": "team"}), "X-Scope-OrgID", "team"),
    ],
)
def test_it_is_told_who_asks(access: Access, header: str, value: str) -> None:
    with answering(lambda _: (200, EMPTY)) as (url, seen), Prometheus(url + "/", access=access) as source:
        source.frame(METRIC, WINDOW_NS)
    path, headers = seen[0]
    assert path == "/api/v1/query"
    assert headers[header] == value


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(InputError, match="Invalid Prometheus URL"):
        Prometheus("prometheus:9090")


def test_a_server_that_accepts_and_is_silent_is_given_up_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        place = SignalPlace(url=url, directory=Path(), is_named=False, step_s=10.0)
        sentence = f"^{url} cannot be reached: it was silent for 5 s.$"
        with pytest.raises(SourceError, match=sentence), opened(place, lambda sentence, hint: None):
            pass
        said: list[str] = []
        with opened(place, lambda sentence, hint: said.append(sentence), is_again=True):
            assert len(said) == 1  # one that looks again and again does not give up, but says so as soon
        assert re.match(sentence, said[0])
