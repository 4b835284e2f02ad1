"""What happened: typed events, the recorder and its journal, the stores, importers of foreign logs."""

from typing import TYPE_CHECKING

from holdfast.faces import face

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
    __getattr__ = face(__name__, _HOMES)
