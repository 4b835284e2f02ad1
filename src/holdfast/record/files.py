"""How the verbs read a small file that a user wrote: a mistake in it is told with its name."""

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
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from None
    except OSError as error:
        way = LET_IN_HINT if isinstance(error, PermissionError) else hint
        raise InputError(f"The {what} cannot be read from {path}: {error.strerror}.", hint=way) from None
    except InputError as error:
        raise InputError(f"{path}: {error.sentence}", hint=error.hint) from None


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
