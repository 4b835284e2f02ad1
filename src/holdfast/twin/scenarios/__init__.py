"""Incidents that start in one domain and surface in another, with their truth apart: `play` one by name."""

from holdfast.twin.scenarios.playing import TABLETOP, Played, play
from holdfast.twin.scenarios.registry import SCENARIOS
from holdfast.twin.scenarios.truth import Truth

__all__ = ["SCENARIOS", "TABLETOP", "Played", "Truth", "play"]
