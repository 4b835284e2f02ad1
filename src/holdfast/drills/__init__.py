"""Incidents to practise on: scenarios, the telemetry they leave, and the truth apart from both.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.drills.scenarios import SCENARIOS, TABLETOP, Played, Truth, play

__all__ = ["SCENARIOS", "TABLETOP", "Played", "Truth", "play"]

_HOMES = {"scenarios": {"SCENARIOS", "TABLETOP", "Played", "Truth", "play"}}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.drills.{home}"), name)
