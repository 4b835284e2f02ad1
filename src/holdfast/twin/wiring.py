"""The simulated cluster as a topology: the same graph that a file or discovery gives of a real one."""

from holdfast.topology.graph import Builder, Topology
from holdfast.topology.names import member_name
from holdfast.twin.cluster import Layout, circuit_name, gpu_name, name, port_name, spine_name
from holdfast.twin.pools import spine_of
from holdfast.twin.world import Cast

PREFILL, DECODE, ROUTER = "prefill", "decode", "router"


def topology_of(casting: Cast, run: str) -> Topology:
    """All of the cluster, with the run on it; spares are there too, and nothing depends on them yet."""
    layout, builder = casting.layout, Builder()
    _plant(builder, layout)
    _fabric(builder, layout)
    builder.add(run, "run")
    for mount in range(layout.count("mount")):
        builder.add(name("mount", mount), "mount")
    for node in range(layout.nodes):
        _node(builder, layout, node)
    for node in (*casting.run, *casting.spare):
        _member(builder, layout, run, node)
    for node in casting.run:
        builder.depends(run, member_name(run, name("node", node)))
    if len(casting.prefill):
        _pools(builder, casting, run)
    return builder.build()


def _plant(builder: Builder, layout: Layout) -> None:
    for circuit, loops in enumerate(layout.circuits()):
        builder.add(circuit_name(circuit), "circuit")
        for loop in loops:
            builder.add(name("loop", loop), "loop")
            builder.depends(name("loop", loop), circuit_name(circuit))
    for rack in range(layout.count("rack")):
        first = layout.nodes_of("rack", rack)[0]
        shelf = name("shelf", layout.number("shelf", first))
        builder.add(name("rack", rack), "rack")
        builder.add(shelf, "shelf")
        builder.depends(name("rack", rack), shelf)
        builder.depends(name("rack", rack), name("loop", layout.number("loop", first)))


def _fabric(builder: Builder, layout: Layout) -> None:
    for spine in range(layout.spines_per_pod):
        builder.add(spine_name(spine), "spine")
    for leaf in range(layout.count("leaf")):
        builder.add(name("leaf", leaf), "leaf")


def _node(builder: Builder, layout: Layout, node: int) -> None:
    host = name("node", node)
    builder.add(host, "node")
    builder.depends(host, name("rack", layout.number("rack", node)))
    leaf = name("leaf", layout.number("leaf", node))
    for gpu in range(layout.gpus_per_node):
        builder.add(gpu_name(node, gpu), "gpu")
        builder.depends(gpu_name(node, gpu), host)
        builder.add(port_name(node, gpu), "port")
        builder.depends(port_name(node, gpu), leaf)
        builder.depends(port_name(node, gpu), host)


def _member(builder: Builder, layout: Layout, run: str, node: int) -> None:
    member = member_name(run, name("node", node))
    builder.add(member, "member")
    builder.depends(member, name("mount", layout.number("mount", node)))
    for gpu in range(layout.gpus_per_node):
        builder.depends(member, gpu_name(node, gpu))
        builder.depends(member, port_name(node, gpu))


def _pools(builder: Builder, casting: Cast, run: str) -> None:
    """Two pools, and between each pair of their engines a path over both nodes' ports and one spine."""
    layout = casting.layout
    spines = spine_of(layout)
    for pool in (PREFILL, DECODE):
        builder.add(pool, "pool")
        builder.depends(run, pool)
    builder.add(ROUTER, "router")
    for pool, nodes in ((PREFILL, casting.prefill), (DECODE, casting.decode)):
        for node in nodes:
            builder.depends(pool, name("node", node))
    for node in casting.decode:
        builder.depends(name("node", node), ROUTER, why="it gets the requests that the router gives it")
    for one, source in enumerate(casting.prefill):
        for other, target in enumerate(casting.decode):
            link = f"{name('node', source)}>{name('node', target)}"
            builder.add(link, "link")
            builder.depends(DECODE, link)
            builder.depends(link, spine_name(int(spines[one, other])))
            for node in (source, target):
                for gpu in range(layout.gpus_per_node):
                    builder.depends(link, port_name(node, gpu))
