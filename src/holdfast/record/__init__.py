"""What happened: typed events, the recorder and its journal, the stores, importers of foreign logs.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.record.errors import InputError
    from holdfast.record.events import FaultObserved, StepCommitted
    from holdfast.record.importers import import_file
    from holdfast.record.recorder import Recorder
    from holdfast.record.store import Selection, Store
    from holdfast.record.stores import open_store

__all__ = [
    "FaultObserved",
    "InputError",
    "Recorder",
    "Selection",
    "StepCommitted",
    "Store",
    "import_file",
    "open_store",
]

_HOMES = {
    "errors": {"InputError"},
    "events": {"FaultObserved", "StepCommitted"},
    "importers": {"import_file"},
    "recorder": {"Recorder"},
    "store": {"Selection", "Store"},
    "stores": {"open_store"},
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.record.{home}"), name)
