"""The levers of a scenario in the simulated cluster: causes only, never their consequences.

A lever has a value for each of its subjects (loops, ports, nodes ...) at each scrape. A scenario moves a few
of them; cooling, fabric, storage, pools and the run then follow their own arithmetic.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.twin.cluster import Domain, Layout

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.signedinteger[Any]]

POOL_ENGINES = 8
"""Engines in each of the two inference pools, if a scenario has pools; one engine a node."""
PCIE_WIDTH = 16

_Hardware = Literal[
    "flow", "supply", "supplies", "uplink", "spine", "symbols", "recoveries", "pcie_width", "ecc"
]
_Software = Literal[
    "cpu", "neighbours", "capacity", "work", "loader", "stray", "pause", "cadence", "state", "routing"
]
Lever = Literal[_Hardware, _Software, "down"]
Scope = Literal["loop", "shelf", "leaf", "spine", "gpu", "node", "mount", "run", "engine"]


class _Nature(NamedTuple):
    """A lever's subjects, and its value if no scenario turns it."""

    scope: Scope
    nominal: float


_NATURES: dict[Lever, _Nature] = {
    "flow": _Nature("loop", 1.0),  # coolant flow as a share of the rated one
    "supply": _Nature("loop", 0.0),  # K above the set point of the coolant's supply
    "supplies": _Nature("shelf", 1.0),  # power supplies that deliver, as a share of all
    "uplink": _Nature("leaf", 1.0),  # share of a leaf's uplinks that is left for the run
    "spine": _Nature("spine", 1.0),  # share of the bandwidth between pools over this spine
    "symbols": _Nature("gpu", 0.0),  # symbol errors a second on the port of this GPU
    "recoveries": _Nature("gpu", 0.0),  # link error recoveries a second on it
    "pcie_width": _Nature("gpu", float(PCIE_WIDTH)),  # width of its PCIe link
    "ecc": _Nature("gpu", 0.0),  # memory errors a second that ECC corrects
    "cpu": _Nature("node", 0.0),  # share of a host's CPU time that others take
    "neighbours": _Nature("mount", 0.0),  # clients of other jobs for each of the run's own
    "capacity": _Nature("mount", 1.0),  # share of a mount's bandwidth that it still delivers
    "work": _Nature("node", 1.0),  # a member's work in a step, relative to the others
    "loader": _Nature("node", 0.0),  # s that a step waits for a member's data loader
    "stray": _Nature("run", 0.0),  # share by which one member, another each step, has more to compute
    "pause": _Nature("run", 0.0),  # s for which one member, another each step, stands still
    "cadence": _Nature("run", 1.0),  # factor on the time between checkpoints
    "state": _Nature("run", 1.0),  # factor on the size of a checkpoint
    "routing": _Nature("engine", 1.0),  # weight that the router gives a decode engine
    "down": _Nature("node", 0.0),  # 1 while a node is off
}


class Turned(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A lever at some of its subjects. level: one for each scrape and subject."""

    lever: Lever
    subjects: tuple[int, ...]
    level: Floats


class Levers:
    """Every lever at every scrape: nominal unless it was turned."""

    def __init__(self, layout: Layout, ticks: int, turned: Iterable[Turned]) -> None:
        self._layout = layout
        self._ticks = ticks
        self._turned: dict[Lever, list[Turned]] = {}
        for one in turned:
            self._turned.setdefault(one.lever, []).append(one)

    def at(self, lever: Lever, tick: int) -> Floats:
        """The lever's value for each subject at this scrape."""
        values = np.full(_count(self._layout, lever), _NATURES[lever].nominal, np.float32)
        for one in self._turned.get(lever, ()):
            values[list(one.subjects)] = one.level[tick]
        return values

    def over_time(self, lever: Lever) -> Floats:
        """The lever's values, scrape by subject."""
        values = np.full((self._ticks, _count(self._layout, lever)), _NATURES[lever].nominal, np.float32)
        for one in self._turned.get(lever, ()):
            values[:, list(one.subjects)] = one.level
        return values


def nominal(lever: Lever) -> float:
    return _NATURES[lever].nominal


def on_which(layout: Layout, domain: Domain) -> Indices:
    """By node: the number of the loop, shelf, leaf ... that it is on."""
    return np.arange(layout.nodes) // layout.size(domain)


def _count(layout: Layout, lever: Lever) -> int:
    match _NATURES[lever].scope:
        case "gpu":
            return layout.nodes * layout.gpus_per_node
        case "spine":
            return layout.spines_per_pod
        case "engine":
            return POOL_ENGINES
        case "run":
            return 1
        case domain:
            return layout.count(domain)
