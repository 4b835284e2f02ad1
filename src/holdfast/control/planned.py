"""Planned maintenance of nodes, from the topology file."""

from collections.abc import Callable
from pathlib import Path

from holdfast.control.seeing import in_maintenance
from holdfast.record.files import is_there
from holdfast.topology.file import Described


class PlannedWindows:
    """Maintenance in the topology file, which is read again when it has changed. is_named: the user named the
    file, so it must exist; otherwise a missing file means that nothing is planned.

    A file that cannot be read raises `InputError`: control does nothing while planned work is unknown.
    """

    def __init__(self, path: Path, load: Callable[[Path], Described], *, is_named: bool) -> None:
        self._path = path
        self._load = load
        self._is_named = is_named
        self._stamp: tuple[int, int] | None = None
        self._described: Described | None = None
        self._refresh()

    def __call__(self, now_ns: int, nodes: tuple[str, ...]) -> dict[str, str]:
        self._refresh()
        return {} if self._described is None else in_maintenance(self._described, now_ns, nodes)

    def _refresh(self) -> None:
        if not self._is_named and not is_there(self._path):
            self._stamp = self._described = None
            return
        try:
            status = self._path.stat()
            stamp = status.st_mtime_ns, status.st_size
        except OSError:
            stamp = 0, 0  # loading the file raises an error that says what is wrong
        if stamp != self._stamp:
            self._described = self._load(self._path)
            self._stamp = stamp
