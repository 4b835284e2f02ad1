"""Incidents to practise on: scenarios, the telemetry they leave, and the truth apart from both.

These are the public names of the room. Each is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from holdfast import lazily

if TYPE_CHECKING:
    from holdfast.drills.scenarios import SCENARIOS, TABLETOP, Played, Truth, play

__all__ = ["SCENARIOS", "TABLETOP", "Played", "Truth", "play"]

_HOMES = {"scenarios": {"SCENARIOS", "TABLETOP", "Played", "Truth", "play"}}

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
