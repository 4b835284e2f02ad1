"""The cluster as one graph: what depends on what, and who owns it.

These are the public names of the room. Each is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from holdfast import lazily

if TYPE_CHECKING:
    from holdfast.topology.file import example, read
    from holdfast.topology.graph import Topology

__all__ = ["Topology", "example", "read"]

_HOMES = {"file": {"example", "read"}, "graph": {"Topology"}}

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
