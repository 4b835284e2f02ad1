"""Readings as frames of time by subject, where they come from, and how far they can be trusted."""

from typing import TYPE_CHECKING

from holdfast.faces import face

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
    __getattr__ = face(__name__, _HOMES)
