"""Holdfast: the reliability layer of an AI training cluster.

Importing this package imports nothing else; a room is imported when it is first needed, so that the command
line answers at once and a training process pays only for what it uses.
"""

from collections.abc import Callable
from importlib import import_module

__version__ = "0.1.0"


def public(room: str, **homes: str) -> Callable[[str], object]:
    """The `__getattr__` of a room: its public names by their modules, each imported when first asked for."""

    def found(name: str) -> object:
        home = next((home for home, names in homes.items() if name in names.split()), None)
        if home is None:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f"{room}.{home}"), name)

    return found
