"""Small files that a user wrote, whose mistakes are reported with the file's name; and private files."""

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
    """Parse the file's text with `parse`. hint: how to get such a file if this one is missing."""
    content = contents(path, what=what, hint=hint)
    try:
        return parse(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from None
    except InputError as error:
        raise InputError(f"{path}: {error.sentence}", hint=error.hint) from None


def contents(path: Path, *, what: str, hint: str) -> bytes:
    """Return the file's bytes; report errors as `parsed` does."""
    try:
        return path.read_bytes()
    except OSError as error:
        way = LET_IN_HINT if isinstance(error, PermissionError) else hint
        raise InputError(f"The {what} cannot be read from {path}: {error.strerror}.", hint=way) from None


def is_there(path: Path) -> bool:
    """Whether the path exists. Raises `InputError` if that cannot be determined."""
    return _status(path) is not None


def is_directory(path: Path) -> bool:
    """Whether the path is a directory. Raises as `is_there` does."""
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _status(path: Path) -> os.stat_result | None:
    """None if the path does not exist. For other errors `Path.exists` raises or returns False, by version."""
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
"""Name of the home under the user's own directory, unless `HOLDFAST_HOME` names another."""


def make_private_directory(path: Path) -> None:
    """Make the directory, and missing parents, for this user alone. Existing ones keep their mode, except a
    `~/.holdfast` of an older Holdfast, which other users could read."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # raises if a file has the name
    with contextlib.suppress(OSError, RuntimeError):  # it belongs to another user, or this user has no home
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
    """Make a new, empty file that only this user may read. Raises `FileExistsError`, also for a link."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def require_directory(flag: str, path: Path | None) -> None:
    """Refuse a path that is not a directory, or is below a file; a missing one may be made later."""
    if path is None or path == Path(os.devnull):
        return
    place = next((one for one in (path, *path.parents) if is_there(one)), None)
    if place is not None and not is_directory(place):
        named = f"{flag} {path}" if place == path else f"{flag} {path}: {place}"
        raise InputError(f"{named} is a file, not a directory.", hint="Name a directory, or a new one.")
