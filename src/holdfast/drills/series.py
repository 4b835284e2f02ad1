"""The series of each scope: who they are about, under which labels, and which machine is scraped for them.

Labels are those that the exporters give, and the `instance` that Prometheus adds. Nothing here changes with
time.
"""

from collections.abc import Callable
from itertools import product

import msgspec
import numpy as np

from holdfast.drills.levers import Indices
from holdfast.drills.plant import SUPPLIES_PER_SHELF
from holdfast.drills.readings import ever_members
from holdfast.drills.world import History
from holdfast.signals.catalogue import Scope
from holdfast.signals.frame import Labels
from holdfast.twin.cluster import gpu_name, name, port_name

MODEL_NAME = "NVIDIA H100 80GB HBM3"
SERVED_MODEL = "rollout-70b"
CLOCK_EVENTS = ("sw_thermal", "hw_power_brake")
NFS_OPERATIONS = ("READ", "WRITE")
NOT_A_NODE = -1
PCI_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
"""Where the eight GPUs of an HGX board are found; further ones come after them."""
NO_XID = {"err_code": "0", "err_msg": "No Error"}


class Series(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Some series, all of one scope. node: whose exporters are asked; NOT_A_NODE: somebody else's."""

    subjects: tuple[str, ...]
    labels: tuple[Labels, ...]
    node: Indices


def series(history: History, scope: Scope) -> Series:
    rows = _MAKERS[scope](history)
    subjects, labels, nodes = zip(*rows, strict=True) if rows else ((), (), ())
    return Series(subjects=subjects, labels=labels, node=np.array(nodes, np.int64))


_Row = tuple[str, Labels, int]


def _places(history: History) -> list[tuple[int, int]]:
    return list(product(range(history.layout.nodes), range(history.layout.gpus_per_node)))


def _bus(gpu: int) -> int:
    return PCI_BUSES[gpu] if gpu < len(PCI_BUSES) else 0xE0 + gpu


def _gpu_labels(history: History, node: int, gpu: int) -> Labels:
    host = name("node", node)
    labels = {
        "gpu": str(gpu),
        "UUID": f"GPU-{node:08x}-{gpu:04x}-4e00-8000-{node * 16 + gpu:012x}",
        "pci_bus_id": f"00000000:{_bus(gpu):02X}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": MODEL_NAME,
        "hostname": host,
        "instance": f"{host}:9400",
    }
    return {**labels, "hpc_job": history.run} if node in history.cast.run else labels


def _gpus(history: History) -> list[_Row]:
    return [(gpu_name(node, gpu), _gpu_labels(history, node, gpu), node) for node, gpu in _places(history)]


def _clock_events(history: History) -> list[_Row]:
    return [
        (subject, {**labels, "clock_event": event}, node)
        for subject, labels, node in _gpus(history)
        for event in CLOCK_EVENTS
    ]


def _xids(history: History) -> list[_Row]:
    gpus = _gpus(history)
    healthy = [(subject, {**labels, **NO_XID}, node) for subject, labels, node in gpus]
    broken = [(gpus[xid.gpu], {"err_code": str(xid.code), "err_msg": xid.message}) for xid in history.xids]
    return healthy + [(subject, {**labels, **error}, node) for (subject, labels, node), error in broken]


def _ports(history: History) -> list[_Row]:
    return [
        (port_name(node, gpu), {"device": f"mlx5_{gpu}", "port": "1", "instance": _node_exporter(node)}, node)
        for node, gpu in _places(history)
    ]


def _pci(history: History) -> list[_Row]:
    return [
        (
            gpu_name(node, gpu),
            {
                "segment": "0000",
                "bus": f"{_bus(gpu):02x}",
                "device": "00",
                "function": "0",
                "instance": _node_exporter(node),
            },
            node,
        )
        for node, gpu in _places(history)
    ]


def _node_exporter(node: int) -> str:
    return f"{name('node', node)}:9100"


def _nodes(history: History) -> list[_Row]:
    return [
        (name("node", node), {"instance": _node_exporter(node)}, node) for node in range(history.layout.nodes)
    ]


def _nfs(history: History) -> list[_Row]:
    layout = history.layout
    return [
        (
            name("node", node),
            {
                "export": f"{mount}:/export",
                "mountaddr": mount,
                "operation": operation,
                "protocol": "tcp",
                "instance": _node_exporter(node),
            },
            node,
        )
        for node in range(layout.nodes)
        for mount in [name("mount", layout.number("mount", node))]
        for operation in NFS_OPERATIONS
    ]


def _loops(history: History) -> list[_Row]:
    names = [name("loop", loop) for loop in range(history.layout.count("loop"))]
    return [(loop, {"cdu": loop, "protocol": "modbus"}, NOT_A_NODE) for loop in names]


def _connectors(history: History) -> list[_Row]:
    place = "/redfish/v1/ThermalEquipment/CDUs/{}/SecondaryCoolantConnectors/1"
    return [(loop, {"@odata.id": place.format(loop)}, NOT_A_NODE) for loop, _, _ in _loops(history)]


def _supplies(history: History) -> list[_Row]:
    return [
        (
            shelf,
            {
                "resource": "power_supply",
                "chassis_id": shelf,
                "power_supply": f"PSU {supply}",
                "power_supply_id": str(supply),
            },
            NOT_A_NODE,
        )
        for shelf in (name("shelf", number) for number in range(history.layout.count("shelf")))
        for supply in range(SUPPLIES_PER_SHELF)
    ]


def _uplinks(history: History) -> list[_Row]:
    layout = history.layout
    return [
        (
            name("leaf", leaf),
            {
                "guid": f"0x{0xE41D2D0300000000 + leaf:016x}",
                "switch": name("leaf", leaf),
                "port": str(layout.nodes_per_leaf * layout.gpus_per_node + spine + 1),
            },
            NOT_A_NODE,
        )
        for leaf, spine in product(range(layout.count("leaf")), range(layout.spines_per_pod))
    ]


def _slurm(history: History) -> list[_Row]:
    return [("slurm", {}, NOT_A_NODE)]


def _run(history: History) -> list[_Row]:
    return [(history.run, {"run": history.run}, NOT_A_NODE)]


def _members(history: History) -> list[_Row]:
    names = [(name("node", int(node)), int(node)) for node in ever_members(history)]
    return [(node, {"run": history.run, "member": node, "node": node}, number) for node, number in names]


def _decoders(history: History) -> list[_Row]:
    return [
        (
            name("node", node),
            {
                "model_name": SERVED_MODEL,
                "engine": str(index),
                "instance": f"{name('node', node)}:8000",
            },
            node,
        )
        for index, node in enumerate(history.cast.decode)
    ]


def _workers(history: History) -> list[_Row]:
    return [
        (
            name("node", node),
            {"worker_id": f"{0x5EED0000 + index:x}", "dp_rank": "0", "worker_type": "decode"},
            node,
        )
        for index, node in enumerate(history.cast.decode)
    ]


def _pairs(history: History) -> list[_Row]:
    pairs = product(history.cast.prefill, history.cast.decode)
    return [
        (f"{source}>{target}", {"source": source, "target": target}, NOT_A_NODE)
        for source, target in ((name("node", one), name("node", other)) for one, other in pairs)
    ]


_MAKERS: dict[Scope, Callable[[History], list[_Row]]] = {
    "gpu": _gpus,
    "clock_event": _clock_events,
    "xid": _xids,
    "port": _ports,
    "pci": _pci,
    "node": _nodes,
    "nfs": _nfs,
    "loop": _loops,
    "connector": _connectors,
    "supply": _supplies,
    "uplink": _uplinks,
    "slurm": _slurm,
    "run": _run,
    "member": _members,
    "decode": _decoders,
    "worker": _workers,
    "pair": _pairs,
}
