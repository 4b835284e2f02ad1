"""Kubernetes: nodes are cordoned and uncordoned, with marks that say it was us, why and for which incident.

A node is ours while our client was the last to set `unschedulable` and the annotation with the reason is as
we wrote it. Cordon and annotations are one write, under the version of the node that was looked at: nobody
can come in between. Everything that is written has a name or a content of its own, so that to write it again
after a lost answer changes nothing.
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
"""Who writes, as the API server notes it for every field."""
CONDITION = "HoldfastDrained"
"""True: something is wrong with the node, and it is out for that; as with all conditions but `Ready`."""
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
"""A node on which one of these is `false` is left to people by its site."""
STATE_LABEL = "dgxc.nvidia.com/nvsentinel-state"
"""How far NVSentinel is with a node; gone when it has done."""
CORDON_PREFIXES = ("k8saas.nvidia.com", "k8s.nvidia.com")
FOREIGN_REASONS = ("nodeset.slinky.slurm.net/node-cordon-reason",)
REQUESTS = "/apis/nvsentinel.dgxc.nvidia.com/v1/maintenancerequests"

TRIES_MAX = 8
"""A write that comes after somebody else's is looked at and tried again."""
ANNOTATION_CHARS_MAX = 1_000
MESSAGE_CHARS_MAX = 900
CONFLICT, GONE, TOO_MANY = 409, 404, 429
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_JOB = re.compile(rf"({_NODE.pattern})/({_NODE.pattern})")


class KubernetesScheduler:
    """gpus_per_node: where no node tells of GPUs. is_acting: whether marks may be put right by a look."""

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

    # -- what is seen --------------------------------------------------------------------------------

    def look(self, now_ns: int) -> MachinesView:
        """Marks of ours that do not fit what is seen are put right on the way, by who acts."""
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
        """Kubelets tell of a boot by an event, which is kept for an hour."""
        chosen = "involvedObject.kind=Node,reason=Rebooted"
        found: dict[str, int] = {}
        for event in self._api.items("/api/v1/namespaces/default/events", KubeEvent, fieldSelector=chosen):
            name = event.involved_object.name
            found[name] = max(found.get(name, 0), time_ns(event.last_timestamp))
        return found

    # -- what is done --------------------------------------------------------------------------------

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
        """Their pods on this node alone: the jobs make others elsewhere, and go on where they can."""
        chosen = f"spec.nodeName={_name(node)}"
        pods = self._api.items("/api/v1/pods", KubePod, is_patient=True, fieldSelector=chosen)
        return self._evicted([pod for pod in pods if pod.job in jobs])

    def resume(self, node: str, reason: str) -> None:
        path = _path(node)
        for _ in range(TRIES_MAX):
            seen = self._node(node)
            if not _is_ours(seen) or _reason(seen) != reason:
                raise NotOurs(f"{node} is not out by us any more: {_reason(seen) or 'it has no reason'}.")
            request, state = _mark(seen, REQUEST), _label(seen, STATE_LABEL)
            if state and not request:
                raise NotOurs(f"{node} is not out by us alone: NVSentinel is at it ({state}).")
            # Nobody may be told to reboot a node that has jobs again: the order goes before the cordon does.
            if request:
                self._withdraw(request)
            # Where we asked NVSentinel to mend the node, it uncordons it, unless it has reasons of its own.
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
        """Have NVSentinel reboot a node that is out by us; in words, what was asked for."""
        seen = self._node(node)
        if not _is_ours(seen):
            raise NotOurs(f"{node} is not out by us: {_reason(seen) or 'it has no reason'}.")
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
        # The node says so first: what NVSentinel does then is known to be for us, also after a crash.
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

    # -- how -----------------------------------------------------------------------------------------

    def _node(self, node: str) -> KubeNode:
        try:
            return self._api.get(_path(node), KubeNode)
        except KubeRefusal as refusal:
            if refusal.status != GONE:
                raise
        raise HoldfastError(f"Kubernetes has no node {node}.", hint="`kubectl get nodes` lists them.")

    def _wrote(self, path: str, change: dict[str, Any]) -> bool:
        """False where somebody else wrote since it was looked at."""
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
        """Named by what it is about, so that there is one of it however often it is told."""
        now = _now()
        self._create(
            "/api/v1/namespaces/default/events",
            {
                "metadata": {"name": f"holdfast.{_digest(node, reason, key)}", "namespace": "default"},
                # Kubelets give a node's name for its uid, and `kubectl describe` looks for that.
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
            if refusal.status != CONFLICT:  # there already, by an answer that was lost
                raise

    def _evicted(self, pods: Sequence[KubePod]) -> str:
        """Those that somebody makes again, and whose disruption budget lets them go."""
        gone, kept = 0, []
        for pod in pods:
            meta = pod.metadata
            if meta.owner is None:
                kept.append(f"{meta.name}, which nobody would make again")
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
                {  # of the version that the server has: it differs
                    "metadata": {"name": meta.name, "namespace": meta.namespace},
                    "deleteOptions": {"preconditions": {"uid": meta.uid}},
                },
                is_final=frozenset({TOO_MANY}),
            )
        except KubeRefusal as refusal:
            if refusal.status in (GONE, CONFLICT):  # it has gone by itself, and another has its name
                return True
            if refusal.status != TOO_MANY:
                raise
            return False
        return True

    def _mend_all(self, nodes: Sequence[KubeNode]) -> None:
        """Each is tried once: a look may not wait, and where one fails the rest waits for the next look."""
        at_once = KubernetesScheduler(self._api.impatient(), self._policy)
        with suppress(HoldfastError):
            for node in nodes:
                at_once._mend(node)

    def _mend(self, node: KubeNode) -> None:
        """What a crash left half told, or what is left of us on a node that somebody else restored."""
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
                self._tell_restored(name, _mark(node, REASON), "TakenOver", "by somebody else")


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
    """Out by us, and nobody has said otherwise since. Servers that do not note who writes are believed."""
    return (
        node.spec.unschedulable
        and _mark(node, CORDON_BY) == MANAGER
        and _mark(node, REASON).startswith(REASON_PREFIX)
        and node.cordoned_by in ("", MANAGER)
    )


def _is_taken_over(node: KubeNode) -> bool:
    """Somebody wrote a reason of their own over ours: their words stay."""
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
    """Who else has the node in hands; empty: nobody."""
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
    """`KEY=VALUE:EFFECT`, as kubectl writes it."""
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
    """`gpu-fault` as conditions have it: `GpuFault`."""
    return "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", rule))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _busy(node: str) -> HoldfastError:
    return HoldfastError(f"{node} is changed by others all the time.", hint="It is tried again later.")
