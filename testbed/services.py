"""The processes of the testbed: the run itself, exporters, the mock-up CDU, its collector, Prometheus.

Each is started with a limit on its life (it dies with the testbed), writes to a log of its own, and is ended
by its process number.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cluster import DEVICE, DISK, MOUNT, Cluster, Node

from holdfast.run import kin

HERE = Path(__file__).resolve().parent
RUN = "testbed"
TEAM = "research"
COORDINATOR_PORT, METRICS_PORT, EXPORTER_PORT, NODE_EXPORTER_PORT = 29400, 9464, 9100, 9101
CHECKPOINT_STEPS = 20
HANG_AFTER_S = 120
"""Longer than any fault lasts: the run is not to help itself before it is diagnosed."""
VERSION, KERNELS_S = "570.86.15", 0.08
"""Of the software that is installed at first, and how long a lane waits for it."""
SCRAPE_S = 1
START_WAIT_S = 90.0
STOP_WAIT_S = 15.0
POLL_S = 0.2
LOG_LINES = 20
CDUS = ("cdu-0000", "cdu-0001")
HOG = "hog"

_TOPOLOGY = f"""\
nodes:
  n[0-3]: {{gpus: 1, ports: mlx5_0}}
racks:
  rack-[0000-0001]: 2 each
loops:
  cdu-[0000-0001]: 1 each
leaves:
  leaf-0000: all
mounts:
  {MOUNT}: all
runs:
  {RUN}: {{nodes: "n[0-3]"}}
"""


class Failed(Exception):
    """A process did not do what it is there for."""


class Services:
    """Everything that runs; a context."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.home = cluster.folder / "home"
        self.faults = cluster.folder / "faults"
        self.software = cluster.folder / "software.json"
        self.topology = cluster.folder / "topology.yaml"
        self.prometheus = f"http://127.0.0.1:{free_port()}"
        self.cdu = f"http://127.0.0.1:{free_port()}"
        self._collector = f"127.0.0.1:{free_port()}"
        self._token = secrets.token_hex(16)
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.faults.mkdir()
        self.install(VERSION, KERNELS_S)
        self.topology.write_text(_TOPOLOGY, encoding="utf-8")

    def __enter__(self) -> "Services":
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """Of the commands that look at the run."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
        return {**kept, "HOLDFAST_HOME": str(self.home)}

    def _start_all(self) -> None:
        for node in self.cluster.nodes:
            self._start_run(node)
            self._start_exporters(node)
        self._start("cdu", [sys.executable, str(HERE / "cdu.py"), "--port", _port(self.cdu), "--cdus", "2"])
        collect = ["collect", "--redfish", self.cdu, "--every", f"{SCRAPE_S}s", "--listen", self._collector]
        self._start("collect", [sys.executable, "-m", "holdfast", *collect])
        self._start_prometheus()

    def _start_run(self, node: Node) -> None:
        options = ["--nnodes", str(len(self.cluster.nodes)), "--coordinator"]
        options += [f"{self.cluster.nodes[0].address}:{COORDINATOR_PORT}", "--node-rank", str(node.number)]
        options += ["--run", RUN, "--team", TEAM, "--warm", "0", "--local-addr", node.address]
        options += ["--checkpoints", str(self.cluster.mount / "checkpoints")]
        options += ["--checkpoint-every", str(CHECKPOINT_STEPS), "--hang-after", str(HANG_AFTER_S)]
        if node.number == 0:
            options += ["--metrics-host", node.address, "--metrics-port", str(METRICS_PORT)]
        script = [
            str(HERE / "train.py"),
            "--samples",
            str(self.cluster.samples),
            "--faults",
            str(self.faults),
        ]
        script += ["--spool", str(node.spool), "--table", str(node.table), "--software", str(self.software)]
        home = self.home if node.number == 0 else self.cluster.folder / f"home-{node.name}"
        environment = {**self.environment, "HOLDFAST_HOME": str(home), "HOLDFAST_TOKEN": self._token}
        command = [sys.executable, "-m", "holdfast", "run", *options, *script]
        self._start(f"run-{node.name}", node.inside(*command), environment, node, wholly=True)

    def _start_exporters(self, node: Node) -> None:
        command = [sys.executable, str(HERE / "node.py"), "--name", node.name, "--address", node.address]
        command += ["--port", str(EXPORTER_PORT), "--group", node.group, "--device", DEVICE]
        command += [
            "--mount",
            str(self.cluster.mount),
            "--mount-name",
            MOUNT,
            "--software",
            str(self.software),
        ]
        self._start(f"exporter-{node.name}", node.inside(*command), None, node)
        # Of the kernel's own figures, those that each node has its own of: the rest is the machine's.
        command = ["prometheus-node-exporter", f"--web.listen-address={node.address}:{NODE_EXPORTER_PORT}"]
        command += ["--collector.disable-defaults", "--collector.netdev", "--collector.netstat"]
        command += ["--collector.filesystem", f"--collector.filesystem.mount-points-exclude={_others(node)}"]
        self._start(f"node-exporter-{node.name}", node.inside(*command))

    def _start_prometheus(self) -> None:
        nodes = self.cluster.nodes
        jobs: dict[str, list[tuple[str, str]]] = {
            "run": [(f"{nodes[0].address}:{METRICS_PORT}", nodes[0].name)],
            "exporter": [(f"{node.address}:{EXPORTER_PORT}", node.name) for node in nodes],
            "node": [(f"{node.address}:{NODE_EXPORTER_PORT}", node.name) for node in nodes],
            "cooling": [(self._collector, "cooling")],
        }
        settings = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [
                        {"targets": [target], "labels": {"instance": name}} for target, name in targets
                    ],
                }
                for job, targets in jobs.items()
            ],
        }
        file = self.cluster.folder / "prometheus.json"
        file.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML, too
        data = self.cluster.folder / "prometheus"
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={data}"]
        command += [f"--web.listen-address={self.prometheus.removeprefix('http://')}"]
        self._start("prometheus", command)

    def install(self, version: str, kernels_s: float) -> None:
        """Replace the software of all nodes at once. kernels_s: how long its kernels take."""
        new = self.software.with_suffix(".new")
        new.write_text(json.dumps({"version": version, "kernels_s": kernels_s}), encoding="ascii")
        new.rename(self.software)

    def start_hog(self, node: Node, room_bytes: int) -> None:
        """Something that takes the node's memory but for so much."""
        command = [sys.executable, str(HERE / "hog.py"), "--group", node.group, "--room", str(room_bytes)]
        self._start(HOG, command, None, node, wholly=True)

    def end_hog(self) -> None:
        for one in [one for one in self._processes if one[0] == HOG]:
            self._processes.remove(one)
            one[1].kill()
            one[1].wait()

    def _start(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str] | None = None,
        node: Node | None = None,
        *,
        wholly: bool = False,
    ) -> None:
        """node: whose limits of devices hold for it; wholly: its other limits as well."""
        prepare = partial(_prepare, os.getpid(), node, wholly)
        with (self.cluster.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=environment or self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the testbed, which ends them in order
                preexec_fn=prepare,
            )
        self._processes.append((name, process))

    def stop(self) -> None:
        """End all of them, the last first."""
        for _, process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        due_s = time.monotonic() + STOP_WAIT_S
        for _, process in reversed(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, due_s - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
        self._processes.clear()

    def wait_until(self, is_so: Callable[[], bool], what: str, wait_s: float = START_WAIT_S) -> None:
        """`Failed` with the log of whatever has ended, or when it takes too long."""
        due_s = time.monotonic() + wait_s
        while not is_so():
            for name, process in self._processes:
                if process.poll() is not None:
                    raise Failed(f"{name} ended with {process.returncode}:\n{self.tail(name)}")
            if time.monotonic() > due_s:
                raise Failed(f"waited {wait_s:g} s in vain for {what}")
            time.sleep(POLL_S)

    def tail(self, name: str) -> str:
        log = (self.cluster.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-LOG_LINES:])

    def query(self, expression: str) -> dict[str, float]:
        """What Prometheus answers now, by the series' member, unit, operation or instance."""
        url = f"{self.prometheus}/api/v1/query?{urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=START_WAIT_S) as answer:  # on loopback
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except (OSError, urllib.error.URLError):
            return {}
        return {_name(series["metric"]): float(series["value"][1]) for series in found}

    def set_cdu(self, unit: str, **quantities: float) -> None:
        body = json.dumps({"cdu": unit, **quantities}).encode()
        request = urllib.request.Request(f"{self.cdu}/state", data=body, method="PUT")
        with urllib.request.urlopen(request, timeout=START_WAIT_S):
            pass

    def is_ready(self) -> bool:
        """Whether every member has measured steps, and everything else is scraped."""
        steps = self.query("holdfast_member_steps_total")
        flows = self.query("densewatch_cdu_coolant_flow_lpm")
        clocks = self.query("DCGM_FI_DEV_SM_CLOCK")
        nodes = len(self.cluster.nodes)
        return (len(steps), len(flows), len(clocks)) == (nodes, len(CDUS), nodes) and min(steps.values()) > 1


def _prepare(parent: int, node: Node | None, wholly: bool) -> None:
    """In the new process, before its program."""
    kin.die_with(parent)
    if node is not None:
        node.limits.take_in(os.getpid(), wholly=wholly)


def _others(node: Node) -> str:
    """A pattern of all mounts but this node's own disk. Go's patterns have no lookahead."""
    return f"^/($|[^d]|d[^e])|^/dev/?[^/]*$|/{MOUNT}$|/{DISK}[^{node.number}]$"


def _name(labels: dict[str, str]) -> str:
    return next((labels[key] for key in ("member", "cdu", "operation", "instance") if key in labels), "")


def _port(url: str) -> str:
    return url.rpartition(":")[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
