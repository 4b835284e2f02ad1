"""The parts of Kubernetes objects that control needs, as the API server sends them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.wording.units import SECOND_NS

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
ENDED = frozenset({"Succeeded", "Failed"})
_NODES_OWN = frozenset({"DaemonSet", "Node"})
"""Owners of pods that belong to the node and leave with it."""


class _KubeStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class KubeOwner(_KubeStruct, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class KubeManaged(_KubeStruct, frozen=True, kw_only=True):
    """The fields that a client was the last to set."""

    manager: str = ""
    fields: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")

    @property
    def has_cordon(self) -> bool:
        spec = (self.fields or {}).get("f:spec")
        return isinstance(spec, dict) and "f:unschedulable" in spec


class KubeMeta(_KubeStruct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[KubeOwner, ...] | None = None
    managed_fields: tuple[KubeManaged, ...] | None = None

    @property
    def owner(self) -> KubeOwner | None:
        """The controller that makes another object when this one is gone."""
        return next((one for one in self.owner_references or () if one.controller), None)


class KubeTaint(_KubeStruct, frozen=True, kw_only=True, omit_defaults=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class KubeCondition(_KubeStruct, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class KubeLeaseSpec(_KubeStruct, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class KubeLease(_KubeStruct, frozen=True, kw_only=True):
    metadata: KubeMeta = KubeMeta()
    spec: KubeLeaseSpec = KubeLeaseSpec()


class KubeNodeSpec(_KubeStruct, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[KubeTaint, ...] | None = None


class KubeNodeStatus(_KubeStruct, frozen=True, kw_only=True):
    capacity: dict[str, str] | None = None
    conditions: tuple[KubeCondition, ...] | None = None


class KubeNode(_KubeStruct, frozen=True, kw_only=True):
    metadata: KubeMeta = KubeMeta()
    spec: KubeNodeSpec = KubeNodeSpec()
    status: KubeNodeStatus = KubeNodeStatus()

    @property
    def gpus(self) -> int:
        """The GPUs that the driver counted, else the capacity: allocatable GPUs fall if one is broken."""
        counted = (self.metadata.labels or {}).get(GPU_COUNT_LABEL, "")
        return _count(counted) or _gpus(self.status.capacity)

    @property
    def cordoned_by(self) -> str:
        """The client that was the last to set `unschedulable`; empty if the server does not record it."""
        managed = self.metadata.managed_fields or ()
        return next((one.manager for one in managed if one.has_cordon), "")

    def condition(self, kind: str) -> KubeCondition | None:
        return next((one for one in self.status.conditions or () if one.type == kind), None)


class KubeResources(_KubeStruct, frozen=True, kw_only=True):
    limits: dict[str, str | int] | None = None


class KubeContainer(_KubeStruct, frozen=True, kw_only=True):
    resources: KubeResources = KubeResources()


class KubePodSpec(_KubeStruct, frozen=True, kw_only=True):
    node_name: str = ""
    containers: tuple[KubeContainer, ...] = ()


class KubePodStatus(_KubeStruct, frozen=True, kw_only=True):
    phase: str = ""


class KubePod(_KubeStruct, frozen=True, kw_only=True):
    metadata: KubeMeta = KubeMeta()
    spec: KubePodSpec = KubePodSpec()
    status: KubePodStatus = KubePodStatus()

    @property
    def job(self) -> str:
        """`NAMESPACE/NAME` of the workload that the pod belongs to, if that is a job or uses GPUs; else
        empty. Pods of the node itself, such as those of a DaemonSet, belong to none.
        """
        meta, owner = self.metadata, self.metadata.owner
        if self.status.phase in ENDED or MIRROR_ANNOTATION in (meta.annotations or {}):
            return ""
        if owner is not None and owner.kind in _NODES_OWN:
            return ""
        if (owner is None or owner.kind != "Job") and not self._gpus:
            return ""
        whole = (meta.labels or {}).get(JOBSET_LABEL, "")
        return f"{meta.namespace}/{whole or (owner.name if owner else meta.name)}"

    @property
    def _gpus(self) -> int:
        return sum(_gpus(one.resources.limits) for one in self.spec.containers)


class KubeEvent(_KubeStruct, frozen=True, kw_only=True):
    """An event of an object, as kubelets report it."""

    involved_object: KubeMeta = KubeMeta()
    last_timestamp: str | None = None


class KubeListMeta(msgspec.Struct, frozen=True, kw_only=True):
    more: str = msgspec.field(default="", name="continue")


Item = TypeVar("Item")


class KubePage(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    items: tuple[Item, ...] | None = None
    metadata: KubeListMeta = KubeListMeta()


class KubeStatus(_KubeStruct, frozen=True, kw_only=True):
    """The API server's refusal."""

    message: str = ""
    reason: str = ""


def time_ns(stamp: str | None) -> int:
    """The time of a stamp; 0 if it is missing or cannot be read."""
    try:
        return int(datetime.fromisoformat(stamp or "").timestamp()) * SECOND_NS
    except (ValueError, OverflowError):
        return 0


def without_taint(taints: tuple[KubeTaint, ...] | None, ours: KubeTaint) -> Iterator[KubeTaint]:
    return (one for one in taints or () if (one.key, one.effect) != (ours.key, ours.effect))


def _gpus(resources: "dict[str, str] | dict[str, str | int] | None") -> int:
    return max((_count(str((resources or {}).get(name, ""))) for name in GPU_RESOURCES), default=0)


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
