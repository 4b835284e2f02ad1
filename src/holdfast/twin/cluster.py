"""The simulated cluster's shape: the rack, cooling loop, power shelf, leaf switch and mount of each node.

Everything is arithmetic on node numbers, so a cluster of 100,000 GPUs costs no more memory than one of eight,
and the nodes that share a domain always have consecutive numbers.
"""

from typing import Literal

import msgspec

Domain = Literal["node", "rack", "shelf", "loop", "leaf", "pod", "mount", "cluster"]
"""What nodes can share, and fail with: only themselves, a rack, its power shelf, a cooling loop, a leaf
switch, a pod of leaves under the same spines, a storage mount, everything."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs, nodes and switches share each domain.

    The defaults are a liquid-cooled cluster of eight-GPU nodes; a preset has its own figures.
    racks_per_loop: racks behind one cooling distribution unit (CDU). nodes_per_mount: clients of one filer.
    """

    gpus: int
    gpus_per_node: int = 8
    nodes_per_rack: int = 4
    racks_per_loop: int = 8
    nodes_per_leaf: int = 16
    leaves_per_pod: int = 8
    spines_per_pod: int = 4
    nodes_per_mount: int = 256

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    def circuits(self) -> tuple[range, ...]:
        """The loops on each circuit of facility water: one circuit for each side of the hall."""
        loops = self.count("loop")
        half = -(-loops // 2)
        return tuple(side for side in (range(half), range(half, loops)) if side)

    def size(self, domain: Domain) -> int:
        """How many nodes share one such domain, if the cluster is large enough."""
        return {
            "node": 1,
            "rack": self.nodes_per_rack,
            "shelf": self.nodes_per_rack,
            "loop": self.nodes_per_rack * self.racks_per_loop,
            "leaf": self.nodes_per_leaf,
            "pod": self.nodes_per_leaf * self.leaves_per_pod,
            "mount": self.nodes_per_mount,
            "cluster": max(1, self.nodes),
        }[domain]

    def count(self, domain: Domain) -> int:
        """How many such domains the cluster has."""
        return -(-self.nodes // self.size(domain))

    def number(self, domain: Domain, node: int) -> int:
        """The number of the node's domain."""
        return node // self.size(domain)

    def nodes_of(self, domain: Domain, number: int) -> range:
        size = self.size(domain)
        return range(number * size, min((number + 1) * size, self.nodes))


_PREFIX: dict[Domain, str] = {
    "node": "n",
    "rack": "rack-",
    "shelf": "shelf-",
    "loop": "cdu-",
    "leaf": "leaf-",
    "pod": "pod-",
    "mount": "fs-",
    "cluster": "cluster-",
}


def name(domain: Domain, number: int) -> str:
    """A domain's name in events and signals: `n00017`, `rack-0004`, `cdu-0000`."""
    return f"{_PREFIX[domain]}{number:05}" if domain == "node" else f"{_PREFIX[domain]}{number:04}"


def gpu_name(node: int, gpu: int) -> str:
    return f"{name('node', node)}.{gpu}"


def port_name(node: int, gpu: int) -> str:
    """The port of the network card beside this GPU."""
    return f"{name('node', node)}/mlx5_{gpu}"


def circuit_name(circuit: int) -> str:
    return f"water-{circuit}"


def spine_name(spine: int) -> str:
    return f"spine-{spine:04}"
