"""What a hostile server must not be able to do to its clients: hang, fill memory, lead elsewhere."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import hostile_servers as servers
import pytest
from waiting import until

from holdfast.cli.ending import END_S_MAX
from holdfast.diagnose.alertmanager import Alertmanager
from holdfast.diagnose.alerts import Alert
from holdfast.diagnose.sending import POST_S_MAX
from holdfast.diagnose.webhook import Webhook
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.exposition import Exposition
from holdfast.signals.collectors.redfish_service import REQUEST_TIMEOUT_S, RedfishConnection, Service
from holdfast.signals.collectors.scrape import WAIT_S, ScrapeCollector
from holdfast.signals.frame import Reading
from holdfast.signals.http_client import (
    ANONYMOUS,
    Access,
    Failed,
    HttpClient,
    Limits,
    Manners,
    TimedOut,
    TooLong,
)
from holdfast.signals.prometheus import Prometheus
from holdfast.signals.source import SourceError

pytestmark = pytest.mark.slow

BODY_BYTES_MAX = 1 << 20
IMPATIENT = Limits(total_s=0.5, body_bytes_max=BODY_BYTES_MAX)
PATIENT = Limits(total_s=30.0, body_bytes_max=BODY_BYTES_MAX)
"""For attacks that are stopped by something other than time, also on a busy machine."""
SLACK_S = 20.0
"""What a busy machine may add. A client without a bound would take for ever."""
START_WAIT_S = 120.0
WINDOW_NS = (1_700_000_000 * 10**9, 1_700_000_060 * 10**9)
DEEP = b"[" * 200_000
SECRET = "hunter2hunter2"


@contextmanager
def asking(
    url: str, *, limits: Limits = PATIENT, redirects: bool = False, access: Access = ANONYMOUS
) -> Iterator[HttpClient]:
    client = HttpClient(url, what="test", limits=limits, access=access, manners=Manners(redirects=redirects))
    with closing(client):
        yield client


@pytest.mark.parametrize(
    ("act", "failure"),
    [
        (servers.is_silent, TimedOut),
        (servers.drips_its_head, TimedOut),
        (servers.drips_its_body, TimedOut),
        (servers.has_a_head_without_end, Failed),
        (servers.has_a_body_without_end, TooLong),
        (servers.is_a_gzip_bomb, TooLong),
        (servers.says("HTTP/1.1 200 OK\nContent-Encoding: gzip", b"no gzip"), Failed),
        (servers.says("HTTP/1.1 200 OK\nContent-Encoding: zstd", b"(\xb5/\xfd"), Failed),
        (servers.says("HTTP/1.1 200 OK\nContent-Length: 9", b"short"), Failed),
        (servers.says("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"ffffffffffffffff\r\n"), Failed),
        (servers.says("SSH-2.0-OpenSSH_9.7"), Failed),
        (servers.says(""), Failed),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_no_answer_takes_longer_or_fills_more_memory_than_it_may(
    act: servers.Act, failure: type[Failed]
) -> None:
    limits = IMPATIENT if failure is TimedOut else PATIENT
    with servers.hostile(act) as url, asking(url, limits=limits) as client:
        tracemalloc.start()
        try:
            begun_s = time.monotonic()
            with pytest.raises(failure):
                client.ask()
            assert time.monotonic() - begun_s < limits.total_s + SLACK_S
            assert tracemalloc.get_traced_memory()[1] < 8 * BODY_BYTES_MAX
        finally:
            tracemalloc.stop()


def test_a_dripping_server_delays_no_client() -> None:
    alert = Alert(incident="r/s1", labels={"run": "r"}, annotations={}, starts_ns=1, ends_ns=None)
    told: list[str] = []

    def scrape(url: str) -> None:
        late = pytest.raises(Unavailable, match="did not answer in time")
        with closing(ScrapeCollector(url, clock=SystemClock())) as collector, late:
            collector.collect()

    def log_in(url: str) -> None:
        late = pytest.raises(Unavailable, match="did not answer in time")
        with closing(RedfishConnection(Service(url=url, user="ada", session=True))) as connection, late:
            connection.read(lambda walk: walk.get("/redfish/v1"))

    def send(url: str) -> None:
        with Alertmanager(url, tell=told.append) as channel:
            channel.hold([alert])

    def ask(url: str) -> None:
        with Prometheus(url, timeout_s=1.0) as source, pytest.raises(SourceError, match="not answer in time"):
            source.frame("m", WINDOW_NS)

    clients: tuple[Callable[[str], None], ...] = (scrape, log_in, send, ask)
    with servers.hostile(servers.drips_its_body) as url, ThreadPoolExecutor(len(clients)) as pool:
        begun_s = time.monotonic()
        for done in [pool.submit(client, url) for client in clients]:
            done.result()
        assert time.monotonic() - begun_s < max(WAIT_S, REQUEST_TIMEOUT_S, POST_S_MAX) + SLACK_S
    assert told
    assert "did not answer in time" in told[0]


@pytest.mark.parametrize(
    "body", [DEEP, b'{"status":"success","data":' + DEEP, b'{"x":' + DEEP], ids=["whole", "data", "skipped"]
)
def test_json_without_a_bottom_is_no_answer_of_a_prometheus(body: bytes) -> None:
    with (
        servers.hostile(servers.says("HTTP/1.1 200 OK", body)) as url,
        Prometheus(url) as source,
        pytest.raises(SourceError, match="not as a Prometheus does"),
    ):
        source.frame("m", WINDOW_NS)


def test_json_that_is_deep_but_decodable_is_no_resource_of_redfish() -> None:
    body = b'{"Reading":' + b"[" * 500 + b"]" * 500 + b"}"
    with (
        servers.hostile(servers.says("HTTP/1.1 200 OK", body)) as url,
        closing(RedfishConnection(Service(url=url))) as connection,
    ):
        found = connection.read(lambda walk: walk.get("/redfish/v1/c"))
    assert found == {"@odata.id": "/redfish/v1/c", "error": "no JSON object"}


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b/",
        f"http://{'a' * 64}.example/",
        "http://h:0/",
        "http://h:65536/",
        "http://a b/",
        "file:///etc/passwd",
    ],
)
def test_a_url_that_nothing_can_be_sent_to_is_refused_before_any_thread_begins(url: str) -> None:
    threads = threading.active_count()
    for make in (Webhook, Alertmanager, Prometheus):
        with pytest.raises(InputError, match=r"^Invalid .* URL(: '.*')?\.$"):
            make(url)
    with pytest.raises(InputError, match="Invalid --scrape URL"):
        ScrapeCollector(url, clock=SystemClock())
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("prometheus:9090", "prometheus:9090"),
        ("prometheus", "prometheus"),
        ("", ""),
        ("http://h:0/", "http://h:0…"),
        (f"h:9090/{SECRET}", "h:9090…"),
        (f"h:9090?token={SECRET}", "h:9090…"),
        (f"ftp://h\\{SECRET}", "ftp://h…"),
        (f"ada:{SECRET}@h:9090", "…"),
        (f"http://ada:{SECRET}@h:0/", "http://…"),
        (f"http://ada:x/{SECRET}@h:0", "http://…"),
        (f"h:0?mail=a@{SECRET}", "…"),
        (f"ada:{SECRET}@http://h:9090", "…"),
        (f"ada:{SECRET}@h:9090/to?go=http://x", "…"),
        (f"h:9090/q?token={SECRET}&to=http://x", "h:9090…"),
        (f"http://ada:{SECRET}%40h:x", "http://…"),
    ],
)
def test_a_bad_url_is_quoted_without_what_may_be_a_secret(url: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        Prometheus(url)
    assert refused.value.sentence == f"Invalid Prometheus URL: {told!r}."
    assert refused.value.hint == "Write http://HOST:PORT or https://HOST."
    with pytest.raises(InputError, match=r"^Invalid webhook URL\.$"):
        Webhook(url)  # a file with the secret alone


def test_a_redirect_leads_neither_to_another_host_nor_in_circles() -> None:
    heads: list[bytes] = []
    with servers.hostile(servers.says("HTTP/1.1 200 OK"), heads=heads) as other:
        elsewhere = servers.redirects(other.replace("127.0.0.1", "localhost"))
        for act, reason in ((elsewhere, "another host"), (servers.redirects("/again"), "too often")):
            with (
                servers.hostile(act) as url,
                asking(url, redirects=True) as client,
                pytest.raises(Failed, match=reason),
            ):
                client.ask()
    assert heads == []


def test_a_redirect_to_another_port_does_not_get_the_password() -> None:
    heads: list[bytes] = []
    secret = Access(user="ada", password=SECRET)
    with (
        servers.hostile(servers.says("HTTP/1.1 200 OK"), heads=heads) as other,
        servers.hostile(servers.redirects(other)) as url,
        asking(url, redirects=True, access=secret) as client,
    ):
        assert client.ask().status == 200
    assert b"authorization" not in heads[0].lower()


def test_an_untrusted_certificate_gets_no_password() -> None:
    heads: list[bytes] = []
    with (
        servers.hostile(servers.says("HTTP/1.1 200 OK"), tls=True, heads=heads) as url,
        asking(url, access=Access(bearer=SECRET)) as client,
        pytest.raises(Failed, match="not trusted"),
    ):
        client.ask()
    assert heads == []


def test_what_an_exporter_showed_long_ago_is_not_served_as_up() -> None:
    patient, impatient = Exposition(fresh_s=START_WAIT_S), Exposition(fresh_s=0.1)
    for exposition in (patient, impatient):
        exposition.put("scrape", (Reading(metric="m", labels={}, at_ns=1, value=1.0),))
    until(lambda: not _is_up(impatient))
    assert [metric.name for metric in impatient.collect()] == ["holdfast_collector_up"]
    assert _is_up(patient)


def _is_up(exposition: Exposition) -> bool:
    (up,) = (metric for metric in exposition.collect() if metric.name == "holdfast_collector_up")
    return bool(up.samples[0].value)


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        (("watch", "--every", "200ms", "--prometheus"), 0),
        (("collect", "--every", "200ms", "--redfish-session", "--redfish"), 130),
    ],
    ids=["watch", "collect"],
)
def test_sigterm_ends_a_verb_whose_server_drips(tmp_path: Path, verb: tuple[str, ...], code: int) -> None:
    asked = threading.Event()

    def drip(connection: socket.socket, over: threading.Event) -> None:
        asked.set()
        servers.drips_its_body(connection, over)

    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "HOLDFAST_REDFISH_USER": "ada"}
    with servers.hostile(drip) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *verb, url],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert asked.wait(START_WAIT_S)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=END_S_MAX + SLACK_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == code, err
    assert "Traceback" not in err
