"""Small files that a user wrote, a mistake in which is told with its name; and files for this user alone."""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.record.errors import InputError

Told = TypeVar("Told")

LET_IN_HINT = "Name another place, or grant this user read permission on its directory."


def parsed(path: Path, parse: Callable[[str], Told], *, what: str, hint: str) -> Told:
    """What `parse` makes of the file's text. hint: how to come by such a file where this one is not there."""
    content = contents(path, what=what, hint=hint)
    try:
        return parse(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from None
    except InputError as error:
        raise InputError(f"{path}: {error.sentence}", hint=error.hint) from None


def contents(path: Path, *, what: str, hint: str) -> bytes:
    """All of it, told as in `parsed` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        way = LET_IN_HINT if isinstance(error, PermissionError) else hint
        raise InputError(f"The {what} cannot be read from {path}: {error.strerror}.", hint=way) from None


def is_there(path: Path) -> bool:
    """Whether the path leads to anything. That it cannot be told is a mistake, and not a no."""
    return _status(path) is not None


def is_directory(path: Path) -> bool:
    """Whether the path leads to a directory, told as in `is_there`."""
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _status(path: Path) -> os.stat_result | None:
    """None where nothing is there. `Path.exists` raises or says no to the rest, by the version of Python."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(
            f"Cannot access {path}: {error.strerror}.",
            hint=LET_IN_HINT,
        ) from None


HOME_NAME = ".holdfast"
"""Of the directory under the user's own, where `HOLDFAST_HOME` names no other."""


def make_private_directory(path: Path) -> None:
    """Make it, and what is missing above it, for this user alone. What is there stays as it is, but for a
    `~/.holdfast` of an older Holdfast, which others could look into.
    """
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # says what is wrong where a file has the name
    with contextlib.suppress(OSError, RuntimeError):  # it is somebody else's, or nobody has a home
        own = Path.home() / HOME_NAME
        if own in (path, *path.parents) and own.stat().st_mode & 0o077:
            own.chmod(0o700)


def sync(path: Path) -> None:
    """Force a file, or the names in a directory, to disk: only then does a new name survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_file(path: Path) -> None:
    """A new and empty file that only this user may read. Raises `FileExistsError`; a link is one, too."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def require_directory(flag: str, path: Path | None) -> None:
    """What is there under the name of a directory must be one; it may also be made later."""
    if path is None or not path.exists() or path.is_dir() or path == Path(os.devnull):
        return
    raise InputError(f"{flag} {path} is a file, not a directory.", hint="Name a directory, or a new one.")
