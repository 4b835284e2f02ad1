"""What is not as it should be, found in readings: detectors, rules and signs.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.detect.detector import Detector, FunctionDetector, Look, Sense
    from holdfast.detect.finding import Finding
    from holdfast.detect.rules import Rule
    from holdfast.detect.signs import Sign

__all__ = ["Detector", "Finding", "FunctionDetector", "Look", "Rule", "Sense", "Sign"]

_HOMES = {
    "detector": {"Detector", "FunctionDetector", "Look", "Sense"},
    "finding": {"Finding"},
    "rules": {"Rule"},
    "signs": {"Sign"},
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.detect.{home}"), name)
