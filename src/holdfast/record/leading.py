"""Leadership: of several processes on one store, one acts, and the others wait to take its place."""

import fcntl
import os
from pathlib import Path
from typing import Protocol

from holdfast.record.errors import StoreError


class Lead(Protocol):
    """A lock that one process at a time holds. It is free again when that process ends in any way."""

    def is_ours(self) -> bool:
        """Take the lead if it is free. Return whether this process has it now."""

    def close(self) -> None: ...


class FileLead:
    """The lead by a lock on a file: for the processes of one machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def is_ours(self) -> bool:
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"Cannot lock {self._path}: {error.strerror}.", hint="Grant this user write permission there."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
