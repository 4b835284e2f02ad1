"""The simulated cluster as a topology file, as a user would write it: the graph that a diagnosis needs."""

from collections.abc import Iterator

import yaml

from holdfast.drills.pools import spine_of
from holdfast.drills.world import Cast
from holdfast.topology import file
from holdfast.topology.graph import Topology
from holdfast.topology.names import link_name
from holdfast.twin.cluster import Domain, Layout, circuit_name, name, spine_name

PREFILL, DECODE, ROUTER = "prefill", "decode", "router"


def topology_of(casting: Cast, run: str) -> Topology:
    """The whole cluster with the run on it; nothing depends on the spares."""
    page = file.read(topology_file(casting, run))
    return page.described(page.survey).topology


def topology_file(casting: Cast, run: str) -> str:
    layout = casting.layout
    node = {"gpus": layout.gpus_per_node, "ports": f"mlx5_[0-{layout.gpus_per_node - 1}]"}
    plan: dict[str, object] = {
        "nodes": {_names("node", range(layout.nodes)): node},
        "racks": {_all(layout, "rack"): f"{layout.nodes_per_rack} each"},
        "shelves": {_all(layout, "shelf"): "1 each"},
        "loops": {_all(layout, "loop"): f"{layout.racks_per_loop} each"},
        "circuits": {
            circuit_name(circuit): _names("loop", loops) for circuit, loops in enumerate(layout.circuits())
        },
        "leaves": {_all(layout, "leaf"): f"{layout.nodes_per_leaf} each"},
        "mounts": {_all(layout, "mount"): f"{layout.nodes_per_mount} each"},
        "runs": {run: {"nodes": _names("node", casting.run)}},
    }
    if len(casting.prefill):
        plan["runs"] = {run: {"nodes": _names("node", casting.run), "pools": [PREFILL, DECODE]}}
        plan["pools"] = {
            PREFILL: {"engines": _names("node", casting.prefill)},
            DECODE: {"engines": _names("node", casting.decode), "receives_from": PREFILL},
        }
        plan["subjects"] = dict(_paths(casting))
    return yaml.safe_dump(plan, sort_keys=False)


def _all(layout: Layout, domain: Domain) -> str:
    return _names(domain, range(layout.count(domain)))


def _names(domain: Domain, numbers: range) -> str:
    """A host list of neighbours."""
    first, last = name(domain, numbers[0]), name(domain, numbers[-1])
    stem = first.rstrip("0123456789")
    return first if first == last else f"{stem}[{first.removeprefix(stem)}-{last.removeprefix(stem)}]"


def _paths(casting: Cast) -> Iterator[tuple[str, dict[str, str]]]:
    """Dependencies that no grouping gives: the spine between two engines, and the router before decoders."""
    spines = spine_of(casting.layout)
    for spine in range(casting.layout.spines_per_pod):
        yield spine_name(spine), {"kind": "spine"}
    for one, source in enumerate(casting.prefill):
        for other, target in enumerate(casting.decode):
            link = link_name(name("node", source), name("node", target))
            yield link, {"kind": "link", "depends_on": spine_name(int(spines[one, other]))}
    yield ROUTER, {"kind": "router"}
    for node in casting.decode:
        yield name("node", node), {"kind": "node", "depends_on": ROUTER}
