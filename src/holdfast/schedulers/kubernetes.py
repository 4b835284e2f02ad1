"""Kubernetes: cordons and uncordons nodes, with annotations that say that it was us, why and for which
incident.

A node is ours while our client was the last to set `unschedulable` and the annotation with the reason is as
we wrote it. Cordon and annotations are one write, under the version of the node that was read, so that no
other write can come in between. Every write is idempotent: repeating it after a lost answer changes nothing.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from holdfast import wording
from holdfast.control.cluster import NodeView
from holdfast.control.deciding import REASON_PREFIX
from holdfast.control.policy import KubernetesPolicy
from holdfast.control.seeing import MachinesView, PlacedJob
from holdfast.record.errors import HoldfastError, InputError
from holdfast.schedulers.kubernetes_api import KubeRefusal, KubernetesApi
from holdfast.schedulers.kubernetes_objects import (
    KubeEvent,
    KubeNode,
    KubePod,
    KubeTaint,
    time_ns,
    without_taint,
)
from holdfast.schedulers.scheduler import UNTOLD, DrainCause, NotOurs

MANAGER = "holdfast-control"
"""Our name as a field manager: the API server notes it for every field that we write."""
CONDITION = "HoldfastDrained"
"""True if the node is out because something is wrong with it, as for all conditions but `Ready`."""
DOMAIN = "holdfast.dev"
RUN_LABEL = f"{DOMAIN}/run"
DRAINED_LABEL = f"{DOMAIN}/drained"
REASON = f"{DOMAIN}/cordon-reason"
CORDON_BY = f"{DOMAIN}/cordon-by"
RULE = f"{DOMAIN}/cordon-rule"
WHY = f"{DOMAIN}/cordon-why"
INCIDENTS = f"{DOMAIN}/cordon-incidents"
SINCE = f"{DOMAIN}/cordon-timestamp"
REQUEST = f"{DOMAIN}/maintenance-request"
MARKS = (REASON, CORDON_BY, RULE, WHY, INCIDENTS, SINCE, REQUEST)

OPT_OUTS = ("nvsentinel.dgxc.nvidia.com/managed", "k8saas.nvidia.com/ManagedByNVSentinel")
"""Labels by which a site leaves a node to people, if one of them is `false`."""
STATE_LABEL = "dgxc.nvidia.com/nvsentinel-state"
"""NVSentinel's progress with a node; it removes the label when it is done."""
CORDON_PREFIXES = ("k8saas.nvidia.com", "k8s.nvidia.com")
FOREIGN_REASONS = ("nodeset.slinky.slurm.net/node-cordon-reason",)
REQUESTS = "/apis/nvsentinel.dgxc.nvidia.com/v1/maintenancerequests"

TRIES_MAX = 8
"""Attempts of a write that conflicts with other writers: the node is read again each time."""
ANNOTATION_CHARS_MAX = 1_000
MESSAGE_CHARS_MAX = 900
CONFLICT, GONE, TOO_MANY = 409, 404, 429
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_JOB = re.compile(rf"({_NODE.pattern})/({_NODE.pattern})")


class KubernetesScheduler:
    """gpus_per_node: if no node reports GPUs. is_acting: whether `look` may repair marks."""

    def __init__(
        self,
        api: KubernetesApi,
        policy: KubernetesPolicy,
        gpus_per_node: int = 0,
        is_acting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._api = api
        self._is_acting = is_acting
        self._policy = policy
        self._gpus_per_node = gpus_per_node
        self._taint = _taint(policy.taint)

    # -- reading -------------------------------------------------------------------------------------

    def look(self, now_ns: int) -> MachinesView:
        """Read nodes and pods. A process that acts also repairs our marks that do not fit a node's state."""
        nodes = list(self._api.items("/api/v1/nodes", KubeNode))
        pods = list(self._api.items("/api/v1/pods", KubePod))
        boots = self._boots_ns()
        tells = any(node.gpus for node in nodes)
        if self._is_acting():
            self._mend_all(nodes)
        jobs = tuple(_placed(pods))
        return MachinesView(
            nodes={
                node.metadata.name: viewed(
                    node,
                    gpus=node.gpus if tells else self._gpus_per_node,
                    jobs=tuple(job.job for job in jobs if node.metadata.name in job.nodes),
                    booted_ns=boots.get(node.metadata.name, 0),
                )
                for node in nodes
            },
            jobs=jobs,
        )

    def _boots_ns(self) -> dict[str, int]:
        """When nodes booted: kubelets report it as an event, which the server keeps for an hour."""
        chosen = "involvedObject.kind=Node,reason=Rebooted"
        found: dict[str, int] = {}
        for event in self._api.items("/api/v1/namespaces/default/events", KubeEvent, fieldSelector=chosen):
            name = event.involved_object.name
            found[name] = max(found.get(name, 0), time_ns(event.last_timestamp))
        return found

    # -- acting --------------------------------------------------------------------------------------

    def drain(self, node: str, reason: str, cause: DrainCause = UNTOLD) -> None:
        path = _path(node)
        for _ in range(TRIES_MAX):
            seen = self._node(node)
            if _is_ours(seen) and _reason(seen) == reason:
                break
            if _is_out(seen):
                raise NotOurs(f"{node} is out already: {_reason(seen) or 'no reason given'}.")
            if held := _maintenance(seen):
                raise NotOurs(f"{node} is not ours to drain: {held}.")
            if self._wrote(path, self._cordon(seen, reason, cause)):
                break
        else:
            raise _busy(node)
        self._tell_drained(node, reason, cause)

    def clear(self, node: str, jobs: tuple[str, ...]) -> str:
        """Evict the jobs' pods from this node alone: the jobs make new ones elsewhere."""
        chosen = f"spec.nodeName={_name(node)}"
        pods = self._api.items("/api/v1/pods", KubePod, is_patient=True, fieldSelector=chosen)
        return self._evicted([pod for pod in pods if pod.job in jobs])

    def resume(self, node: str, reason: str) -> None:
        path = _path(node)
        for _ in range(TRIES_MAX):
            seen = self._node(node)
            if not _is_ours(seen) or _reason(seen) != reason:
                told = _reason(seen) or "it has no reason"
                raise NotOurs(f"{node} is no longer out because of us: {told}.")
            request, state = _mark(seen, REQUEST), _label(seen, STATE_LABEL)
            if state and not request:
                raise NotOurs(f"{node} is not out because of us alone: NVSentinel works on it ({state}).")
            # A node that has jobs again must not be rebooted: the request goes before the cordon does.
            if request:
                self._withdraw(request)
            # If we asked NVSentinel to mend the node, it uncordons the node, unless it has its own reasons.
            if self._wrote(path, self._unmarked(seen, is_cordon_kept=bool(request and state))):
                break
        else:
            raise _busy(node)
        self._tell_restored(node, reason, "Restored", "its check has passed")

    def requeue(self, job: str) -> str:
        match = _JOB.fullmatch(job)
        if match is None:
            raise InputError(f"{job!r} is not the name of a job.", hint="Jobs are called NAMESPACE/NAME.")
        pods = self._api.items(f"/api/v1/namespaces/{match[1]}/pods", KubePod, is_patient=True)
        return self._evicted([pod for pod in pods if pod.job == job])

    def request_maintenance(self, node: str, reason: str) -> str:
        """Have NVSentinel reboot a node that we took out; return in words what was requested."""
        seen = self._node(node)
        if not _is_ours(seen):
            raise NotOurs(f"{node} is not out because of us: {_reason(seen) or 'it has no reason'}.")
        name = f"holdfast-{_digest(node, _reason(seen), reason)}"
        event = {
            "version": 1,
            "agent": MANAGER,
            "componentClass": "Node",
            "checkName": CONDITION,
            "nodeName": node,
            "isHealthy": False,
            "isFatal": False,
            "recommendedAction": "RESTART_VM",
            "message": wording.short(reason, MESSAGE_CHARS_MAX),
        }
        # The node is annotated first, so that NVSentinel's work is known to be for us, also after a crash.
        self._api.patch(_path(node), {"metadata": {"annotations": {REQUEST: name}}}, manager=MANAGER)
        self._create(
            REQUESTS,
            {
                "apiVersion": "nvsentinel.dgxc.nvidia.com/v1",
                "kind": "MaintenanceRequest",
                "metadata": {"name": name, "labels": {CORDON_BY: MANAGER}},
                "spec": {"healthEvent": event},
            },
        )
        return f"asked NVSentinel to reboot it: MaintenanceRequest {name}"

    # -- requests ------------------------------------------------------------------------------------

    def _node(self, node: str) -> KubeNode:
        try:
            return self._api.get(_path(node), KubeNode)
        except KubeRefusal as refusal:
            if refusal.status != GONE:
                raise
        raise HoldfastError(f"Kubernetes has no node {node}.", hint="`kubectl get nodes` lists them.")

    def _wrote(self, path: str, change: dict[str, Any]) -> bool:
        """Whether the write succeeded; False if the node was written since it was read."""
        try:
            self._api.patch(path, change, manager=MANAGER)
        except KubeRefusal as refusal:
            if refusal.status != CONFLICT:
                raise
            return False
        return True

    def _cordon(self, node: KubeNode, reason: str, cause: DrainCause) -> dict[str, Any]:
        spec: dict[str, Any] = {"unschedulable": True}
        if self._taint is not None:
            spec["taints"] = [*without_taint(node.spec.taints, self._taint), self._taint]
        marks = {
            REASON: reason,
            CORDON_BY: MANAGER,
            RULE: cause.rule,
            WHY: wording.short(cause.why, ANNOTATION_CHARS_MAX),
            INCIDENTS: wording.short(", ".join(cause.incidents), ANNOTATION_CHARS_MAX),
            SINCE: _now(),
        }
        return {
            "metadata": {
                "resourceVersion": node.metadata.resource_version,
                "annotations": marks,
                "labels": {DRAINED_LABEL: "true"},
            },
            "spec": spec,
        }

    def _unmarked(self, node: KubeNode, *, is_cordon_kept: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {} if is_cordon_kept else {"unschedulable": None}
        if self._taint is not None:
            spec["taints"] = [*without_taint(node.spec.taints, self._taint)] or None
        return {
            "metadata": {
                "resourceVersion": node.metadata.resource_version,
                "annotations": dict.fromkeys(MARKS),
                "labels": {DRAINED_LABEL: None},
            },
            "spec": spec,
        }

    def _withdraw(self, request: str) -> None:
        try:
            self._api.delete(f"{REQUESTS}/{request}")
        except KubeRefusal as refusal:
            if refusal.status != GONE:
                raise

    def _tell_drained(self, node: str, reason: str, cause: DrainCause) -> None:
        message = _message(reason, cause)
        self._condition(node, "True", _camel(cause.rule) or "Drained", message)
        self._event(node, "NodeDrained", message, key=reason, is_warning=True)

    def _tell_restored(self, node: str, reason: str, word: str, why: str) -> None:
        message = wording.short(f"{reason}: {why}", MESSAGE_CHARS_MAX)
        self._condition(node, "False", word, message)
        self._event(node, f"Node{word}", message, key=reason, is_warning=False)

    def _condition(self, node: str, status: str, reason: str, message: str) -> None:
        now = _now()
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        change = {"status": {"conditions": [condition]}}
        self._api.patch(f"{_path(node)}/status", change, manager=MANAGER, form="strategic-merge")

    def _event(self, node: str, reason: str, message: str, *, key: str, is_warning: bool) -> None:
        """Create the event under a name made of its content, so that repeated calls create only one."""
        now = _now()
        self._create(
            "/api/v1/namespaces/default/events",
            {
                "metadata": {"name": f"holdfast.{_digest(node, reason, key)}", "namespace": "default"},
                # Kubelets use a node's name as its uid, and `kubectl describe` looks for that.
                "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
                "type": "Warning" if is_warning else "Normal",
                "reason": reason,
                "message": message,
                "source": {"component": MANAGER},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )

    def _create(self, path: str, made: object) -> None:
        try:
            self._api.create(path, made)
        except KubeRefusal as refusal:
            if refusal.status != CONFLICT:  # it exists: the answer to an earlier try was lost
                raise

    def _evicted(self, pods: Sequence[KubePod]) -> str:
        """Evict the pods whose owner makes new ones and whose disruption budget allows it."""
        gone, kept = 0, []
        for pod in pods:
            meta = pod.metadata
            if meta.owner is None:
                kept.append(f"{meta.name}, which has no owner to make it again")
            elif meta.namespace in self._policy.keep_namespaces:
                kept.append(f"{meta.name}, whose namespace is kept")
            elif self._is_evicted(pod):
                gone += 1
            else:
                kept.append(f"{meta.name}, by its disruption budget")
        told = f"evicted {wording.many(gone, 'pod')}"
        return f"{told}; left: {'; '.join(kept)}" if kept else told

    def _is_evicted(self, pod: KubePod) -> bool:
        meta = pod.metadata
        try:
            self._api.create(
                f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/eviction",
                {  # without apiVersion: servers differ in it
                    "metadata": {"name": meta.name, "namespace": meta.namespace},
                    "deleteOptions": {"preconditions": {"uid": meta.uid}},
                },
                is_final=frozenset({TOO_MANY}),
            )
        except KubeRefusal as refusal:
            if refusal.status in (GONE, CONFLICT):  # the pod is gone; a conflict: another one has its name
                return True
            if refusal.status != TOO_MANY:
                raise
            return False
        return True

    def _mend_all(self, nodes: Sequence[KubeNode]) -> None:
        """Repair marks. Each request is tried once, because `look` may not wait; after a failure the rest is
        left to the next look.
        """
        at_once = KubernetesScheduler(self._api.impatient(), self._policy)
        with suppress(HoldfastError):
            for node in nodes:
                at_once._mend(node)

    def _mend(self, node: KubeNode) -> None:
        """Complete what a crash left half written, or remove our marks from a node that others restored."""
        name, told = node.metadata.name, node.condition(CONDITION)
        is_told = told is not None and told.status == "True"
        if _is_ours(node):
            incidents = tuple(filter(None, [_mark(node, INCIDENTS)]))
            cause = DrainCause(rule=_mark(node, RULE), why=_mark(node, WHY), incidents=incidents)
            if not is_told or told is None or told.message != _message(_reason(node), cause):
                self._tell_drained(name, _reason(node), cause)
        elif is_told and not _is_taken_over(node):
            if request := _mark(node, REQUEST):
                self._withdraw(request)
            change = self._unmarked(node, is_cordon_kept=True)
            if self._wrote(_path(name), change):
                self._tell_restored(name, _mark(node, REASON), "TakenOver", "by another client")


def viewed(node: KubeNode, *, gpus: int, jobs: tuple[str, ...], booted_ns: int) -> NodeView:
    return NodeView(
        name=node.metadata.name,
        gpus=gpus,
        is_out=_is_out(node),
        reason=_reason(node),
        jobs=jobs,
        since_ns=max(time_ns(node.metadata.creation_timestamp), booted_ns),
        maintenance=_maintenance(node),
    )


def _is_ours(node: KubeNode) -> bool:
    """Whether we took the node out and no other client changed that since. If the server does not record
    field managers, the annotations alone decide.
    """
    return (
        node.spec.unschedulable
        and _mark(node, CORDON_BY) == MANAGER
        and _mark(node, REASON).startswith(REASON_PREFIX)
        and node.cordoned_by in ("", MANAGER)
    )


def _is_taken_over(node: KubeNode) -> bool:
    """Whether another reason was written over ours: it stays."""
    reason = _mark(node, REASON)
    return node.spec.unschedulable and bool(reason) and not reason.startswith(REASON_PREFIX)


def _is_out(node: KubeNode) -> bool:
    ready = node.condition("Ready")
    return node.spec.unschedulable or (ready is not None and ready.status != "True")


def _reason(node: KubeNode) -> str:
    if _is_ours(node) or _is_taken_over(node):
        return _mark(node, REASON)
    if not node.spec.unschedulable:
        ready = node.condition("Ready")
        return (
            "" if ready is None or ready.status == "True" else f"not ready: {ready.message or ready.reason}"
        )
    for prefix in CORDON_PREFIXES:
        if by := _label(node, f"{prefix}/cordon-by"):
            return f"{by}: {_label(node, f'{prefix}/cordon-reason') or 'no reason given'}"
    for name in FOREIGN_REASONS:
        if reason := _mark(node, name):
            return reason
    return f"cordoned by {node.cordoned_by}" if node.cordoned_by else ""


def _maintenance(node: KubeNode) -> str:
    """What else holds the node, such as NVSentinel; empty if nothing does."""
    for name in OPT_OUTS:
        if _label(node, name) == "false":
            return f"{name}=false"
    state = _label(node, STATE_LABEL)
    return f"NVSentinel: {state}" if state and not _mark(node, REQUEST) else ""


def _placed(pods: Sequence[KubePod]) -> Iterator[PlacedJob]:
    found: dict[str, list[KubePod]] = {}
    for pod in pods:
        if pod.job and pod.spec.node_name:
            found.setdefault(pod.job, []).append(pod)
    for job, members in found.items():
        named = (pod.metadata.labels or {} for pod in members)
        run = next((labels[RUN_LABEL] for labels in named if labels.get(RUN_LABEL)), "")
        nodes = dict.fromkeys(pod.spec.node_name for pod in members)
        yield PlacedJob(job=job, name=run or job.partition("/")[2], nodes=tuple(nodes))


def _taint(text: str) -> KubeTaint | None:
    """Parse `KEY=VALUE:EFFECT`, as kubectl writes it."""
    pair, _, effect = text.partition(":")
    key, _, value = pair.partition("=")
    return KubeTaint(key=key, value=value, effect=effect) if text else None


def _message(reason: str, cause: DrainCause) -> str:
    incidents = f" - Incidents: {', '.join(cause.incidents)}" if cause.incidents else ""
    whole = f"[{cause.rule or 'unknown'}] {reason}{incidents}{f' - {cause.why}' if cause.why else ''}"
    return wording.short(whole, MESSAGE_CHARS_MAX)


def _mark(node: KubeNode, name: str) -> str:
    return (node.metadata.annotations or {}).get(name, "")


def _label(node: KubeNode, name: str) -> str:
    return (node.metadata.labels or {}).get(name, "")


def _name(node: str) -> str:
    if not _NODE.fullmatch(node):
        raise InputError(f"{node!r} is not the name of a node.", hint="Nothing was done with it.")
    return node


def _path(node: str) -> str:
    return f"/api/v1/nodes/{_name(node)}"


def _camel(rule: str) -> str:
    """`gpu-fault` in the form of a condition's reason: `GpuFault`."""
    return "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", rule))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _busy(node: str) -> HoldfastError:
    return HoldfastError(f"Other clients keep changing {node}.", hint="It is tried again later.")
