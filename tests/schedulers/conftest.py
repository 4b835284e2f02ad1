"""Clusters that control acts on: a real Slurm, and a real Kubernetes API server with stand-ins for nodes.

Tests of Kubernetes are marked so, and run by `make test-kubernetes`, which builds the server first. Without
it they fail: nothing is skipped.
"""

import gc
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError

import msgspec
import pytest
from kubernetes_server import KubernetesServer, binary, serving
from waiting import WAIT_S, until

from holdfast.control.cluster import NodeView
from holdfast.control.policy import KubernetesPolicy, SlurmPolicy
from holdfast.diagnose.incident import Incident
from holdfast.record.clock import SystemClock
from holdfast.schedulers.kubernetes import REASON, KubernetesScheduler
from holdfast.schedulers.kubernetes_api import KubernetesApi, read_kubeconfig
from holdfast.schedulers.scheduler import Scheduler
from holdfast.schedulers.slurm import SlurmScheduler
from holdfast.schedulers.slurm_rest import SlurmRest

DATA = Path(__file__).parents[1] / "data"
SLURM_NODES = ("127.0.0.1", "127.0.0.2")
KUBERNETES_NODES = ("gpu-1", "gpu-2")
HEARTBEAT_S = 0.2
SLINKY_REASON = "nodeset.slinky.slurm.net/node-cordon-reason"
MakeIncident = Callable[..., Incident]


class TriedCluster(Protocol):
    """What the contract of all schedulers needs of a cluster with two nodes."""

    first: str
    second: str
    scheduler: Scheduler

    def take_out(self, node: str, reason: str) -> None:
        """As another tool or person does it."""

    def take_over(self, node: str, reason: str) -> None:
        """As a person does it with a node that we drained."""

    def place(self, name: str, node: str) -> str:
        """A job that runs there; what it is called."""


def seen(scheduler: Scheduler) -> dict[str, NodeView]:
    return dict(scheduler.look(SystemClock().now_ns()).nodes)


def scontrol(*words: str, check: bool = True) -> None:
    subprocess.run(["scontrol", *words], check=check, capture_output=True, timeout=WAIT_S)


class SlurmCluster:
    first, second = SLURM_NODES

    def __init__(self, folder: Path) -> None:
        self.scheduler = SlurmScheduler(gpus_per_node=8)
        self._folder = folder

    def take_out(self, node: str, reason: str) -> None:
        scontrol("update", f"nodename={node}", "state=drain", f"reason={reason}")

    take_over = take_out

    def place(self, name: str, node: str) -> str:
        batch = ["sbatch", "--parsable", "--requeue", f"--job-name={name}", f"--nodelist={node}"]
        done = subprocess.run(
            [*batch, f"--output={self._folder}/out", "--wrap=sleep 600"],
            check=True,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        return done.stdout.strip()


@pytest.fixture
def slurm_nodes(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """With every node as before after the test."""
    monkeypatch.setenv("SLURM_CONF", str(slurm))
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    made = SlurmCluster(tmp_path)
    yield made
    for node in SLURM_NODES:
        scontrol("update", f"nodename={node}", "state=resume", check=False)
    scontrol("delete", "reservation=tide", check=False)
    until(lambda: not any(one.is_out for one in seen(made.scheduler).values()), lambda: seen(made.scheduler))


@pytest.fixture
def slurm_rest_nodes(
    slurm: Path,
    slurm_nodes: SlurmCluster,  # puts nodes back after the test
    slurmrestd: Callable[..., AbstractContextManager[str]],
    tmp_path: Path,
) -> Iterator[SlurmCluster]:
    """The same nodes, seen by slurmrestd."""
    with slurmrestd(slurm) as place, closing(SlurmRest(SlurmPolicy(rest=place), 8)) as rest:
        made = SlurmCluster(tmp_path)
        made.scheduler = SlurmScheduler(8, rest)
        yield made


class KubernetesCluster:
    """Nodes are stand-ins: a thread tells the server what their kubelets would."""

    first, second = KUBERNETES_NODES

    def __init__(self, server: KubernetesServer) -> None:
        self.server = server
        self._apis: list[KubernetesApi] = []
        self.scheduler = self.make_scheduler()
        self._numbers = count()
        self._ending = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def make_scheduler(
        self,
        policy: KubernetesPolicy | None = None,
        token: str = "",
        patience_s: float = WAIT_S,
        *,
        is_acting: bool = True,
    ) -> KubernetesScheduler:
        """As another process would have it, which knows nothing but what the server tells."""
        access = read_kubeconfig(self.server.kubeconfig(token), Path("/"))
        self._apis.append(KubernetesApi(access, patience_s=patience_s))
        return KubernetesScheduler(
            self._apis[-1], policy or KubernetesPolicy(), gpus_per_node=4, is_acting=lambda: is_acting
        )

    def begin(self) -> None:
        for name in KUBERNETES_NODES:
            labels = {"kubernetes.io/hostname": name}  # for an object without fields nobody is noted
            self.server.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            status = {"capacity": {"nvidia.com/gpu": "8", "cpu": "96"}, "conditions": [_ready("True")]}
            self._status(name, {"status": status})
        self._beats.start()

    def end(self) -> None:
        self._ending.set()
        self._beats.join(WAIT_S)
        for api in self._apis:
            api.close()
        gc.collect()  # connections that were cut are noticed in the test that cut them
        self.server.ask("DELETE", "/api/v1/nodes")
        for namespace in ("default", "kube-system"):
            self.server.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
            self.server.ask("DELETE", f"/api/v1/namespaces/{namespace}/events")

    def node(self, name: str) -> Any:
        return self.server.ask("GET", f"/api/v1/nodes/{name}")

    def change(self, name: str, change: object, manager: str = "kubectl-patch") -> None:
        path = f"/api/v1/nodes/{name}?fieldManager={manager}"
        self.server.ask("PATCH", path, change, form="merge-patch+json")

    def condition(self, node: str, kind: str) -> Any:
        found = self.node(node)["status"]["conditions"]
        return next((one for one in found if one["type"] == kind), None)

    def events(self, node: str) -> list[Any]:
        found = self.server.ask("GET", "/api/v1/namespaces/default/events")["items"]
        return [one for one in found if one["involvedObject"]["name"] == node]

    def pods(self, namespace: str = "default") -> list[str]:
        found = self.server.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return sorted(one["metadata"]["name"] for one in found)

    def take_out(self, node: str, reason: str) -> None:
        marks = {"annotations": {SLINKY_REASON: reason}}
        self.change(node, {"metadata": marks, "spec": {"unschedulable": True}}, "slurm-operator")

    def take_over(self, node: str, reason: str) -> None:
        self.change(node, {"metadata": {"annotations": {REASON: reason}}}, "kubectl-annotate")

    def place(self, name: str, node: str) -> str:
        self.pod(name, node)
        return f"default/{name}"

    def pod(
        self,
        owner: str,
        node: str,
        *,
        kind: str = "Job",
        namespace: str = "default",
        gpus: int = 8,
        labels: dict[str, str] | None = None,
    ) -> str:
        """One that runs; kind: empty: nobody's."""
        name = f"{owner}-{next(self._numbers)}"
        reference = {"apiVersion": "v1", "kind": kind, "name": owner, "uid": owner, "controller": True}
        limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
        self.server.ask(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "metadata": {
                    "name": name,
                    "labels": labels or {},
                    "ownerReferences": [reference] if kind else [],
                },
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "none", "resources": limits}],
                },
            },
        )
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        self.server.ask("PATCH", path, {"status": {"phase": "Running"}}, form="merge-patch+json")
        return name

    def not_ready(self, node: str) -> None:
        self._status(node, {"status": {"conditions": [_ready("Unknown", "Kubelet stopped posting.")]}})

    def _beat(self) -> None:
        """As kubelets do, and while the server is away they try again."""
        for number in count():
            for name in KUBERNETES_NODES:
                if self._ending.wait(HEARTBEAT_S / len(KUBERNETES_NODES)):
                    return
                beat = {"type": "PIDPressure", "status": "False", "message": f"beat {number}"}
                try:
                    self._status(name, {"status": {"conditions": [beat]}})
                except OSError:
                    continue

    def _status(self, node: str, change: object) -> None:
        path = f"/api/v1/nodes/{node}/status?fieldManager=kubelet"
        self.server.ask("PATCH", path, change, form="strategic-merge-patch+json")


def _ready(status: str, message: str = "") -> dict[str, str]:
    return {"type": "Ready", "status": status, "reason": "Kubelet", "message": message}


@pytest.fixture(scope="session")
def kubernetes_server() -> Iterator[KubernetesServer]:
    program = binary()
    assert program.exists(), "there is no Kubernetes API server; `make test-kubernetes` builds it first"
    with serving(program) as server:
        yield server


@pytest.fixture
def kubernetes_nodes(kubernetes_server: KubernetesServer) -> Iterator[KubernetesCluster]:
    """Two nodes with eight GPUs each; they and all that is on them are gone after the test."""
    made = KubernetesCluster(kubernetes_server)
    try:
        made.begin()
        yield made
    finally:
        made.end()


@pytest.fixture
def make_incident() -> MakeIncident:
    sample = msgspec.json.decode((DATA / "incident.json").read_bytes(), type=Incident)

    def make(node: str, mechanism: str, **fields: Any) -> Incident:
        cause = msgspec.structs.replace(sample.cause, subject=node, kind="node", mechanism=mechanism)
        usual = {"verdict": "cause", "cause": cause, "path": (node,), "confidence": 0.95, "cost": None}
        return msgspec.structs.replace(sample, **(usual | fields))

    return make


def refused(call: Callable[[], object]) -> int:
    """HTTP's status of a call that the server refuses."""
    with pytest.raises(HTTPError) as error:
        call()
    return error.value.code
