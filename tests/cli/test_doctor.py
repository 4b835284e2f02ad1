"""The first hour: a real Prometheus with a real node exporter and a page as dcgm-exporter's, nothing else."""

import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers import daemon
from waiting import free_port, until

from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore
from holdfast.topology.file import read

Holdfast = Callable[..., Any]
GPUS = "".join(
    f'{metric}{{gpu="{gpu}",Hostname="gpu-17.example",hpc_job="77",modelName="NVIDIA H200"}} {value}\n'
    for metric, value in (
        ("DCGM_FI_DEV_GPU_TEMP", 55),
        ("DCGM_FI_DEV_SM_CLOCK", 1700),
        ("DCGM_FI_DEV_POWER_USAGE", 600),
    )
    for gpu in range(8)
)


class Page(BaseHTTPRequestHandler):
    """Counters of dcgm-exporter, and of a training script that counts its steps."""

    begun_s = time.monotonic()
    xid = 0

    def do_GET(self) -> None:
        steps = int((time.monotonic() - self.begun_s) / 0.5)
        xid = f'DCGM_FI_DEV_XID_ERRORS{{gpu="3",Hostname="gpu-17.example",hpc_job="77"}} {Page.xid}'
        body = f'{GPUS}{xid}\ntrain_steps_total{{slurm_job_id="77"}} {steps}\n'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError):  # a scrape that was given up
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """Requests are no news."""


@pytest.fixture(scope="module")
def prometheus(need: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need("prometheus", "prometheus-node-exporter")
    home = tmp_path_factory.mktemp("first-hour")
    node_port, port = free_port(), free_port()
    page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    (home / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: node, static_configs: [{{targets: ['127.0.0.1:{node_port}']}}]}}\n"
        f"  - {{job_name: dcgm, static_configs: [{{targets: ['127.0.0.1:{page.server_port}']}}]}}\n",
        encoding="utf-8",
    )
    commands = (
        ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{node_port}"],
        [
            "prometheus",
            f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
    )
    url = f"http://127.0.0.1:{port}"
    with daemon(commands[0], home), daemon(commands[1], home):
        _await(url, "count_over_time(train_steps_total[1m]) >= 4 and on() node_uname_info")
        yield url
    page.shutdown()
    page.server_close()


def _await(url: str, condition: str) -> None:
    """Until the server finds it true."""
    query = f"{url}/api/v1/query?query={quote(condition)}"

    def is_true() -> bool:
        try:
            with urllib.request.urlopen(query, timeout=5) as answer:
                return b'"value"' in answer.read()
        except OSError:
            return False

    until(is_true, lambda: f"Prometheus does not find that {condition}")


def test_what_is_seen_and_what_is_not_is_told_with_the_way_to_it(holdfast: Holdfast, prometheus: str) -> None:
    told = holdfast("doctor", "--prometheus", prometheus, "--step", "1s", "--json").json
    seen = {one["exporter"]: one for one in told["seen"]}
    assert seen["dcgm-exporter"]["hosts"] == 1
    assert seen["dcgm-exporter"]["every_s"] < 10
    assert seen["node_exporter"]["metrics"] > 100
    missing = {one["exporter"]: one for one in told["missing"]}
    gpu = missing["dcgm-exporter"]
    assert gpu["is_there"]
    assert "DCGM_FI_DEV_GPU_TEMP" not in gpu["metrics"]
    line = "  DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, counter, Rows replaced after corrected errors."
    assert line in gpu["how"]
    assert "memory-errors" in gpu["causes"]
    assert "Start it with --collector.mountstats." in missing["node_exporter"]["how"]
    assert not missing["densewatch"]["is_there"]
    assert {(run["run"], run["nodes"], run["has_steps"]) for run in told["runs"]} == {("77", 1, False)}


def test_a_metric_that_is_named_as_the_step_is_one(holdfast: Holdfast, prometheus: str) -> None:
    asked = ("--prometheus", prometheus, "--step", "1s", "--step-metric", "train_steps_total")
    (run,) = holdfast("doctor", *asked, "--json").json["runs"]
    assert run["has_steps"]
    answer = holdfast("diagnose", "77", *asked, "--window", "1m", "--json").json
    assert answer["quality"]["sees_run"]


def test_a_file_to_start_from_is_written_once_and_can_be_read(
    holdfast: Holdfast, prometheus: str, tmp_path: Path
) -> None:
    path = tmp_path / "topology.yaml"
    done = holdfast("doctor", "--prometheus", prometheus, "--write", str(path))
    assert "Wrote" in done.err
    survey = read(path.read_text(encoding="utf-8")).survey
    assert survey.gpus["gpu-17.example"] == tuple(map(str, range(8)))
    assert socket.gethostname() in survey.kinds
    again = holdfast("doctor", "--prometheus", prometheus, "--write", str(path))
    assert (again.code, "exists already" in again.err) == (2, True)
    described = ("--prometheus", prometheus, "--topology", str(path))
    # node_exporter says nothing of a GPU's host here, nor dcgm-exporter of this one.
    assert holdfast("doctor", *described, "--check").code == 1


def test_names_are_matched_or_told(holdfast: Holdfast, prometheus: str, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("nodes: {gpu-17: {gpus: 8}}\nruns: {llama: {nodes: gpu-17}}\n", encoding="utf-8")
    out = holdfast("doctor", "--prometheus", prometheus, "--topology", str(path)).out
    assert "dcgm-exporter spells 1 host otherwise: gpu-17.example is gpu-17." in " ".join(out.split())


def test_a_watch_is_of_use_with_these_alone(holdfast: Holdfast, prometheus: str) -> None:
    asked = ("watch", "--prometheus", prometheus, "--step", "1s", "--once")
    done = holdfast(*asked)
    assert (done.code, done.out) == (0, "")
    assert "The run 77 is known by labels only: the machines are watched" in done.err
    Page.xid = 79
    _await(prometheus, "DCGM_FI_DEV_XID_ERRORS == 79")
    assert "gpu-17.example.3" in holdfast(*asked).out


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The embedded store of two hosts, read every 7 seconds, of which one has two GPUs."""
    now_ns = time.time_ns()
    with SignalStore(tmp_path / "signals") as store:
        for ago in range(20):
            at_ns = now_ns - ago * 7 * 10**9
            host = [Reading(metric="node_uname_info", labels=one, at_ns=at_ns, value=1.0) for one in HOSTS]
            gpus = [
                Reading(
                    metric="DCGM_FI_DEV_GPU_TEMP",
                    labels={"Hostname": "n2", "gpu": gpu, "hpc_job": "77"},
                    at_ns=at_ns,
                    value=50.0 + ago % 3,
                )
                for gpu in ("0", "1")
            ]
            store.append([*host, *gpus])
    return tmp_path / "signals"


HOSTS: tuple[dict[str, str], ...] = (
    {"instance": "n1", "nodename": "n1"},
    {"instance": "n2", "nodename": "n2"},
)


def test_hosts_of_the_embedded_store_are_nodes_and_its_own_interval_is_told(
    holdfast: Holdfast, stored: Path
) -> None:
    told = holdfast("doctor", "--signals", str(stored), "--json").json
    seen = {one["exporter"]: (one["hosts"], one["every_s"], one["dark"]) for one in told["seen"]}
    assert seen == {"node_exporter": (2, 7.0, []), "dcgm-exporter": (1, 7.0, ["n1"])}
    assert told["runs"] == [
        {"run": "77", "nodes": 1, "source": "the embedded store", "has_steps": False, "last_ns": None}
    ]
    assert "There are no nodes." not in [one["text"] for one in told["doubts"]]


def test_a_step_metric_that_is_not_there_is_not_seen(holdfast: Holdfast, stored: Path) -> None:
    done = holdfast("doctor", "--signals", str(stored), "--step-metric", "node_uname_inf", "--json")
    assert "The step metric node_uname_inf is not in the signals" in done.err
    assert "Did you mean node_uname_info?" in done.err
    assert "holdfast run" not in {one["exporter"] for one in done.json["seen"]}
    (run,) = (one for one in done.json["missing"] if one["exporter"] == "holdfast run")
    assert not run["is_there"]
    assert any("--step-metric" in line for line in run["how"])


def test_of_a_run_with_a_step_log_no_step_metric_is_asked_for(
    holdfast: Holdfast, stored: Path, tmp_path: Path
) -> None:
    now_s = time.time()
    lines = (f'{{"time": {now_s - 200 + 2 * step}, "step": {step}}}\n' for step in range(100))
    (tmp_path / "llama.jsonl").write_text("".join(lines))
    done = holdfast("doctor", "--signals", str(stored), "--step-log", str(tmp_path / "llama.jsonl"), "--json")
    runs = {one["run"]: (one["nodes"], one["source"], one["has_steps"]) for one in done.json["runs"]}
    assert runs == {"77": (1, "the embedded store", False), "llama": (0, "its step log", True)}
    (run,) = (one for one in done.json["missing"] if one["exporter"] == "holdfast run")
    assert (run["is_there"], "--step-metric" in " ".join(run["how"])) == (False, False)
    assert "unused" not in {one["kind"] for one in done.json["doubts"] if not one["subjects"]}


def test_it_ends_with_what_can_be_found_and_what_is_next(holdfast: Holdfast, stored: Path) -> None:
    asked = ("doctor", "--signals", str(stored))
    told, text = holdfast(*asked, "--json").json, " ".join(holdfast(*asked).out.split())
    assert text.endswith(told["verdict"])
    assert (told["next_step"]["of"], told["next_step"]["adds"][0]) == ("the steps of runs", "hang")
    assert told["missing"][0]["exporter"] == "holdfast run"
    hang = next(one for one in told["causes"] if one["cause"] == "hang")
    assert hang == {
        "cause": "hang",
        "title": "the run makes no steps",
        "is_findable": False,
        "by": ["the steps of runs"],
    }


def test_without_any_signals_it_says_how_to_begin(holdfast: Holdfast) -> None:
    done = holdfast("doctor")
    assert (done.code, done.err) == (0, "")
    assert "Nothing is seen" in done.out
    assert "--prometheus URL" in done.out
    assert "You can find none of" in done.out
    assert holdfast("doctor", "--check").code == 1
