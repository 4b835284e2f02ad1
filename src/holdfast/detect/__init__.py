"""Finding problems in readings: detectors, rules and signs."""

from typing import TYPE_CHECKING

from holdfast.faces import face

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
    __getattr__ = face(__name__, _HOMES)
