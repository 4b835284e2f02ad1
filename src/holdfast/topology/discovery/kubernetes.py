"""Kubernetes: nodes, their GPUs, and racks, switches and NVLink domains from their labels."""

import re
from itertools import pairwise

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.topology.file_format import GPUS_PER_NODE_MAX
from holdfast.topology.survey import Survey

SOURCE = "Kubernetes"

RACK_LABEL = "topology.kubernetes.io/rack"
"""Not one of Kubernetes' own labels, but the most common one for racks."""
ZONE_LABEL = "topology.kubernetes.io/zone"
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
GPU_RESOURCE = "nvidia.com/gpu"
DOMAIN_LABELS = ("nvidia.com/gpu.clique", "network.topology.nvidia.com/accelerator")
"""Labels of NVLink domains: nodes with the same value share one. NVIDIA's GPU operator and Topograph set
them."""
TIER_LABELS = tuple(f"network.topology.nvidia.com/{tier}" for tier in ("leaf", "spine", "core"))
_TIER_NUMBERED = re.compile(r"fabric\.topograph\.run/tier-([0-9]+)")
"""The labels of Topograph 1.0: the switch at tier 0 is the node's own."""


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    labels: dict[str, str] = {}


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    capacity: dict[str, str] = {}


class _Node(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata = _Metadata()
    status: _Status = _Status()


class _NodeList(msgspec.Struct, frozen=True, kw_only=True):
    items: list[_Node] = []


def survey(nodes: bytes) -> Survey:
    """nodes: the output of `kubectl get nodes -o json`."""
    try:
        listed = msgspec.json.decode(nodes, type=_NodeList)
    except UNDECODABLE as error:
        raise InputError(
            f"The list of nodes is not understood: {error}.",
            hint="Write it with `kubectl get nodes -o json`.",
        ) from None
    found = Survey(SOURCE)
    for node in listed.items:
        if node.metadata.name:
            found.kinds[node.metadata.name] = "node"
            _add_gpus(found, node)
            _add_places(found, node.metadata.name, node.metadata.labels)
            _add_switches(found, node.metadata.name, node.metadata.labels)
    return found


def _add_gpus(found: Survey, node: _Node) -> None:
    """Prefer the driver's count: the allocatable number falls when a GPU is taken out of service."""
    count = node.metadata.labels.get(GPU_COUNT_LABEL) or node.status.capacity.get(GPU_RESOURCE, "")
    if count.isdecimal() and 0 < int(count) <= GPUS_PER_NODE_MAX:
        found.add_gpus(node.metadata.name, map(str, range(int(count))))


def _add_places(found: Survey, node: str, labels: dict[str, str]) -> None:
    rack, zone = labels.get(RACK_LABEL), labels.get(ZONE_LABEL)
    if rack:
        found.place(node, "rack", rack)
    if zone:
        found.place(rack or node, "other", zone)
    for label in DOMAIN_LABELS:
        if domain := labels.get(label):
            found.place(node, "link", domain)
            return


def _add_switches(found: Survey, node: str, labels: dict[str, str]) -> None:
    """From the node outwards; a tier that is missing is skipped."""
    numbered = {
        int(tier[1]): value for label, value in labels.items() if (tier := _TIER_NUMBERED.fullmatch(label))
    }
    switches = [numbered[tier] for tier in sorted(numbered)] or [
        labels[label] for label in TIER_LABELS if labels.get(label)
    ]
    if not switches:
        return
    found.place(node, "leaf", switches[0])
    for below, above in pairwise(switches):
        found.place(below, "spine", above)
