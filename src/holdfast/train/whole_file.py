"""A file that is written for good: all of it, or what was there before."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.record.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """It has its name only once it is on the disk, so neither a kill nor a reader sees a part of it."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror}.", hint="Name a place with room that this user may write."
        ) from None
    finally:
        part.unlink(missing_ok=True)
