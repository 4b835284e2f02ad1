"""`holdfast watch`: a loop that does not die, what it tells and to whom, the command from end to end."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from quantity import sampled
from waiting import WAIT_S

from holdfast.cli.metrics_page import serving_metrics
from holdfast.diagnose.assess import Assessment
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Casebook, IncidentChange, diagnosis
from holdfast.diagnose.watch_metrics import WatchMetrics
from holdfast.diagnose.watching import Looked, Watch, go_on
from holdfast.drills.scenarios import play
from holdfast.record.errors import InputError
from holdfast.record.events import IncidentDiagnosed, RunEnded, RunStarted, encode
from holdfast.signals.frame import Reading
from holdfast.signals.quality import Flaw
from holdfast.signals.source import SourceError
from holdfast.signals.store import SignalStore

Holdfast = Callable[..., Any]
S = 10**9
METRICS = (
    "holdfast_run_step_seconds",
    "holdfast_member_compute_seconds",
    "holdfast_member_exchange_seconds",
    "holdfast_member_data_seconds",
    "densewatch_cdu_coolant_flow_lpm",
    "densewatch_cdu_coolant_supply_temp_celsius",
    "densewatch_cdu_pump_speed_percent",
)
TOPOLOGY = """\
nodes:
  n[00000-00063]: {{gpus: 8}}
racks: {{"rack-[0000-0015]": 4 each}}
loops: {{"cdu-[0000-0001]": 8 each}}
runs: {{{run}: {{nodes: "n[00000-00063]"}}}}
"""


@pytest.fixture
def incident(data: Path) -> Incident:
    return msgspec.json.decode((data / "incident.json").read_bytes(), type=Incident)


class Heard:
    """An outlet that remembers."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self.open: list[tuple[str, ...]] = []

    def changed(self, change: IncidentChange) -> None:
        self.changes.append((change.state, change.incident.name))

    def confirmed(self, changes: Sequence[IncidentChange]) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None:
        self.open.append(tuple(one.name for one in incidents))


class Script:
    """Looks that are played one after the other: incidents, or what goes wrong with the look."""

    def __init__(self, *looks: tuple[Incident, ...] | Exception) -> None:
        self.looks = list(looks)
        self.unseen: dict[str, int | None] = {}
        self.since_ns: list[int | None] = []

    def __call__(self, at_ns: int, since_ns: int | None) -> Looked:
        self.since_ns.append(since_ns)
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        flaw = Flaw(kind="stuck", subject="n1.0", metric="m", since_ns=None, text="m of n1.0 stands still.")
        found = Assessment(at_ns=at_ns, incidents=look, findings=(), flaws=(flaw,))
        return Looked(runs=("pretrain",), unseen=self.unseen, ends_ns={}, assessment=found, since_ns=6 * S)


def watched(script: Script, said: list[str]) -> tuple[Watch, Heard, WatchMetrics]:
    heard, metrics = Heard(), WatchMetrics()
    return Watch(script, Casebook(), [heard], metrics, said.append), heard, metrics


def value(metrics: WatchMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_each_change_is_told_once_and_what_is_open_every_time(incident: Incident) -> None:
    script = Script((incident,), (incident,), (), ())
    watch, heard, _ = watched(script, [])
    began_ns = incident.began_ns
    assert all(watch.turn(began_ns + seconds * S) for seconds in (40, 50, 120, 130))
    assert heard.changes == [("open", "pretrain/s1"), ("resolved", "pretrain/s1")]
    assert heard.open == [("pretrain/s1",), ("pretrain/s1",), (), ()]
    # A look has to know how far back the beginning is, to see how it was before.
    assert script.since_ns == [None, began_ns, began_ns, None]


def test_a_look_that_fails_is_told_once_and_resolves_nothing(incident: Incident) -> None:
    said: list[str] = []
    down = SourceError("http://p cannot be asked: refused.", hint="Is it up?")
    script = Script((incident,), down, down, ValueError("a defect of ours"), (incident,))
    watch, heard, metrics = watched(script, said)
    turns = [watch.turn(incident.began_ns + minute * 60 * S) for minute in range(5)]
    assert turns == [True, False, False, False, True]
    assert said == [
        "http://p cannot be asked: refused. It is tried again.",
        "The evaluation failed (ValueError: a defect of ours). It is tried again.",
        "The evaluation succeeds again.",
    ]
    assert heard.changes == [("open", "pretrain/s1")]
    assert value(metrics, "holdfast_watch_evaluation_failures_total") == 3


def test_a_run_without_signals_is_not_passed_over_in_silence(incident: Incident) -> None:
    said: list[str] = []
    script = Script((), (), ())
    script.unseen = {"pretrain": 5 * S}
    watch, _, metrics = watched(script, said)
    watch.turn(S)
    watch.turn(2 * S)
    assert said == [
        "Nothing can be said of pretrain: the signals have no step of it in the window; its last step was at "
        "1970-01-01 00:00:05Z."
    ]
    assert value(metrics, "holdfast_watch_unseen_runs") == 1


def test_metrics_follow_the_incidents_and_leave_with_them(incident: Incident) -> None:
    own = {
        "run": "pretrain",
        "mechanism": "coolant-flow",
        "domain": "cooling",
        "owner": "facilities",
        "seam": "facilities-ml",
    }
    labels = {**own, "severity": "critical"}
    watch, _, metrics = watched(Script((incident,), ()), [])
    watch.turn(incident.began_ns + 40 * S)
    assert value(metrics, "holdfast_incident_open", **labels) == 1
    assert value(metrics, "holdfast_incident_worthy", **labels) == 1
    assert value(metrics, "holdfast_incident_cost_usd", **labels) == 49.9
    assert value(metrics, "holdfast_incident_cost_usd_per_second", **labels) == pytest.approx(518.7 / 3600)
    assert value(metrics, "holdfast_incident_lost_gpu_seconds", **labels) == 12.5 * 3600
    assert value(metrics, "holdfast_incident_slowdown_ratio", **labels) == 1.33
    assert value(metrics, "holdfast_signal_quality_ratio", **labels) == 0.98
    assert value(metrics, "holdfast_signal_flaws", kind="stuck") == 1
    assert value(metrics, "holdfast_watch_last_success_timestamp_seconds") == incident.began_ns / S + 40
    watch.turn(incident.began_ns + 200 * S)
    assert value(metrics, "holdfast_incident_open", **labels) is None
    assert value(metrics, "holdfast_incidents_total", **own) == 1
    assert value(metrics, "holdfast_watch_evaluation_seconds_count") == 2


def test_what_is_worth_no_alert_stands_in_the_metrics_alone(incident: Incident) -> None:
    assert incident.cost is not None
    free = msgspec.structs.replace(incident.cost, usd_per_hour=0.0, gpu_hours_per_hour=0.0)
    cause = msgspec.structs.replace(incident.cause, mechanism="slow-node")
    cheap = msgspec.structs.replace(incident, slowdown=1.004, cost=free, cause=cause)
    watch, heard, metrics = watched(Script((cheap,)), [])
    watch.turn(incident.began_ns + 40 * S)
    assert (heard.changes, heard.open) == ([("open", "pretrain/s1")], [()])
    labels = {"run": "pretrain", "mechanism": "slow-node", "domain": "cooling", "owner": "facilities"}
    labels |= {"seam": "facilities-ml", "severity": "info"}
    assert value(metrics, "holdfast_incident_open", **labels) == 1
    assert value(metrics, "holdfast_incident_worthy", **labels) == 0


def test_metrics_are_served_as_prometheus_reads_them(incident: Incident, unused_port: int) -> None:
    watch, _, metrics = watched(Script((incident,)), [])
    watch.turn(incident.began_ns + 40 * S)
    with serving_metrics(f"127.0.0.1:{unused_port}", metrics.registry):
        with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/metrics", timeout=WAIT_S) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        again = serving_metrics(f"127.0.0.1:{unused_port}", metrics.registry)
        with pytest.raises(InputError, match="cannot be served"), again:
            pass
    names = {family.name for family in families}
    assert {"holdfast_incident_open", "holdfast_watch_evaluation_seconds", "holdfast_watch_info"} <= names
    assert all(family.documentation for family in families)
    assert all(name.startswith("holdfast_") for name in names)


@pytest.mark.parametrize("address", ["9464", "host:", "host:99999", "host:port", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    served = serving_metrics(address, WatchMetrics().registry)
    with pytest.raises(InputError, match="is not in the form HOST:PORT"), served:
        pass


def test_turns_that_were_missed_are_not_made_up_for() -> None:
    stop, turns = threading.Event(), []

    def turn() -> None:
        turns.append(time.monotonic())
        if len(turns) == 1:
            time.sleep(0.5)
        if len(turns) == 4:
            stop.set()

    go_on(turn, 0.1, stop)
    gaps = np.diff(turns)
    assert len(turns) == 4
    assert gaps[0] >= 0.5
    assert all(gaps[1:] >= 0.05)


# -- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def unused_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return int(server.server_port)


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    signals: Path
    events: Path
    topology: Path


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Drill:
    """A coolant pump that fails, in the embedded store."""
    home = tmp_path_factory.mktemp("drill")
    played = play("cooling-pump", 3)
    with SignalStore(home / "signals") as store:
        for metric in METRICS:
            frame = played.telemetry.sample(metric)
            store.append(
                Reading(metric=metric, labels=labels, at_ns=int(at_ns), value=float(value))
                for labels, column in zip(frame.labels, frame.values.T, strict=True)
                for at_ns, value in zip(frame.times_ns, column, strict=True)
                if np.isfinite(value)
            )
    events, topology = home / "events.jsonl", home / "topology.yaml"
    events.write_bytes(b"".join(encode(event) + b"\n" for event in played.events))
    topology.write_text(TOPOLOGY.format(run=played.run), encoding="utf-8")
    return Drill(run=played.run, signals=home / "signals", events=events, topology=topology)


@pytest.fixture
def watch(holdfast: Holdfast, drill: Drill) -> Holdfast:
    assert holdfast("import", drill.events).code == 0

    def run(*arguments: str) -> Any:
        options = ("--window", "15m", "--signals", drill.signals, "--topology", drill.topology)
        return holdfast("watch", *arguments, *options)

    return run


@pytest.fixture
def posted() -> Iterator[tuple[str, list[Any]]]:
    """The URL of a receiver, and what it was sent: messages of a webhook, or alerts for an Alertmanager."""
    bodies: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


def test_an_incident_is_printed_recorded_and_sent_once_however_often_the_watch_begins(
    watch: Holdfast, holdfast: Holdfast, drill: Drill, posted: tuple[str, list[Any]], tmp_path: Path
) -> None:
    url, bodies = posted
    channels = ("--webhook", f"{url}/hook", "--alertmanager", url)
    first = watch("--at", "2026-03-02T09:20:00Z", *channels)
    assert first.code == 0, first.err
    (line,) = first.out.splitlines()
    assert line.startswith("2026-03-02 09:20:00Z  open ")
    assert f"{drill.run}/s1" in line
    assert "(cdu-0000, facilities)" in line
    hooks = [body for path, body in bodies if path == "/hook"]
    alerts = [body for path, body in bodies if path == "/api/v2/alerts"]
    assert [hook["state"] for hook in hooks] == ["open"]
    assert alerts[0][0]["labels"]["incident"] == f"{drill.run}/s1"
    # Begun again it finds its open incident in the record, and has nothing new to say of it.
    again = watch("--at", "2026-03-02T09:21:00Z", "--json")
    assert (again.code, again.out) == (0, ""), again.err
    # Long after it sees nothing any more, which is no news of the incident; that the run has ended is.
    blind = watch("--at", "2026-03-02T12:00:00Z", "--json")
    assert blind.out == ""
    assert "its last step was at 2026-03-02 09:29:50Z" in blind.err
    assert holdfast("import", _end_of(drill, tmp_path)).code == 0
    over = watch(drill.run, "--at", "2026-03-02T12:00:00Z", "--json")
    told = json.loads(over.out)
    assert told["state"] == "resolved"
    assert over.err.startswith("holdfast: The signals have no metric of any machine")  # at that time
    assert over.err.count("\n") == 1
    (known,) = holdfast("incidents", "--json").json
    assert (known["name"], known["state"]) == (f"{drill.run}/s1", "resolved")
    assert known["ended_ns"] == 1_772_449_200 * S  # with the run, not when that was seen


def test_a_single_look_says_which_runs_it_could_have_looked_at(watch: Holdfast, drill: Drill) -> None:
    done = watch("zzz", "--at", "2026-03-02T09:20:00Z")
    assert done.code == 0
    assert "Nothing can be said of zzz: the signals have no step of it" in done.err
    assert done.err.endswith(f"holdfast: The signals know {drill.run}.\n")


def _end_of(drill: Drill, folder: Path) -> Path:
    path = folder / "end.jsonl"
    at_ns = 1_772_449_200 * S
    path.write_bytes(encode(RunEnded(id="end", occurred_ns=at_ns, run=drill.run, outcome="completed")))
    return path


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM]))
def test_a_server_that_is_down_is_told_once_and_the_watch_ends_when_told_to(
    environment: dict[str, str], tmp_path: Path, drill: Drill, unused_port: int, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "holdfast", "watch", drill.run, "--every", "200ms"]
    options = ["--prometheus", f"http://127.0.0.1:{unused_port}", "--topology", str(drill.topology)]
    process = subprocess.Popen(
        [*command, *options],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(number)
    out, rest = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, rest) == (0, "", "")
    assert "It is tried again." in first


def test_a_single_look_that_fails_says_so_by_its_code(
    holdfast: Holdfast, drill: Drill, unused_port: int
) -> None:
    server = f"http://127.0.0.1:{unused_port}"
    done = holdfast("watch", drill.run, "--once", "--prometheus", server, "--topology", drill.topology)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "cannot be reached" in done.err
    assert "tried again" not in done.err


def test_looking_at_a_run_does_not_make_it_longer(watch: Holdfast, holdfast: Holdfast, drill: Drill) -> None:
    def figures() -> tuple[Any, ...]:
        return holdfast("report", drill.run, "--json").json, holdfast("runs", "--json").json

    before = figures()
    options = ("--signals", drill.signals, "--topology", drill.topology)
    first = holdfast("diagnose", "--record", "--json", *options).json
    assert len(first["incidents"]) == 1
    # Months later nothing of it is live, and what no look shows any more was over when it was last shown.
    assert watch("--once").code == 0
    (known,) = holdfast("incidents", "--json").json
    assert (known["state"], known["ended_ns"]) == ("resolved", first["at_ns"])
    assert len(holdfast("events", drill.run, "--kind", "incident.diagnosed").out.splitlines()) == 2
    assert figures() == before
    assert holdfast("diagnose", "--json", *options).json["at_ns"] == first["at_ns"]


def test_of_a_run_that_has_ended_nothing_goes_on(
    watch: Holdfast, holdfast: Holdfast, drill: Drill, tmp_path: Path
) -> None:
    ended_ns = 1_772_443_500 * S  # 09:25, with the pump still broken
    end = RunEnded(id="end", occurred_ns=ended_ns, run=drill.run, outcome="stopped")
    path = tmp_path / "end.jsonl"
    path.write_bytes(encode(end))
    assert json.loads(watch("--at", "2026-03-02T09:20:00Z", "--json").out)["state"] == "open"
    assert holdfast("import", path).code == 0
    over = json.loads(watch(drill.run, "--at", "2026-03-02T09:26:00Z", "--json").out)
    assert over["state"] == "resolved"
    assert watch(drill.run, "--at", "2026-03-02T09:27:00Z", "--json").out == ""
    options = ("--signals", drill.signals, "--topology", drill.topology, "--at", "2026-03-02T09:28:00Z")
    done = holdfast("diagnose", drill.run, "--check", *options)
    assert done.code == 0, done.out
    assert "to 2026-03-02 09:25:00Z, now over" in done.out
    of_nobody = holdfast("watch", "--json", "--window", "25m", *options)  # the pump is still broken
    assert json.loads(of_nobody.out)["alert"]["incident"] == "cluster/s1"


def test_an_alert_has_the_id_and_the_name_of_the_run(
    holdfast: Holdfast, watch: Holdfast, drill: Drill, tmp_path: Path
) -> None:
    started = RunStarted(id="named", occurred_ns=1_772_442_000 * S, run=drill.run, name="llama")
    path = tmp_path / "named.jsonl"
    path.write_bytes(encode(started))
    assert holdfast("import", path).code == 0
    alert = json.loads(watch("--at", "2026-03-02T09:20:00Z", "--json").out)["alert"]
    assert alert["annotations"]["summary"].startswith(f"{drill.run} (llama) is ")
    assert alert["labels"]["run"] == drill.run


def test_a_diagnosis_tells_what_its_window_shows_and_what_the_record_has_besides(
    holdfast: Holdfast, drill: Drill, incident: Incident, tmp_path: Path
) -> None:
    began_ns = 1_772_442_120 * S  # 09:02, when all was well
    opened = msgspec.structs.replace(
        incident, name=f"{drill.run}/s1", run=drill.run, began_ns=began_ns, noticed_ns=began_ns
    )
    said = IncidentDiagnosed(
        id="said",
        occurred_ns=began_ns,
        run=drill.run,
        incident=opened.name,
        state="open",
        diagnosis=diagnosis(opened),
    )
    path = tmp_path / "said.jsonl"
    path.write_bytes(encode(said))
    assert holdfast("import", drill.events).code == holdfast("import", path).code == 0
    options = ("--signals", drill.signals, "--topology", drill.topology, "--at", "2026-03-02T09:05:00Z")
    done = holdfast("diagnose", drill.run, "--check", "--record", *options)
    assert done.code == 0, done.out
    line = f"The record has {drill.run}/s1 open since 2026-03-02 09:02:00Z; this window does not show it."
    assert line in done.out
    assert "Why" not in done.out
    answer = holdfast("diagnose", drill.run, "--json", *options).json
    assert (answer["incidents"], answer["unshown"]) == ([], [f"{drill.run}/s1"])
