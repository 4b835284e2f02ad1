"""What holds a training step back, by what-if on a trace of operations.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.stragglers.reading import read_trace
    from holdfast.stragglers.report import StragglerReport, report_on

__all__ = ["StragglerReport", "read_trace", "report_on"]

_HOMES = {"reading": {"read_trace"}, "report": {"StragglerReport", "report_on"}}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.stragglers.{home}"), name)
