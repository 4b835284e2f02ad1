"""Where a process is, as the kernel and its own stack tell: also of one that cannot speak.

A script that holds the interpreter answers nobody, but a signal handler in C still runs: faulthandler writes
the stack of the main thread into a file that exists only in memory, which the agent has given to the process,
and reads. The handler is there before the script is (startup/sitecustomize.py). A process that has none is
never signalled: it would die of it.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path

from holdfast.run.stacks import StackFrame, is_holdfasts, is_library, own_frame
from holdfast.run.startup.sitecustomize import FILE_NAME, SIGNAL, SIGNAL_ALL

STACK_BYTES_MAX = 64 << 10
"""faulthandler writes a hundred frames at most."""
STOPPED = "T"
"""What proc(5) calls stopped by a signal. Whoever a debugger holds (`t`) has the time that a hang has."""


# ---- in the script's process -----------------------------------------------------------------------------


def here() -> str:
    """The line of the script that this thread is at."""
    frame = own_frame(tuple(dropwhile(lambda frame: is_holdfasts(frame.path), _frames())))
    return frame.place if frame is not None else ""


def _frames() -> Iterator[StackFrame]:
    """Of this thread, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        yield StackFrame(path, frame.f_lineno, is_own=not is_library(path))
        frame = frame.f_back  # type: ignore[assignment]


# ---- in the agent's --------------------------------------------------------------------------------------


def stack_file() -> int:
    """A descriptor of a new file in memory."""
    return os.memfd_create(FILE_NAME)


def is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == [STOPPED]


def ask(pid: int, file: int, *, all_threads: bool = False) -> bool:
    """Have the process write its stack into the file. False: it does not listen, and was not asked."""
    number = SIGNAL_ALL if all_threads else SIGNAL
    if not listens(pid, number):
        return False
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)  # the process writes at the same position
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return True


def answer(file: int) -> str:
    """The stack as far as the process has written it."""
    return os.pread(file, STACK_BYTES_MAX, 0).decode("utf-8", "replace")


def listens(pid: int, number: int = SIGNAL) -> bool:
    """Whether the process has a handler for the signal; the kernel has a mask of those that it catches."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)
