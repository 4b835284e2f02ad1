"""One machine, several spellings: maps names in telemetry and the record to nodes of the topology.

A machine is `n17` in the topology file, `n17.cluster.example` to itself, `10.0.0.17:9100` to Prometheus and
`train-3` to the pod on it. The rule is the one in docs/signals.md: the name itself, then its short form, then
another name from the same series. An ambiguous name matches no node.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping

from holdfast.topology.names import host_names_of

_CONTROLLER = re.compile(
    r"(?P<before>.+)-(?:bmc|ipmi|ilo|idrac|oob|mgmt)|(?:bmc|ipmi|ilo|idrac|oob|mgmt)-(?P<behind>.+)"
)
"""Common names of a node's management controller: `n17-bmc`, `ipmi-n17`."""

Alias = tuple[str, str]
"""Two spellings of one machine, as one series has them."""


class Hosts:
    """The known nodes, and their other names."""

    def __init__(self, nodes: Iterable[str] = (), aliases: Iterable[Alias] = ()) -> None:
        self._nodes: dict[str, None] = {}
        self._short: dict[str, list[str]] = {}
        self._others: dict[str, set[str]] = {}
        for one, other in aliases:
            self._others.setdefault(_folded(one), set()).add(other)
            self._others.setdefault(_folded(other), set()).add(one)
        for node in nodes:
            self._add(node)

    def grow(self, names: Iterable[str]) -> None:
        """Add a node under the first of these names, unless one of them is known.

        The name `localhost` does not make two machines the same.
        """
        called = tuple(names)
        if called and not any(self.node(name) for name in called if not is_everybodys(name)):
            self._add(called[0])

    def node(self, spelling: str) -> str | None:
        """The node that is meant; None if it is unknown or ambiguous."""
        if spelling in self._nodes:
            return spelling
        if found := self._by_name(spelling):
            return found
        if controller := _CONTROLLER.fullmatch(_short(spelling)):
            return self._by_name(controller["before"] or controller["behind"])
        told = {node for other in self._others.get(_folded(spelling), ()) if (node := self._by_name(other))}
        return told.pop() if len(told) == 1 else None

    def of(self, labels: Mapping[str, str]) -> str:
        """The host of a series: the first of its names that is a node's, else the first."""
        names = host_names_of(labels)
        return next((node for name in names if (node := self.node(name))), names[0] if names else "")

    def _add(self, node: str) -> None:
        self._nodes[node] = None
        self._short.setdefault(_short(node), []).append(node)

    def _by_name(self, spelling: str) -> str | None:
        """The node of this name, ignoring case; either may lack its domain or a part of it."""
        spelled = _folded(spelling)
        alike = [node for node in self._short.get(_short(spelling), ()) if _is_same(_folded(node), spelled)]
        same = [node for node in alike if _folded(node) == spelled] or alike
        return same[0] if len(same) == 1 else None


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_everybodys(name: str) -> bool:
    """Whether every machine has this name for itself."""
    return _short(name) == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def _folded(name: str) -> str:
    return name.casefold().rstrip(".")


def _short(name: str) -> str:
    """The part before the first dot; an address stays whole."""
    folded = _folded(name)
    return folded if is_address(folded) else folded.partition(".")[0]


def _is_same(one: str, other: str) -> bool:
    """`n17.east` is not `n17.west`."""
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith(f"{short}.")
