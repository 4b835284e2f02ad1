"""Holdfast: the reliability layer of an AI training cluster.

Importing this package imports nothing else; each room is imported by whoever needs it, so that the
command line answers at once and a training process pays only for what it uses.
"""

from collections.abc import Callable, Collection, Mapping

__version__ = "0.1.0"


def lazily(package: str, homes: Mapping[str, Collection[str]]) -> Callable[[str], object]:
    """The `__getattr__` of a room's face. homes: its modules, and the names that each of them has."""

    def found(name: str) -> object:
        from importlib import import_module

        for home, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{home}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found
