"""Copies of the parts of a fold, to return to when an event arrives late."""

import copy
from typing import TypeVar

_Part = TypeVar("_Part")


def copied(whole: _Part, *parts: str) -> _Part:
    """A copy in which these parts are copied as well; the others are shared."""
    twin = copy.copy(whole)
    for name in parts:
        part = getattr(whole, name)
        setattr(twin, name, part.copy() if hasattr(part, "copy") else copy.copy(part))
    return twin
