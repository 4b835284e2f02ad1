"""Findings weighed over the graph: incidents with their causes and prices, alerts and runbooks."""

from typing import TYPE_CHECKING

from holdfast.faces import face

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
    __getattr__ = face(__name__, _HOMES)
