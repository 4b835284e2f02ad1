"""What is read of Kubernetes: the way to the server, and objects as it sends them. What control does there is
tried on a real server, by tests/schedulers/test_contract.py and test_kubernetes_server.py.
"""

import base64
import os
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.control.policy import read_policy
from holdfast.record.errors import InputError
from holdfast.record.secret_files import SECRET_BYTES_MAX
from holdfast.schedulers import kubernetes_api
from holdfast.schedulers.kubernetes_api import KubeAccess, KubernetesApi, find_access, read_kubeconfig
from holdfast.schedulers.kubernetes_objects import KubeNode, KubePod, time_ns

AUTHORITY = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


def kubeconfig(**changes: Any) -> str:
    user: dict[str, Any] = changes.pop("user", {"token": "secret"})
    cluster = {
        "server": "https://k:6443",
        "certificate-authority-data": base64.b64encode(AUTHORITY.encode()).decode(),
    }
    made = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "there", "context": {"cluster": "c"}},
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    return yaml.safe_dump(made | changes)


def test_the_current_context_of_a_kubeconfig_is_taken(tmp_path: Path) -> None:
    expected = KubeAccess(server="https://k:6443", token="secret", ca=AUTHORITY)
    assert read_kubeconfig(kubeconfig(), tmp_path) == expected
    for name in ("chain.pem", "key.pem"):
        (tmp_path / name).write_text(name)
    user = {"client-certificate": "chain.pem", "client-key": "key.pem", "tokenFile": "token"}
    found = read_kubeconfig(kubeconfig(user=user), tmp_path)
    assert found.certificate == "chain.pem\nkey.pem"
    assert found.token_path == tmp_path / "token"
    assert read_kubeconfig(kubeconfig(**{"current-context": "there"}), tmp_path).token == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not a kubeconfig"),
        ("clusters: 3", "not a kubeconfig"),
        ("{}", "no context ''"),
        (kubeconfig(**{"current-context": "x"}), "no context 'x'"),
        (kubeconfig(clusters=[]), "no cluster 'c'"),
        (kubeconfig(users=None), "no user 'u'"),
        (kubeconfig(user={"client-certificate-data": "%%"}), "not base64"),
        (kubeconfig(user={"client-certificate": "none.pem"}), "Cannot read"),
        (kubeconfig(user={"exec": {"command": "aws"}}), "credentials by a command"),
    ],
)
def test_a_kubeconfig_that_leads_nowhere_is_told_in_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        read_kubeconfig(text, tmp_path)


def test_a_pod_finds_the_server_by_its_own_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_text(AUTHORITY)
    monkeypatch.setattr(kubernetes_api, "ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    found = find_access()
    assert (found.server, found.token_path) == ("https://[fd00::1]:6443", tmp_path / "token")
    config = tmp_path / "config"
    config.write_text(kubeconfig())
    monkeypatch.setenv("KUBECONFIG", f"{config}:/other")
    assert find_access().token == "secret"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(InputError, match="Cannot read the kubeconfig"):
        find_access()


@pytest.mark.parametrize("token", ["SEC\nRET", "SEC RET", "SEC\tRET", "SECRÉT"])
def test_a_token_that_is_none_is_refused_and_not_quoted(token: str) -> None:
    api = KubernetesApi(KubeAccess(server="http://127.0.0.1:1", token=token), patience_s=0.0)
    with pytest.raises(InputError, match="invalid characters") as error:
        list(api.items("/api/v1/nodes", KubeNode))
    assert "SEC" not in error.value.sentence + error.value.hint
    api.close()


def test_a_token_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    """No retry: waiting does not correct the user's mistake."""
    bad, began_s = tmp_path / "token", time.monotonic()
    bad.write_text("SEC RET")
    for path, said in ((bad, "invalid characters"), (tmp_path / "none", "Cannot read the token")):
        api = KubernetesApi(KubeAccess(server="http://127.0.0.1:1", token_path=path))
        with closing(api), pytest.raises(InputError, match=said):
            api.get("/api/v1/nodes/n1", KubeNode)
    assert time.monotonic() - began_s < kubernetes_api.PATIENCE_S


def test_a_fifo_is_refused_as_kubeconfig_key_or_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    monkeypatch.setenv("KUBECONFIG", str(pipe))
    with pytest.raises(InputError, match=r"the kubeconfig: .* is not a regular file"):
        find_access()
    with pytest.raises(InputError, match="is not a regular file"):
        read_kubeconfig(kubeconfig(user={"client-certificate": "pipe"}), tmp_path)
    api = KubernetesApi(KubeAccess(server="http://127.0.0.1:1", token_path=pipe), patience_s=0.0)
    with closing(api), pytest.raises(InputError, match="is not a regular file"):
        list(api.items("/api/v1/nodes", KubeNode))


def test_a_file_that_is_too_large_is_refused_rather_than_cut(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    with pytest.raises(InputError, match="more than 1 MiB"):
        read_kubeconfig(kubeconfig(user={"client-certificate": "chain.pem"}), tmp_path)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-subj", "/CN=x", "-passout", "pass:secret")
    subprocess.run([*made, "-keyout", key, "-out", chain], check=True, capture_output=True, timeout=120)
    user = {"client-certificate": "chain.pem", "client-key": "key.pem"}
    config = kubeconfig(user=user, clusters=[{"name": "c", "cluster": {"server": "https://k:6443"}}])
    with pytest.raises(InputError, match="certificates cannot be used"):
        KubernetesApi(read_kubeconfig(config, tmp_path))


def test_gpus_are_those_that_the_driver_counted() -> None:
    labelled = {
        "metadata": {"labels": {"nvidia.com/gpu.count": "8"}},
        "status": {"capacity": {"nvidia.com/gpu": "7"}},
    }
    for text, gpus in (
        (labelled, 8),
        ({"status": {"capacity": {"amd.com/gpu": "4"}}}, 4),
        ({"status": {"capacity": {"cpu": "96"}}}, 0),
        ({"metadata": {"labels": None}, "status": {"capacity": {"nvidia.com/gpu": "٣"}}}, 0),
    ):
        assert msgspec.convert(text, KubeNode).gpus == gpus


def test_who_cordoned_a_node_is_who_set_it_last() -> None:
    managed = [
        {"manager": "kubelet", "fieldsV1": {"f:status": {}}},
        {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
    ]
    assert msgspec.convert({"metadata": {"managedFields": managed}}, KubeNode).cordoned_by == "kubectl"
    assert KubeNode().cordoned_by == ""


@pytest.mark.parametrize(
    ("owner", "phase", "gpus", "job"),
    [
        ("Job", "Running", 0, "ml/big"),
        ("Job", "Succeeded", 8, ""),
        ("PyTorchJob", "Pending", 8, "ml/big"),
        ("ReplicaSet", "Running", 0, ""),
        ("DaemonSet", "Running", 8, ""),
        ("", "Running", 1, "ml/big-0"),
    ],
)
def test_what_a_pod_is_part_of(owner: str, phase: str, gpus: int, job: str) -> None:
    metadata: dict[str, Any] = {"name": "big-0", "namespace": "ml"}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "big", "controller": True}]
    containers = [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]
    pod = {"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": phase}}
    assert msgspec.convert(pod, KubePod).job == job


def test_times_that_cannot_be_read_are_long_ago() -> None:
    assert time_ns("1970-01-01T00:01:00Z") == 60 * 10**9
    assert [time_ns(text) for text in (None, "", "soon")] == [0, 0, 0]


@pytest.mark.parametrize("taint", ["x", "a b=c:NoSchedule", "a=b:Maybe"])
def test_a_taint_that_is_none_is_refused(taint: str) -> None:
    with pytest.raises(InputError, match="has a wrong format"):
        read_policy(f'[kubernetes]\ntaint = "{taint}"\n')
