"""The cluster as one graph: what depends on what, and who owns it.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.topology.file import example, read
    from holdfast.topology.graph import Topology

__all__ = ["Topology", "example", "read"]

_HOMES = {"file": {"example", "read"}, "graph": {"Topology"}}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.topology.{home}"), name)
