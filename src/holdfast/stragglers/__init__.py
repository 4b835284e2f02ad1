"""What holds a training step back, by what-if on a trace of operations.

These are the public names of the room. Each is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from holdfast import lazily

if TYPE_CHECKING:
    from holdfast.stragglers.reading import read_trace
    from holdfast.stragglers.report import StragglerReport, report_on

__all__ = ["StragglerReport", "read_trace", "report_on"]

_HOMES = {"reading": {"read_trace"}, "report": {"StragglerReport", "report_on"}}

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
