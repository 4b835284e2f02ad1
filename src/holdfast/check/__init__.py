"""Tests of one node, whose results are compared with reference figures before the node is given a run."""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
    from holdfast.check.checking import NodeCheck, check_node
    from holdfast.check.figures import CheckedFigure

__all__ = ["CheckedFigure", "NodeCheck", "check_node"]

_HOMES = {"checking": {"NodeCheck", "check_node"}, "figures": {"CheckedFigure"}}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
