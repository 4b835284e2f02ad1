"""The lead by a Lease on a real Kubernetes API server: two processes, kills, and a server that dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_server import KubernetesServer
from waiting import until

from holdfast.control.policy import ControlPolicy, KubernetesPolicy, read_policy
from holdfast.record.errors import HoldfastError
from holdfast.schedulers import choosing
from holdfast.schedulers.kubernetes_api import KubeRefusal, KubernetesApi, read_kubeconfig
from holdfast.schedulers.kubernetes_lease import LeaseLead, LeaseTimes
from tests.schedulers.conftest import refused

pytestmark = pytest.mark.kubernetes

CONTROL = Path(__file__).parents[2] / "contrib" / "kubernetes" / "control"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NAME = "control"
TIMES = LeaseTimes(renew_s=3.0, lease_s=9.0, every_s=0.5)
"""So that a test need not wait for two minutes."""
HOLDER = """
import sys, time
from pathlib import Path
from holdfast.schedulers.kubernetes_api import KubernetesApi, read_kubeconfig
from holdfast.schedulers.kubernetes_lease import LeaseLead, LeaseTimes
config, name, renew_s, lease_s, every_s = sys.argv[1:]
times = LeaseTimes(renew_s=float(renew_s), lease_s=float(lease_s), every_s=float(every_s))
api = KubernetesApi(read_kubeconfig(Path(config).read_text(), Path("/"))).impatient()
lead = LeaseLead(api, "default/control", name, times=times)
while True:
    print(lead.is_ours(), flush=True)
    time.sleep(0.1)
"""
Make = Callable[..., LeaseLead]


@pytest.fixture
def lease(kubernetes_server: KubernetesServer) -> Iterator[Callable[[], Any]]:
    """What of it is on the server."""
    kubernetes_server.ask("POST", LEASES, {"metadata": {"name": NAME}})
    yield lambda: kubernetes_server.ask("GET", f"{LEASES}/{NAME}")
    kubernetes_server.ask("DELETE", f"{LEASES}/{NAME}")


@pytest.fixture
def make(kubernetes_server: KubernetesServer, lease: object) -> Iterator[Make]:
    with ExitStack() as stack:

        def made(name: str, token: str = "", named: str = f"default/{NAME}") -> LeaseLead:
            access = read_kubeconfig(kubernetes_server.kubeconfig(token), Path("/"))
            api = KubernetesApi(access).impatient()
            stack.callback(api.close)
            return stack.enter_context(closing(LeaseLead(api, named, name, times=TIMES)))

        yield made


@pytest.fixture
def holder(
    kubernetes_server: KubernetesServer, lease: object, tmp_path: Path
) -> Iterator["subprocess.Popen[str]"]:
    """A process that leads, and renews."""
    config = tmp_path / "config"
    config.write_text(kubernetes_server.kubeconfig())
    times = [str(one) for one in (TIMES.renew_s, TIMES.lease_s, TIMES.every_s)]
    words = [sys.executable, "-c", HOLDER, str(config), "holder", *times]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_one_leads_and_gives_the_place_to_the_other(make: Make, lease: Callable[[], Any]) -> None:
    first, second = make("first"), make("second")
    assert first.is_ours()
    told = lease()["spec"]
    assert (told["holderIdentity"], told["leaseDurationSeconds"], told["leaseTransitions"]) == ("first", 9, 1)
    assert not second.is_ours()
    until(lambda: first.is_ours() and lease()["spec"]["renewTime"] > told["renewTime"])
    assert lease()["spec"]["acquireTime"] == told["acquireTime"]
    first.close()
    assert lease()["spec"]["holderIdentity"] in (None, "")
    assert second.is_ours()
    assert lease()["spec"]["leaseTransitions"] == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_standby_waits_for_one_that_was_killed_or_stands_still(
    make: Make, lease: Callable[[], Any], holder: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    standby = make("standby")
    assert not standby.is_ours()
    os.kill(holder.pid, number)
    last = lease()["spec"]["renewTime"]
    until(standby.is_ours)
    told = lease()["spec"]
    assert told["holderIdentity"] == "standby"
    assert moment_s(told["acquireTime"]) - moment_s(last) >= TIMES.lease_s - TIMES.renew_s
    if number == signal.SIGSTOP:  # it wakes, asks, and has lost
        assert holder.stdout is not None
        os.kill(holder.pid, signal.SIGCONT)
        until(lambda: holder.stdout is not None and holder.stdout.readline() == "False\n")
        assert standby.is_ours()


def moment_s(told: str) -> float:
    return datetime.fromisoformat(told).timestamp()


def test_of_many_that_ask_at_once_one_leads(make: Make) -> None:
    leads = [make(f"p{number}") for number in range(6)]
    with ThreadPoolExecutor(len(leads)) as pool:
        for _ in range(5):
            assert sum(pool.map(LeaseLead.is_ours, leads)) == 1


def test_while_the_server_is_away_the_lead_runs_out_and_is_there_again_after(
    make: Make, kubernetes_server: KubernetesServer
) -> None:
    lead, other = make("lead"), make("other")
    assert lead.is_ours()
    kubernetes_server.kill()
    try:
        until(lambda: not lead.is_ours())
        assert not other.is_ours()
    finally:
        kubernetes_server.start()
    until(lambda: lead.is_ours() or other.is_ours())
    assert lead.is_ours() != other.is_ours()


def test_a_lease_that_is_not_there_is_told_in_a_sentence(make: Make) -> None:
    with pytest.raises(HoldfastError, match="There is no Lease default/none") as error:
        make("p", named="default/none")
    assert "lease.yaml" in error.value.hint


def test_the_account_of_contrib_may_have_its_own_lease_and_no_other(
    kubernetes_server: KubernetesServer, make: Make
) -> None:
    """In the namespace default, which is there."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "holdfast-control"}}
    made = [account, *yaml.safe_load_all((CONTROL / "lease.yaml").read_text("utf-8"))]
    paths = []
    try:
        for one in made:
            one["metadata"].pop("namespace", None)
            for subject in one.get("subjects", ()):
                subject["namespace"] = "default"
            group = one["apiVersion"]
            base = f"/apis/{group}" if "/" in group else f"/api/{group}"
            path = f"{base}/namespaces/default/{one['kind'].lower()}s"
            kubernetes_server.ask("POST", path, one)
            paths.append(f"{path}/{one['metadata']['name']}")
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        found = kubernetes_server.ask("POST", f"{paths[0]}/token", asked)
        token = found["status"]["token"]
        lead = make("p", token, named="default/holdfast-control")
        assert lead.is_ours()
        lead.close()
        with pytest.raises(KubeRefusal, match="403"):
            make("p", token)
        for method, path in (("GET", LEASES), ("POST", LEASES), ("DELETE", f"{LEASES}/holdfast-control")):
            body = {"metadata": {"name": "x"}}
            assert refused(partial(kubernetes_server.ask, method, path, body, token=token)) == 403
    finally:
        for path in paths:
            kubernetes_server.ask("DELETE", path)


def test_control_leads_by_the_lease_that_its_policy_names(
    kubernetes_server: KubernetesServer,
    lease: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "config"
    config.write_text(kubernetes_server.kubeconfig())
    monkeypatch.setenv("KUBECONFIG", str(config))
    policy = tmp_path / "control.toml"
    policy.write_text('scheduler = "kubernetes"\n[kubernetes]\nlease = "default/control"\n')
    words = [sys.executable, "-m", "holdfast", "control", "--once", "--policy", str(policy)]
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}

    def control() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    done = control()
    assert done.returncode == 0, done.stderr
    assert lease()["spec"]["holderIdentity"] in (None, "")  # it ended, and gave it back
    named = ControlPolicy(kubernetes=KubernetesPolicy(lease="default/control"))
    with closing(choosing.leading(named, by_store, "t1")) as lead:
        assert lead.is_ours()
        assert lease()["spec"]["holderIdentity"].endswith("_t1")
        done = control()
        assert done.returncode == 1
        assert "Another process leads" in done.stderr


def by_store() -> LeaseLead:
    raise AssertionError("the policy names a Lease")


def test_the_policy_of_contrib_names_the_lease_of_contrib() -> None:
    made = yaml.safe_load((CONTROL / "policy.yaml").read_text("utf-8"))
    lease = next(yaml.safe_load_all((CONTROL / "lease.yaml").read_text("utf-8")))
    named = read_policy(made["data"]["control.toml"]).kubernetes.lease
    assert named == f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
