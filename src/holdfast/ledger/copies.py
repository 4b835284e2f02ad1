"""Copies of the parts of a fold, to go back to when an event comes late."""

import copy
from typing import TypeVar

_Part = TypeVar("_Part")


def copied(whole: _Part, *parts: str) -> _Part:
    """A copy with copies of these parts of its own; it shares the others."""
    twin = copy.copy(whole)
    for name in parts:
        part = getattr(whole, name)
        setattr(twin, name, part.copy() if hasattr(part, "copy") else copy.copy(part))
    return twin
