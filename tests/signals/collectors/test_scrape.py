"""An exporter's page is read as Prometheus would read it, and what is no such page is told in a sentence."""

from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from holdfast.record.clock import SystemClock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.scrape import ScrapeCollector

PAGE = """# HELP holdfast_run_step_seconds Last step.
# TYPE holdfast_run_step_seconds gauge
holdfast_run_step_seconds{run="mine"} 0.25
# TYPE steps counter
steps_total 7
odd NaN
"""


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = {"/metrics": (200, PAGE), "/page": (200, "<html>{oops</html>")}.get(
                self.path, (404, "")
            )
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_what_is_shown_is_read_with_its_instance(server: str) -> None:
    with closing(ScrapeCollector(f"http://{server}/metrics", clock=SystemClock())) as collector:
        found = {reading.metric: reading for reading in collector.collect()}
    assert set(found) == {"holdfast_run_step_seconds", "steps_total"}
    step = found["holdfast_run_step_seconds"]
    assert (step.value, step.labels) == (0.25, {"run": "mine", "instance": server})


@pytest.mark.parametrize("path", ["/page", "/nothing"])
def test_what_is_no_such_page_is_told(server: str, path: str) -> None:
    with (
        closing(ScrapeCollector(f"http://{server}{path}", clock=SystemClock())) as collector,
        pytest.raises(Unavailable, match=server),
    ):
        collector.collect()


def test_nobody_there_is_told() -> None:
    with (
        closing(ScrapeCollector("http://127.0.0.1:9/metrics", clock=SystemClock())) as collector,
        pytest.raises(Unavailable, match="does not answer"),
    ):
        collector.collect()
