"""Incidents to practise on: scenarios, their telemetry, and the truth, which is kept apart."""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
    from holdfast.drills.scenarios import SCENARIOS, TABLETOP, Played, Truth, play

__all__ = ["SCENARIOS", "TABLETOP", "Played", "Truth", "play"]

_HOMES = {"scenarios": {"SCENARIOS", "TABLETOP", "Played", "Truth", "play"}}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
