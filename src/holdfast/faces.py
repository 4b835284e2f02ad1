"""The public names of a room, each imported when it is first asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module


def face(room: str, homes: Mapping[str, set[str]]) -> Callable[[str], object]:
    """`__getattr__` of a room. homes: its modules that have public names, and which."""

    def find(name: str) -> object:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(f"{room}.{home}"), name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return find
