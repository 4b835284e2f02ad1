"""Holds on checkpoints: a run does not remove a checkpoint while a proof computes with it. Needs no torch.

A hold is a lock on a file beside the checkpoint, which the kernel releases if its process is killed.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.train.kept import found_in
from holdfast.train.whole_file import EMPTY_S_MAX, part_of

UNREADABLE_S_MAX = 86_400.0
"""How long another user's hold counts if it cannot be opened."""
_HOLD = re.compile(r"\.step-([0-9]{12,})\.held\.[0-9a-f]{16}\.part")


@contextlib.contextmanager
def held(directory: Path, steps: Collection[int]) -> Iterator[None]:
    """Keep a run from removing these checkpoints from its directory while the block lasts. They are not held
    if the directory is not writable or has no locks.
    """
    with contextlib.ExitStack() as stack:
        for step in steps:
            with contextlib.suppress(OSError):
                file = stack.enter_context(part_of(directory, f"step-{step:012d}.held"))
                stack.callback(Path(file.name).unlink, missing_ok=True)
        yield


def held_steps(directory: Path) -> set[int]:
    """The steps that are held. Holds left by killed processes are removed."""
    found = set()
    with contextlib.suppress(OSError):
        for path, match in found_in(directory, _HOLD).items():
            if _is_held(path):
                found.add(int(match[1]))
            else:
                path.unlink(missing_ok=True)
    return found


def _is_held(path: Path) -> bool:
    """Whether it is held, or about to be: a new hold is empty until it is locked."""
    try:
        with path.open("rb") as file:  # reading suffices for a lock, also of another user's file
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(file.fileno())
            return status.st_size == 0 and time.time() - status.st_mtime < EMPTY_S_MAX
    except BlockingIOError:
        return True
    except PermissionError:  # unknown whether it is locked
        return time.time() - path.stat().st_mtime < UNREADABLE_S_MAX
    except OSError:
        return False
