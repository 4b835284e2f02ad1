"""What our objects become on a real Kubernetes API server, also on one that dies in the middle."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_server import KubernetesServer
from waiting import until

from holdfast.control.policy import KubernetesPolicy, read_policy
from holdfast.record.errors import HoldfastError
from holdfast.schedulers import kubernetes as marks
from holdfast.schedulers.kubernetes import KubernetesScheduler
from holdfast.schedulers.scheduler import DrainCause, NotOurs
from tests.schedulers.conftest import KubernetesCluster, refused, seen

pytestmark = pytest.mark.kubernetes

REASON = "holdfast: gpu-fault (control-1-0000000007)"
CAUSE = DrainCause(rule="gpu-fault", incidents=("pretrain/17", "pretrain/18"), why="drain: 3 GPU-hours")
TAINT = KubernetesPolicy(taint="holdfast.dev/drained=true:NoSchedule")
CONTRIB = Path(__file__).parents[2] / "contrib" / "kubernetes"
NEWER = {"completionMode"}
"""Of fields in our manifests: what a server of 1.20 does not know, and leaves out."""
PATIENCE_S = 600.0
"""With a server that is started again, on a machine that may be busy."""
REQUEST_PATH = "/apis/nvsentinel.dgxc.nvidia.com/v1/maintenancerequests"
REQUEST_KIND = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "maintenancerequests.nvsentinel.dgxc.nvidia.com"},
    "spec": {
        "group": "nvsentinel.dgxc.nvidia.com",
        "scope": "Cluster",
        "names": {
            "kind": "MaintenanceRequest",
            "plural": "maintenancerequests",
            "singular": "maintenancerequest",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


@pytest.fixture
def nodes(kubernetes_nodes: KubernetesCluster) -> KubernetesCluster:
    return kubernetes_nodes


def drained(nodes: KubernetesCluster, scheduler: KubernetesScheduler | None = None) -> str:
    (scheduler or nodes.scheduler).drain(nodes.second, REASON, CAUSE)
    return nodes.second


# ---- what our objects become -----------------------------------------------------------------------------


def test_a_cordon_says_that_it_was_us_why_and_for_which_incident(nodes: KubernetesCluster) -> None:
    node = nodes.node(drained(nodes))
    assert node["spec"] == {"unschedulable": True}
    told = node["metadata"]["annotations"]
    assert told[marks.REASON] == REASON
    assert told[marks.CORDON_BY] == "holdfast-control"
    assert told[marks.INCIDENTS] == "pretrain/17, pretrain/18"
    assert told[marks.WHY] == "drain: 3 GPU-hours"
    assert node["metadata"]["labels"][marks.DRAINED_LABEL] == "true"
    condition = nodes.condition(nodes.second, marks.CONDITION)
    assert (condition["status"], condition["reason"]) == ("True", "GpuFault")
    assert condition["message"] == (
        f"[gpu-fault] {REASON} - Incidents: pretrain/17, pretrain/18 - drain: 3 GPU-hours"
    )
    (event,) = nodes.events(nodes.second)
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "NodeDrained", 1)
    assert event["message"] == condition["message"]
    assert event["source"] == {"component": "holdfast-control"}
    assert nodes.condition(nodes.second, "Ready")["status"] == "True"  # the kubelet's own stay


def test_a_node_that_is_restored_has_nothing_left_of_us(nodes: KubernetesCluster) -> None:
    before = nodes.node(nodes.second)
    node = drained(nodes)
    nodes.scheduler.resume(node, REASON)
    after = nodes.node(node)
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    assert after["metadata"].get("labels") == before["metadata"].get("labels")
    condition = nodes.condition(node, marks.CONDITION)
    assert (condition["status"], condition["reason"]) == ("False", "Restored")
    assert sorted(event["reason"] for event in nodes.events(node)) == ["NodeDrained", "NodeRestored"]


def test_a_taint_is_put_on_only_where_the_site_wants_it_and_leaves_others(nodes: KubernetesCluster) -> None:
    other = {"key": "site/slow", "value": "yes", "effect": "PreferNoSchedule"}
    nodes.change(nodes.second, {"spec": {"taints": [other]}})
    scheduler = nodes.make_scheduler(TAINT)
    node = drained(nodes, scheduler)
    ours = {"key": "holdfast.dev/drained", "value": "true", "effect": "NoSchedule"}
    assert nodes.node(node)["spec"]["taints"] == [other, ours]
    scheduler.resume(node, REASON)
    assert nodes.node(node)["spec"]["taints"] == [other]


def test_a_cordon_of_kubectl_is_left_alone(nodes: KubernetesCluster) -> None:
    nodes.change(nodes.second, {"spec": {"unschedulable": True}}, "kubectl-cordon")
    before = nodes.node(nodes.second)["metadata"].get("annotations")
    assert seen(nodes.scheduler)[nodes.second].reason == "cordoned by kubectl-cordon"
    for attempt in (nodes.scheduler.drain, nodes.scheduler.resume):
        with pytest.raises(NotOurs, match="kubectl-cordon"):
            attempt(nodes.second, REASON)
    node = nodes.node(nodes.second)
    assert node["spec"]["unschedulable"]
    assert node["metadata"].get("annotations") == before
    assert nodes.condition(nodes.second, marks.CONDITION) is None
    assert nodes.events(nodes.second) == []


def test_a_person_who_uncordons_and_cordons_again_has_the_node_though_our_marks_are_there(
    nodes: KubernetesCluster,
) -> None:
    node = drained(nodes)
    nodes.change(node, {"spec": {"unschedulable": None}}, "kubectl-cordon")
    nodes.change(node, {"spec": {"unschedulable": True}}, "kubectl-cordon")
    with pytest.raises(NotOurs, match="cordoned by kubectl-cordon"):
        nodes.scheduler.resume(node, REASON)
    assert seen(nodes.scheduler)[node].reason == "cordoned by kubectl-cordon"
    assert nodes.node(node)["spec"]["unschedulable"]
    assert marks.REASON not in nodes.node(node)["metadata"].get("annotations", {})
    assert nodes.condition(node, marks.CONDITION)["reason"] == "TakenOver"


def test_what_is_left_of_us_on_a_node_that_somebody_restored_is_taken_off(nodes: KubernetesCluster) -> None:
    scheduler = nodes.make_scheduler(TAINT)
    node = drained(nodes, scheduler)
    nodes.change(node, {"spec": {"unschedulable": None}}, "kubectl-uncordon")
    assert not seen(scheduler)[node].is_out
    found = nodes.node(node)
    assert found["spec"].get("taints") is None
    assert marks.REASON not in found["metadata"].get("annotations", {})
    assert nodes.condition(node, marks.CONDITION)["status"] == "False"


def test_what_a_crash_left_untold_is_told_by_the_next_process(nodes: KubernetesCluster) -> None:
    node = drained(nodes)
    nodes.server.ask("DELETE", "/api/v1/namespaces/default/events")
    gone = {"status": {"conditions": [{"type": marks.CONDITION, "$patch": "delete"}]}}
    nodes.server.ask("PATCH", f"/api/v1/nodes/{node}/status", gone, form="strategic-merge-patch+json")
    assert nodes.condition(node, marks.CONDITION) is None
    assert seen(nodes.make_scheduler(is_acting=False))[node].reason == REASON
    assert nodes.condition(node, marks.CONDITION) is None  # who only looks writes nothing
    assert seen(nodes.make_scheduler())[node].reason == REASON
    assert nodes.condition(node, marks.CONDITION)["message"].startswith(f"[gpu-fault] {REASON} - Incidents: ")
    assert len(nodes.events(node)) == 1


def test_a_look_sees_all_where_marks_cannot_be_put_right(nodes: KubernetesCluster, account: str) -> None:
    node = drained(nodes)
    nodes.change(node, {"spec": {"unschedulable": None}}, "kubectl-uncordon")
    nodes.change(node, {"metadata": {"annotations": {marks.REQUEST: "holdfast-gone"}}})
    assert not seen(nodes.make_scheduler(token=account))[node].is_out
    assert marks.REASON in nodes.node(node)["metadata"]["annotations"]
    assert not seen(nodes.scheduler)[node].is_out
    assert marks.REASON not in nodes.node(node)["metadata"].get("annotations", {})


# ---- what is seen ----------------------------------------------------------------------------------------


def test_a_node_whose_kubelet_is_silent_is_out_and_not_by_us(nodes: KubernetesCluster) -> None:
    nodes.not_ready(nodes.second)
    found = seen(nodes.scheduler)[nodes.second]
    assert (found.is_out, found.reason) == (True, "not ready: Kubelet stopped posting.")
    with pytest.raises(NotOurs, match="not ready"):
        nodes.scheduler.drain(nodes.second, REASON)


def test_a_drained_node_that_is_rebooted_stays_ours(nodes: KubernetesCluster) -> None:
    node = drained(nodes)
    nodes.not_ready(node)
    assert seen(nodes.scheduler)[node].reason == REASON


def test_what_nvsentinel_has_in_hands_and_what_the_site_keeps_is_left_alone(nodes: KubernetesCluster) -> None:
    for label, value, said in (
        (marks.STATE_LABEL, "draining", "NVSentinel: draining"),
        (marks.OPT_OUTS[0], "false", f"{marks.OPT_OUTS[0]}=false"),
        (marks.OPT_OUTS[1], "false", f"{marks.OPT_OUTS[1]}=false"),
    ):
        nodes.change(nodes.second, {"metadata": {"labels": {label: value}}})
        assert seen(nodes.scheduler)[nodes.second].maintenance == said
        with pytest.raises(NotOurs, match="not ours to drain"):
            nodes.scheduler.drain(nodes.second, REASON)
        nodes.change(nodes.second, {"metadata": {"labels": {label: None}}})
    assert "unschedulable" not in nodes.node(nodes.second)["spec"]


def test_nvsentinels_cordon_is_shown_by_its_labels(nodes: KubernetesCluster) -> None:
    labels = {"k8saas.nvidia.com/cordon-by": "NVSentinel", "k8saas.nvidia.com/cordon-reason": "xid-79"}
    nodes.change(
        nodes.second, {"metadata": {"labels": labels}, "spec": {"unschedulable": True}}, "nvsentinel"
    )
    assert seen(nodes.scheduler)[nodes.second].reason == "NVSentinel: xid-79"


def test_a_fault_that_nvsentinel_finds_on_a_node_that_we_drained_keeps_it_out(
    nodes: KubernetesCluster,
) -> None:
    node = drained(nodes)
    nodes.change(node, {"metadata": {"labels": {marks.STATE_LABEL: "quarantined"}}})
    with pytest.raises(NotOurs, match="NVSentinel works on it"):
        nodes.scheduler.resume(node, REASON)
    assert nodes.node(node)["spec"]["unschedulable"]


def test_pods_are_jobs_if_a_job_has_them_or_they_have_gpus(nodes: KubernetesCluster) -> None:
    nodes.pod("pretrain", nodes.first, labels={marks.RUN_LABEL: "big"})
    nodes.pod("pretrain", nodes.second, labels={marks.RUN_LABEL: "big"})
    nodes.pod("set-workers-0", nodes.second, labels={"jobset.sigs.k8s.io/jobset-name": "set"})
    nodes.pod("serving", nodes.second, kind="ReplicaSet")
    nodes.pod("web", nodes.second, kind="ReplicaSet", gpus=0)
    nodes.pod("exporter", nodes.second, kind="DaemonSet")
    view = nodes.scheduler.look(0)
    assert {(job.job, job.name, job.nodes) for job in view.jobs} == {
        ("default/pretrain", "big", nodes_of(nodes)),
        ("default/set", "set", (nodes.second,)),
        ("default/serving", "serving", (nodes.second,)),
    }
    assert view.nodes[nodes.first].jobs == ("default/pretrain",)


def nodes_of(nodes: KubernetesCluster) -> tuple[str, ...]:
    return (nodes.first, nodes.second)


# ---- evictions -------------------------------------------------------------------------------------------


def test_only_the_nodes_own_pods_are_evicted_and_only_those_that_somebody_makes_again(
    nodes: KubernetesCluster,
) -> None:
    stays = [
        nodes.pod("pretrain", nodes.first),
        nodes.pod("web", nodes.second, kind="ReplicaSet", gpus=0),
        nodes.pod("exporter", nodes.second, kind="DaemonSet"),
        nodes.pod("notebook", nodes.second, kind=""),
    ]
    nodes.pod("pretrain", nodes.second)
    system = nodes.pod("plugin", nodes.second, kind="ReplicaSet", namespace="kube-system")
    node = drained(nodes)
    said = nodes.scheduler.clear(node, seen(nodes.scheduler)[node].jobs)
    assert said.startswith("evicted 1 pod; left: ")
    assert "has no owner to make it again" in said
    assert "whose namespace is kept" in said
    assert nodes.pods() == sorted(stays)
    assert nodes.pods("kube-system") == [system]


def test_a_disruption_budget_is_kept(nodes: KubernetesCluster) -> None:
    pod = nodes.pod("serving", nodes.second, kind="ReplicaSet", labels={"app": "serving"})
    path = "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets"
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "serving"}}}
    nodes.server.ask("POST", path, {"metadata": {"name": "one"}, "spec": budget})
    try:
        node = drained(nodes)
        said = nodes.scheduler.clear(node, seen(nodes.scheduler)[node].jobs)
        assert nodes.scheduler.requeue("default/serving") == said
    finally:
        nodes.server.ask("DELETE", f"{path}/one")
    assert said == f"evicted 0 pods; left: {pod}, by its disruption budget"
    assert nodes.pods() == [pod]


# ---- NVSentinel mends ------------------------------------------------------------------------------------


@pytest.fixture
def requests(nodes: KubernetesCluster) -> Iterator[Callable[[], list[Any]]]:
    """The kind as NVSentinel defines it, without its webhook; what requests there are."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    nodes.server.ask("POST", path, REQUEST_KIND)

    def found() -> list[Any]:
        return list(nodes.server.ask("GET", REQUEST_PATH)["items"])

    def is_served() -> bool:
        try:
            found()
        except OSError:
            return False
        return True

    until(is_served)
    yield found
    nodes.server.ask("DELETE", f"{path}/{REQUEST_KIND['metadata']['name']}")  # type: ignore[index]
    until(lambda: not is_served())


def test_nvsentinel_is_asked_to_reboot_once_and_gives_the_node_back_itself(
    nodes: KubernetesCluster, requests: Callable[[], list[Any]]
) -> None:
    with pytest.raises(NotOurs, match="not out because of us"):
        nodes.scheduler.request_maintenance(nodes.second, "its check failed")
    node = drained(nodes)
    for _ in range(2):  # again, after a lost answer say
        nodes.scheduler.request_maintenance(node, "its check failed")
    (request,) = requests()
    assert request["spec"]["healthEvent"] == {
        "version": 1,
        "agent": "holdfast-control",
        "componentClass": "Node",
        "checkName": "HoldfastDrained",
        "nodeName": node,
        "isHealthy": False,
        "isFatal": False,
        "recommendedAction": "RESTART_VM",
        "message": "its check failed",
    }
    nodes.change(node, {"metadata": {"labels": {marks.STATE_LABEL: "remediation-succeeded"}}})
    assert seen(nodes.scheduler)[node].maintenance == ""  # it is at it for us
    nodes.scheduler.resume(node, REASON)
    assert requests() == []
    found = nodes.node(node)
    assert found["spec"]["unschedulable"]  # NVSentinel uncordons it, if it has no reasons of its own
    assert marks.REASON not in found["metadata"].get("annotations", {})


@pytest.fixture
def account(nodes: KubernetesCluster) -> Iterator[str]:
    """The token of one that may change nodes, and may not withdraw what NVSentinel was asked for."""
    rules = [{"apiGroups": [""], "resources": ["nodes", "nodes/status", "events", "pods"], "verbs": ["*"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "changer"}
    who = [{"kind": "ServiceAccount", "name": "changer", "namespace": "default"}]
    rights = "/apis/rbac.authorization.k8s.io/v1"
    made: dict[str, dict[str, Any]] = {
        "/api/v1/namespaces/default/serviceaccounts": {},
        f"{rights}/clusterroles": {"rules": rules},
        f"{rights}/clusterrolebindings": {"roleRef": role, "subjects": who},
    }
    for path, body in made.items():
        nodes.server.ask("POST", path, {"metadata": {"name": "changer"}, **body})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = "/api/v1/namespaces/default/serviceaccounts/changer/token"
    yield nodes.server.ask("POST", path, asked)["status"]["token"]
    for path in made:
        nodes.server.ask("DELETE", f"{path}/changer")


def test_a_node_stays_out_while_the_order_to_reboot_it_cannot_be_withdrawn(
    nodes: KubernetesCluster, requests: Callable[[], list[Any]], account: str
) -> None:
    node = drained(nodes)
    nodes.scheduler.request_maintenance(node, "its check failed")
    with pytest.raises(HoldfastError, match="refuses"):
        nodes.make_scheduler(token=account).resume(node, REASON)
    found = nodes.node(node)
    assert found["spec"]["unschedulable"]
    assert found["metadata"]["annotations"][marks.REQUEST] == requests()[0]["metadata"]["name"]
    nodes.server.ask("DELETE", f"{REQUEST_PATH}/{requests()[0]['metadata']['name']}")
    nodes.scheduler.resume(node, REASON)  # that it is gone already is well
    assert "unschedulable" not in nodes.node(node)["spec"]


# ---- the server dies -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # connections that were cut as they were made
def test_a_server_that_is_killed_in_the_middle_loses_and_doubles_nothing(nodes: KubernetesCluster) -> None:
    """Three times it is killed while nodes are drained and restored; what was asked for is so, once."""
    trouble: list[BaseException] = []
    scheduler = nodes.make_scheduler(patience_s=PATIENCE_S)

    def drain_and_restore(node: str, number: int) -> None:
        reason = f"holdfast: gpu-fault (control-{number}-{node})"
        try:
            scheduler.drain(node, reason, CAUSE)
            if number % 2:
                scheduler.resume(node, reason)
        except BaseException as error:
            trouble.append(error)

    for number in (1, 3, 4):
        both = [threading.Thread(target=drain_and_restore, args=(node, number)) for node in nodes_of(nodes)]
        for thread in both:
            thread.start()
        nodes.server.kill()
        with pytest.raises(HoldfastError, match="does not answer"):
            nodes.make_scheduler().look(0)
        nodes.server.start()
        for thread in both:
            thread.join()
        assert trouble == []
    for node in nodes_of(nodes):
        found = seen(nodes.make_scheduler())[node]
        assert (found.is_out, found.reason) == (True, f"holdfast: gpu-fault (control-4-{node})")
        assert nodes.condition(node, marks.CONDITION)["status"] == "True"
        told = [
            (event["reason"], event["message"].partition("(")[2].partition(")")[0])
            for event in nodes.events(node)
        ]
        drains = [("NodeDrained", f"control-{number}-{node}") for number in (1, 3, 4)]
        restores = [("NodeRestored", f"control-{number}-{node}") for number in (1, 3)]
        assert sorted(told) == sorted(drains + restores)
        assert all(event["count"] == 1 for event in nodes.events(node))


# ---- contrib ---------------------------------------------------------------------------------------------


def listed(folder: Path) -> list[Any]:
    """The objects that a kustomization names, in its order."""
    top = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    texts = [(folder / name).read_text("utf-8") for name in top["resources"]]
    return [one for text in texts for one in yaml.safe_load_all(text)]


def path_of(made: Any) -> str:
    group, kind = made["apiVersion"], made["kind"].lower() + "s"
    base = f"/apis/{group}" if "/" in group else f"/api/{group}"
    namespaced = not made["kind"].startswith("Cluster")
    namespace = made["metadata"].get("namespace", "default")
    return f"{base}/namespaces/{namespace}/{kind}" if namespaced else f"{base}/{kind}"


def left_out(sent: Any, kept: Any) -> set[str]:
    """Fields that were sent and are not there, or are something else."""
    if isinstance(sent, dict):
        missing = {key for key in sent if key not in kept}
        return missing.union(*(left_out(sent[key], kept[key]) for key in sent if key in kept))
    if isinstance(sent, list):
        assert len(sent) == len(kept)
        return set().union(*(left_out(one, other) for one, other in zip(sent, kept, strict=True)))
    assert sent == kept
    return set()


@pytest.fixture
def control_namespace(kubernetes_server: KubernetesServer) -> Iterator[None]:
    kubernetes_server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "holdfast"}})
    yield
    for made in [*listed(CONTRIB / "control"), *extra()]:
        kubernetes_server.ask("DELETE", f"{path_of(made)}/{made['metadata']['name']}")
    # Nobody finishes the deletion of a namespace here.
    kubernetes_server.ask("DELETE", "/api/v1/namespaces/holdfast")
    kubernetes_server.ask(
        "PUT",
        "/api/v1/namespaces/holdfast/finalize",
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "holdfast"},
            "spec": {"finalizers": []},
        },
    )


def extra() -> list[Any]:
    return list(yaml.safe_load_all((CONTRIB / "control" / "maintenance-request.yaml").read_text("utf-8")))


def test_the_manifests_of_a_run_are_taken_as_they_are(nodes: KubernetesCluster) -> None:
    for made in listed(CONTRIB / "run"):
        kept = nodes.server.ask("POST", f"{path_of(made)}?dryRun=All", made)
        assert left_out(made, kept) <= NEWER, made["kind"]


def test_control_has_the_rights_that_it_needs_and_no_others(
    nodes: KubernetesCluster, control_namespace: None
) -> None:
    for made in [*listed(CONTRIB / "control"), *extra()]:
        kept = nodes.server.ask("POST", path_of(made), made)
        assert left_out(made, kept) == set(), made["kind"]
    path = "/api/v1/namespaces/holdfast/serviceaccounts/holdfast-control/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = nodes.server.ask("POST", path, asked)["status"]["token"]
    nodes.pod("pretrain", nodes.second)
    scheduler = nodes.make_scheduler(TAINT, token)
    node = drained(nodes, scheduler)
    assert scheduler.clear(node, seen(scheduler)[node].jobs) == "evicted 1 pod"
    scheduler.resume(node, REASON)
    assert not seen(scheduler)[node].is_out
    assert nodes.condition(node, marks.CONDITION)["reason"] == "Restored"
    for method, forbidden in (
        ("GET", "/api/v1/secrets"),
        ("DELETE", f"/api/v1/nodes/{node}"),
        ("GET", "/api/v1/namespaces/holdfast/configmaps"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("DELETE", "/api/v1/namespaces/default/pods"),
    ):
        assert refused(lambda m=method, p=forbidden: nodes.server.ask(m, p, {}, token=token)) == 403  # type: ignore[misc]


def test_the_policy_of_contrib_is_one(tmp_path: Path) -> None:
    (made,) = [one for one in listed(CONTRIB / "control") if one["kind"] == "ConfigMap"]
    policy = read_policy(made["data"]["control.toml"])
    assert (policy.mode, policy.scheduler) == ("shadow", "kubernetes")
