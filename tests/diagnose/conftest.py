"""Incidents to tell of, a receiver of webhooks, and the servers that alerts and rules are meant for."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import daemon
from waiting import WAIT_S, answers, free_port, until

from holdfast.diagnose.incident import Alternative, Cause, Evidence, Incident, Price

BEGAN_NS = 1_772_442_000 * 10**9

PRICE = Price(
    lost_gpu_hours=12.5,
    usd=49.9,
    gpu_hours_per_hour=130.0,
    usd_per_hour=518.7,
    lost_run_s=88.0,
    day_share_per_day=0.25,
    assumed=True,
)
CAUSE = Cause(
    subject="cdu-0000",
    kind="loop",
    mechanism="coolant-flow",
    title="coolant flow is lost, and its GPUs throttle",
    domain="cooling",
    owner="facilities",
)
ALTERNATIVE = Alternative(
    cause=msgspec.structs.replace(CAUSE, subject="water-0", kind="circuit", mechanism="coolant-supply"),
    confidence=0.04,
    lost_because="supply temperature has not changed",
)
EVIDENCE = (
    Evidence(
        text="flow is 88 L/min, rated 210",
        weight=1.8,
        metric="densewatch_cdu_coolant_flow_lpm",
        subjects=("cdu-0000",),
        since_ns=BEGAN_NS,
    ),
    Evidence(
        text="n00031 on the same loop is not late",
        weight=-0.3,
        metric="holdfast_member_compute_seconds",
        subjects=("n00031",),
    ),
)
INCIDENT = Incident(
    name="pretrain/s1",
    run="pretrain",
    verdict="cause",
    cause=CAUSE,
    domain="cooling",
    owner="facilities",
    seam="facilities-ml",
    path=("cdu-0000", "rack-0000", "n00000", "pretrain"),
    confidence=0.93,
    quality=0.98,
    flaws=("densewatch_cdu_heat_removed_kw of cdu-0001 is in watts",),
    began_ns=BEGAN_NS,
    noticed_ns=BEGAN_NS + 40 * 10**9,
    ended_ns=None,
    what="steps take longer; the members of a few racks compute longer",
    slowdown=1.33,
    affected=tuple(f"n{number:05}" for number in range(31)),
    evidence=EVIDENCE,
    alternatives=(ALTERNATIVE,),
    decides="the loop's flow against its rated flow while its pump is asked for full speed",
    action="Call facilities: start the standby pump of cdu-0000.",
    runbook="coolant-flow",
    cost=PRICE,
)


@pytest.fixture(scope="session")
def incident() -> Callable[..., Incident]:
    """Makes an incident like any other, with these fields; some of them are its cause's."""

    def make(**fields: Any) -> Incident:
        own = {name: fields.pop(name) for name in ("subject", "kind", "mechanism") if name in fields}
        if "mechanism" in own:
            fields.setdefault("runbook", own["mechanism"])
        return msgspec.structs.replace(INCIDENT, cause=msgspec.structs.replace(CAUSE, **own), **fields)

    return make


class Receiver:
    """A webhook's receiver: keeps what is posted, and answers with `answers`, the last of them for ever."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.answers = [200]
        self._arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = receiver._take(body)
                self.send_response(answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _take(self, body: bytes) -> int:
        with self._arrived:
            answer = self.answers[0]
            if len(self.answers) > 1:
                self.answers.pop(0)
            if answer == 200:
                self.bodies.append(json.loads(body))
                self._arrived.notify_all()
            return answer

    def wait(self, is_enough: Callable[[list[Any]], bool]) -> list[Any]:
        """What has been posted, as soon as that is enough."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: is_enough(self.bodies), WAIT_S), self.bodies
            return list(self.bodies)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="session")
def promtool(need: Callable[..., None]) -> str:
    """The command `promtool`; the package that has it has Prometheus as well."""
    need("prometheus")
    return "promtool"


@pytest.fixture(scope="session")
def prometheus(promtool: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that has nothing and scrapes nothing: it parses what it is asked."""
    home = tmp_path_factory.mktemp("prometheus")
    settings = home / "prometheus.yml"
    settings.write_text("global: {}\n", encoding="utf-8")
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={settings}",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with daemon(command, home):
        await_ready(f"http://127.0.0.1:{port}", home)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def alertmanager(need: Callable[..., None]) -> Callable[[Path, str, int], AbstractContextManager[str]]:
    """Runs an Alertmanager in this directory that tells this receiver, at this port; gives its URL."""
    need("prometheus-alertmanager")

    @contextmanager
    def serve(home: Path, receiver_url: str, port: int) -> Iterator[str]:
        settings = home / "alertmanager.yml"
        settings.write_text(_ALERTMANAGER.format(url=receiver_url), encoding="utf-8")
        command = [
            "prometheus-alertmanager",
            f"--config.file={settings}",
            f"--storage.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ]
        with daemon(command, home):
            await_ready(f"http://127.0.0.1:{port}", home)
            yield f"http://127.0.0.1:{port}"

    return serve


_ALERTMANAGER = """\
route:
  receiver: test
  group_by: [incident]
  group_wait: 200ms
  group_interval: 500ms
  repeat_interval: 1h
receivers:
  - name: test
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


@pytest.fixture(name="free_port")
def give_free_port() -> int:
    return free_port()


def await_ready(url: str, home: Path) -> None:
    until(
        lambda: answers(f"{url}/-/ready"),
        lambda: "\n".join(path.read_text(encoding="utf-8") for path in home.glob("*.log")),
    )
