"""Files that hold a secret, such as a token or a key: checked first, and read within a bound."""

import os
import stat
from pathlib import Path

from holdfast.record.errors import InputError

SECRET_BYTES_MAX = 1 << 20
"""Enough for a bundle of certificate authorities: a system's own has about 200 KiB."""


def read_secret(path: Path, *, what: str, hint: str, is_private: bool, encoding: str = "ascii") -> str:
    """Return the file's text. what: names the secret in messages. is_private: refuse a file that every user
    can read. Kubernetes and Docker mount secrets with such a mode, so files that they may provide are not
    private. Raises `InputError`, also for a FIFO or a device: reading one could block forever.
    """
    try:
        # Without O_NONBLOCK, open(2) waits until a FIFO has a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _require_sound(os.fstat(descriptor), path, what, is_private=is_private)
            content = file.read(SECRET_BYTES_MAX + 1)
        text = content.decode(encoding)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"Cannot read {what}: {path}: {reason}.", hint=hint) from None
    if len(content) > SECRET_BYTES_MAX:
        raise InputError(
            f"Cannot read {what}: {path} has more than {SECRET_BYTES_MAX >> 20} MiB.",
            hint="Name a smaller file.",
        )
    return text


def _require_sound(status: os.stat_result, path: Path, what: str, *, is_private: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            f"Cannot read {what}: {path} is not a regular file.", hint="Write it to a file, and name that."
        )
    if is_private and status.st_mode & stat.S_IRWXO:
        raise InputError(f"Every user can read {what} in {path}.", hint=f"chmod o= {path}")
