"""The cluster as one graph: what depends on what, and who owns it.

These are the public names of the room. Each is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from holdfast import public

if TYPE_CHECKING:
    from holdfast.topology.file import example, read
    from holdfast.topology.graph import Topology

__all__ = ["Topology", "example", "read"]

if not TYPE_CHECKING:
    __getattr__ = public(__name__, file="example read", graph="Topology")
