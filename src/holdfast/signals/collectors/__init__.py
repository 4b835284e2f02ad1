"""Collectors: readings that no exporter gives, taken at their source, under the exporters' own names.

A collector is asked again and again. Values that it cannot read become readings with a word; without any
source it raises `Unavailable`, and the caller goes on with the other collectors.
"""

from typing import Protocol

from holdfast.record.errors import HoldfastError
from holdfast.signals.frame import Reading


class Unavailable(HoldfastError):
    """A source that gave nothing this time, with the reason in one sentence."""


class Collector(Protocol):
    """One source of readings. name: for messages."""

    name: str

    def collect(self) -> list[Reading]:
        """The source's present readings; raises `Unavailable` without any. Returns within a bounded time."""

    def close(self) -> None:
        """Release the source."""
