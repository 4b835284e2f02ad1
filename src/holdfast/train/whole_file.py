"""Writes a file atomically: all of it, or the previous one stays."""

import contextlib
import fcntl
import io
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.record.errors import InputError

EMPTY_S_MAX = 60.0
"""How long a file may be empty before its writer counts as dead."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that gets its name only once it is on the disk, so that neither a kill nor a reader sees a
    part of it. Parts of it left behind by killed writers are removed first, because they may take the space.
    """
    _remove_left_behind(path)
    try:
        with part_of(path.parent, path.name) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror}.", hint="Name a place with room that this user may write."
        ) from None


@contextlib.contextmanager
def part_of(directory: Path, name: str) -> Iterator[io.BufferedRandom]:
    """A new file, `.NAME.HEX.part`, locked until it is closed, and removed on failure."""
    path = directory / f".{name}.{secrets.token_hex(8)}.part"
    with path.open("x+b") as file:
        try:
            # Without locks nothing is ever removed as left behind. A process that removes this file before it
            # is locked makes the rename fail, and with it only this write.
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            os.pwrite(file.fileno(), b"\0", 0)  # while it is empty, it is not locked yet; see is_left_behind
            yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def is_left_behind(part: Path) -> bool:
    """Whether its writer is gone, which released its lock.

    False for a file that is still empty, whose writer is about to lock it; and for one that was renamed
    meanwhile, and was unlocked for that reason.
    """
    try:
        with part.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = part.stat()
            is_new = found.st_size == 0 and time.time() - found.st_mtime < EMPTY_S_MAX
            return os.path.samestat(found, os.fstat(file.fileno())) and not is_new
    except OSError:
        return False


def _remove_left_behind(path: Path) -> None:
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    with contextlib.suppress(OSError):  # already removed, or it stays; both are harmless
        for part in path.parent.iterdir():
            if name.fullmatch(part.name) and is_left_behind(part):
                part.unlink()
