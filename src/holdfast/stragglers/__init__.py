"""What holds a training step back, by what-if on a trace of operations."""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
    from holdfast.stragglers.reading import read_trace
    from holdfast.stragglers.report import StragglerReport, report_on

__all__ = ["StragglerReport", "read_trace", "report_on"]

_HOMES = {"reading": {"read_trace"}, "report": {"StragglerReport", "report_on"}}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
