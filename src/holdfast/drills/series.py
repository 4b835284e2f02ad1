"""The series of each scope: their subjects, their labels, and the machine that is scraped for them.

Labels are the exporters' own, and the `instance` that Prometheus adds. Nothing here changes with time.
"""

from collections.abc import Callable, Iterator
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
"""The PCI buses of the eight GPUs of an HGX board; further GPUs come after them."""
NO_XID = {"err_code": "0", "err_msg": "No Error"}


class Series(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Some series, all of one scope. node: the node whose exporter has it; NOT_A_NODE: another exporter."""

    subjects: tuple[str, ...]
    labels: tuple[Labels, ...]
    node: Indices


def series(history: History, scope: Scope) -> Series:
    rows = list(_MAKERS[scope](history))
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


def _gpus(history: History) -> Iterator[_Row]:
    for node, gpu in _places(history):
        yield gpu_name(node, gpu), _gpu_labels(history, node, gpu), node


def _clock_events(history: History) -> Iterator[_Row]:
    for subject, labels, node in _gpus(history):
        for event in CLOCK_EVENTS:
            yield subject, {**labels, "clock_event": event}, node


def _xids(history: History) -> Iterator[_Row]:
    gpus = list(_gpus(history))
    for subject, labels, node in gpus:
        yield subject, {**labels, **NO_XID}, node
    for xid in history.xids:
        subject, labels, node = gpus[xid.gpu]
        yield subject, {**labels, "err_code": str(xid.code), "err_msg": xid.message}, node


def _ports(history: History) -> Iterator[_Row]:
    for node, gpu in _places(history):
        labels = {"device": f"mlx5_{gpu}", "port": "1", "instance": _node_exporter(node)}
        yield port_name(node, gpu), labels, node


def _pci(history: History) -> Iterator[_Row]:
    for node, gpu in _places(history):
        labels = {"segment": "0000", "bus": f"{_bus(gpu):02x}", "device": "00", "function": "0"}
        yield gpu_name(node, gpu), {**labels, "instance": _node_exporter(node)}, node


def _node_exporter(node: int) -> str:
    return f"{name('node', node)}:9100"


def _nodes(history: History) -> Iterator[_Row]:
    for node in range(history.layout.nodes):
        yield name("node", node), {"instance": _node_exporter(node)}, node


def _nfs(history: History) -> Iterator[_Row]:
    for node, operation in product(range(history.layout.nodes), NFS_OPERATIONS):
        mount = name("mount", history.layout.number("mount", node))
        labels = {"export": f"{mount}:/export", "mountaddr": mount, "operation": operation}
        yield name("node", node), {**labels, "protocol": "tcp", "instance": _node_exporter(node)}, node


def _loops(history: History) -> Iterator[_Row]:
    for number in range(history.layout.count("loop")):
        loop = name("loop", number)
        yield loop, {"cdu": loop, "protocol": "modbus"}, NOT_A_NODE


def _connectors(history: History) -> Iterator[_Row]:
    place = "/redfish/v1/ThermalEquipment/CDUs/{}/SecondaryCoolantConnectors/1"
    for loop, _, _ in _loops(history):
        yield loop, {"@odata.id": place.format(loop)}, NOT_A_NODE


def _supplies(history: History) -> Iterator[_Row]:
    for number, supply in product(range(history.layout.count("shelf")), range(SUPPLIES_PER_SHELF)):
        shelf = name("shelf", number)
        labels = {"resource": "power_supply", "chassis_id": shelf, "power_supply": f"PSU {supply}"}
        yield shelf, {**labels, "power_supply_id": str(supply)}, NOT_A_NODE


def _uplinks(history: History) -> Iterator[_Row]:
    layout = history.layout
    for number, spine in product(range(layout.count("leaf")), range(layout.spines_per_pod)):
        leaf, guid = name("leaf", number), f"0x{0xE41D2D0300000000 + number:016x}"
        port = layout.nodes_per_leaf * layout.gpus_per_node + spine + 1
        yield leaf, {"guid": guid, "switch": leaf, "port": str(port)}, NOT_A_NODE


def _slurm(history: History) -> Iterator[_Row]:
    yield "slurm", {}, NOT_A_NODE


def _run(history: History) -> Iterator[_Row]:
    yield history.run, {"run": history.run}, NOT_A_NODE


def _members(history: History) -> Iterator[_Row]:
    for number in ever_members(history).tolist():
        node = name("node", number)
        yield node, {"run": history.run, "member": node, "node": node}, number


def _decoders(history: History) -> Iterator[_Row]:
    for index, number in enumerate(history.cast.decode):
        node = name("node", number)
        yield node, {"model_name": SERVED_MODEL, "engine": str(index), "instance": f"{node}:8000"}, number


def _workers(history: History) -> Iterator[_Row]:
    for index, node in enumerate(history.cast.decode):
        labels = {"worker_id": f"{0x5EED0000 + index:x}", "dp_rank": "0", "worker_type": "decode"}
        yield name("node", node), labels, node


def _pairs(history: History) -> Iterator[_Row]:
    for one, other in product(history.cast.prefill, history.cast.decode):
        source, target = name("node", one), name("node", other)
        yield f"{source}>{target}", {"source": source, "target": target}, NOT_A_NODE


_MAKERS: dict[Scope, Callable[[History], Iterator[_Row]]] = {
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
