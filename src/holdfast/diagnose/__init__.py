"""Findings weighed over the graph: incidents, their causes, prices, alerts and runbooks.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.diagnose.assess import Assessment
    from holdfast.diagnose.incident import Incident
    from holdfast.diagnose.mechanisms import MECHANISMS, Mechanism
    from holdfast.diagnose.watching import Watch

__all__ = ["MECHANISMS", "Assessment", "Incident", "Mechanism", "Watch"]

_HOMES = {
    "assess": {"Assessment"},
    "incident": {"Incident"},
    "mechanisms": {"MECHANISMS", "Mechanism"},
    "watching": {"Watch"},
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.diagnose.{home}"), name)
