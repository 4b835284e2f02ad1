"""Readings as frames of time by subject, where they come from, and how far they can be trusted.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.signals.catalogue import CATALOGUE
    from holdfast.signals.frame import Frame, Reading, per_second
    from holdfast.signals.prometheus import Prometheus
    from holdfast.signals.quality import inspect
    from holdfast.signals.source import Source
    from holdfast.signals.store import SignalStore

__all__ = ["CATALOGUE", "Frame", "Prometheus", "Reading", "SignalStore", "Source", "inspect", "per_second"]

_HOMES = {
    "catalogue": {"CATALOGUE"},
    "frame": {"Frame", "Reading", "per_second"},
    "prometheus": {"Prometheus"},
    "quality": {"inspect"},
    "source": {"Source"},
    "store": {"SignalStore"},
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.signals.{home}"), name)
