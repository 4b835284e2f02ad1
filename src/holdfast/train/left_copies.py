"""Removes second names of checkpoints, `.copying-MARK`, that a copying process left behind.
Needs no torch.
"""

import contextlib
import fcntl
import hashlib
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

REMOVAL_S_MAX = 5.0
"""How long a start waits for the removal: a directory may be on storage that hangs."""
_MARK = re.compile(r"\.copying-[0-9a-f]{8}")


def copying_mark(place: str) -> str:
    """The folder for checkpoints that are being copied to this place; its lock is named the same, plus
    `.lock`.
    """
    return ".copying-" + hashlib.blake2b(place.encode(), digest_size=4).hexdigest()


def remove_left_copies(directories: Sequence[Path]) -> None:
    """Remove leftovers of a crashed machine: they take space, and no later copy may ever replace them."""
    removing = threading.Thread(target=_remove, args=(directories,), daemon=True)
    removing.start()
    removing.join(REMOVAL_S_MAX)


def _remove(directories: Sequence[Path]) -> None:
    for directory in directories:
        with contextlib.suppress(OSError):
            for path in directory.iterdir():
                if _MARK.fullmatch(path.name) and path.is_dir():
                    _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    with contextlib.suppress(OSError), path.with_name(f"{path.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
