"""Findings weighed over the graph: incidents, their causes, prices, alerts and runbooks.

These are the public names of the room. Each is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from holdfast import lazily

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
    __getattr__ = lazily(__name__, _HOMES)
