"""Private files: directories that only this user may enter, files that only this user may read."""

import contextlib
import os
from pathlib import Path

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


def make_private_file(path: Path) -> None:
    """A new and empty file that only this user may read. Raises `FileExistsError`; a link is one, too."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
