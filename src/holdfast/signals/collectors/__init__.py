"""Collectors: what no exporter gives, read where it is, as readings under the exporters' own names.

A collector is asked again and again. What it cannot read of its source becomes a reading with a word; where
there is no source at all it raises `Unavailable`, and whoever asks goes on with the other collectors.
"""

from typing import Protocol

from holdfast.record.errors import HoldfastError
from holdfast.signals.frame import Reading


class Unavailable(HoldfastError):
    """A source that gave nothing this time, and why, in one sentence."""


class Collector(Protocol):
    """One source of readings. name: as it is told of in messages."""

    name: str

    def collect(self) -> list[Reading]:
        """What the source shows now; `Unavailable` where it shows nothing. Returns within a bounded time."""

    def close(self) -> None:
        """Give back what is held of the source."""
