"""Holds on checkpoints: a run does not remove a checkpoint while a proof computes with it. Needs no torch.

What holds one is a lock on a file beside it, and the kernel takes that back if its process is killed.
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
"""How long the hold of another user counts, if it cannot be opened."""
_HOLD = re.compile(r"\.step-([0-9]{12,})\.held\.[0-9a-f]{16}\.part")


@contextlib.contextmanager
def held(directory: Path, steps: Collection[int]) -> Iterator[None]:
    """While the block lasts, a run leaves these checkpoints in its directory. If that cannot be written to,
    or has no locks, they are not held.
    """
    with contextlib.ExitStack() as stack:
        for step in steps:
            with contextlib.suppress(OSError):
                file = stack.enter_context(part_of(directory, f"step-{step:012d}.held"))
                stack.callback(Path(file.name).unlink, missing_ok=True)
        yield


def held_steps(directory: Path) -> set[int]:
    """Those that somebody holds. What killed processes have left is removed."""
    found = set()
    with contextlib.suppress(OSError):
        for path, match in found_in(directory, _HOLD).items():
            if _is_held(path):
                found.add(int(match[1]))
            else:
                path.unlink(missing_ok=True)
    return found


def _is_held(path: Path) -> bool:
    """Also if it is about to be: until it is locked, it is empty."""
    try:
        with path.open("rb") as file:  # of another user it can be read, and that is enough for a lock
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(file.fileno())
            return status.st_size == 0 and time.time() - status.st_mtime < EMPTY_S_MAX
    except BlockingIOError:
        return True
    except PermissionError:  # nobody can tell whether it is locked
        return time.time() - path.stat().st_mtime < UNREADABLE_S_MAX
    except OSError:
        return False
