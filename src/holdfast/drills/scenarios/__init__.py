"""Incidents that start in one domain and surface in another, and their truth: `play` one by name."""

from holdfast.drills.scenarios.playing import SCENARIOS, TABLETOP, Played, play
from holdfast.drills.scenarios.truth import Truth

__all__ = ["SCENARIOS", "TABLETOP", "Played", "Truth", "play"]
