"""The cluster as one graph: what depends on what, and who owns it."""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
    from holdfast.topology.file import example, read
    from holdfast.topology.graph import Topology

__all__ = ["Topology", "example", "read"]

_HOMES = {"file": {"example", "read"}, "graph": {"Topology"}}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
