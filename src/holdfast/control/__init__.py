"""Decisions for the whole cluster: which action to take about an incident, by price and within budgets."""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
    from holdfast.control.actions import ControlAction
    from holdfast.control.deciding import decide
    from holdfast.control.decision import ControlDecision
    from holdfast.control.policy import ControlPolicy

__all__ = ["ControlAction", "ControlDecision", "ControlPolicy", "decide"]

_HOMES = {
    "actions": {"ControlAction"},
    "deciding": {"decide"},
    "decision": {"ControlDecision"},
    "policy": {"ControlPolicy"},
}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
