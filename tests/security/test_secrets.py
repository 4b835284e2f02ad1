"""Secrets in URLs and credentials: where they must not appear, and how to pass them without exposing them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import hostile_servers as servers
import pytest
from waiting import WAIT_S

from holdfast.diagnose.alertmanager import Alertmanager
from holdfast.diagnose.alerts import Alert
from holdfast.diagnose.sending import client, post
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.exposition import Exposition
from holdfast.signals.collectors.redfish_access import redfish_service
from holdfast.signals.collectors.redfish_service import RedfishConnection, Service
from holdfast.signals.collectors.scrape import ScrapeCollector
from holdfast.signals.credentials import access, spelled_out
from holdfast.signals.prometheus import Prometheus
from holdfast.signals.source import SourceError

pytestmark = pytest.mark.slow

SECRET = "hunter2"
WINDOW_NS = (0, 60 * 10**9)


def secretive(url: str) -> str:
    """The URL with a secret in every possible place."""
    return url.replace("://", f"://{SECRET}-user:{SECRET}-password@") + f"/{SECRET}-path?key={SECRET}-query"


def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def scraping(url: str) -> str:
    with pytest.raises(Unavailable) as failed:
        ScrapeCollector(url, clock=SystemClock()).collect()
    return failed.value.told


def asking(url: str) -> str:
    with (
        Prometheus(url.replace(f"/{SECRET}-path", "/prefix")) as source,
        pytest.raises(SourceError) as failed,
    ):
        source.frame("m", WINDOW_NS)
    return failed.value.told


def alerting(url: str) -> str:
    told: list[str] = []
    with Alertmanager(url, tell=told.append) as channel:
        channel.hold([Alert(incident="r/s1", labels={}, annotations={}, starts_ns=1, ends_ns=None)])
    return told[0]


def posting(url: str) -> str:
    return post(client(url, what="webhook"), b"{}") or ""


def reading(url: str) -> str:
    connection = RedfishConnection(redfish_service(url))
    with closing(connection), pytest.raises(Unavailable) as failed:
        connection.read(lambda walk: walk.get("/redfish/v1"))
    return failed.value.told


CLIENTS: list[Callable[[str], str]] = [scraping, asking, alerting, posting, reading]


@pytest.mark.parametrize("told", CLIENTS)
def test_no_message_repeats_what_may_be_secret_in_a_url(told: Callable[[str], str]) -> None:
    assert SECRET not in told(secretive(closed()))


def test_no_message_repeats_a_secret_that_a_server_sends_back() -> None:
    page = servers.says("HTTP/1.1 404 Not Found", f"Cannot POST /{SECRET}-path".encode())
    with servers.hostile(page) as url:
        assert posting(secretive(url)) == "HTTP 404"


@pytest.mark.parametrize("make", [Prometheus, Alertmanager, redfish_service])
def test_a_bad_url_is_refused_without_being_repeated(make: Callable[[str], Any]) -> None:
    with pytest.raises(InputError) as refused:
        make(f"htp://u:{SECRET}@host/{SECRET}")
    assert SECRET not in refused.value.told


def test_no_label_of_the_metrics_page_has_a_secret() -> None:
    exposition = Exposition(fresh_s=60)
    collector = ScrapeCollector(secretive("http://127.0.0.1:9"), clock=SystemClock())
    exposition.put(collector.name, None)
    (up,) = exposition.collect()
    assert up.samples[0].labels == {"collector": "scrape http://127.0.0.1:9"}


def test_a_verb_prints_no_secret_and_takes_its_url_from_a_file(tmp_path: Path) -> None:
    heads: list[bytes] = []
    with servers.hostile(servers.says("HTTP/1.1 503 Sorry"), heads=heads) as url:
        (tmp_path / "url").write_text(f"{secretive(url)}\n", encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "collect", "--once", "--json", f"--scrape=@{tmp_path}/url"],
            env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert done.returncode == 2
    assert json.loads(done.stdout)["problems"] == [f"{url} answers 503."]
    assert SECRET not in done.stdout + done.stderr
    assert f"GET /{SECRET}-path?key={SECRET}-query".encode() in heads[0]
    assert b"Basic aHVudGVyMi11c2VyOmh1bnRlcjItcGFzc3dvcmQ=" in heads[0]


@pytest.mark.parametrize("server", ["PROMETHEUS", "ALERTMANAGER", "WEBHOOK", "SCRAPE"])
def test_credentials_come_from_the_environment_or_a_file(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{SECRET} {SECRET}\n", encoding="utf-8")
    monkeypatch.setenv(f"HOLDFAST_{server}_USER", "ada")
    monkeypatch.setenv(f"HOLDFAST_{server}_TOKEN_FILE", str(tmp_path / "token"))
    found = access(server)
    assert (found.user, found.bearer) == ("ada", f"{SECRET} {SECRET}")


@pytest.mark.parametrize("text", ["", "two\nlines", "\x00"])
def test_a_file_that_holds_no_secret_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(text, encoding="utf-8")
    monkeypatch.setenv("HOLDFAST_SCRAPE_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(InputError, match=r"^\$HOLDFAST_SCRAPE_TOKEN_FILE: .* a single line"):
        access("SCRAPE")


def test_a_fifo_is_refused_as_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    monkeypatch.setenv("HOLDFAST_SCRAPE_TOKEN_FILE", str(pipe))
    with pytest.raises(InputError, match=r"\$HOLDFAST_SCRAPE_TOKEN_FILE: .* is not a regular file"):
        access("SCRAPE")
    with pytest.raises(InputError, match=r"--webhook: .* is not a regular file"):
        spelled_out(f"@{pipe}", what="--webhook")


def test_a_redirect_does_not_take_a_password_of_redfish_elsewhere() -> None:
    heads: list[bytes] = []
    with (
        servers.hostile(servers.says("HTTP/1.1 200 OK"), heads=heads) as elsewhere,
        servers.hostile(servers.redirects(f"{elsewhere}/redfish/v1/x")) as url,
        closing(RedfishConnection(Service(url=url, user="ada", password=SECRET))) as connection,
    ):
        found = connection.read(lambda walk: walk.get("/redfish/v1/x"))
    assert found == {"@odata.id": "/redfish/v1/x", "error": "HTTP 302"}
    assert heads == []
