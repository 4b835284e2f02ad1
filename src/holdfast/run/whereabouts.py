"""Where a process is, by the kernel and its own stack, even if it cannot answer.

A script that holds the interpreter lock answers no message, but a signal handler in C still runs:
faulthandler writes the stack of the main thread into a memory file, which the agent has given to the process
and reads. The handler is installed before the script starts (startup/sitecustomize.py). A process without the
handler is never signalled, because the signal would kill it.
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
"""The most that is read of a stack; faulthandler writes at most a hundred frames."""
STOPPED = "T"
"""The state in proc(5) for a process stopped by a signal. A process held by a debugger (`t`) is not counted
as stopped and gets the time that a hang gets."""


# ---- in the script's process -----------------------------------------------------------------------------


def here() -> str:
    """The line of the script at which this thread is."""
    frame = own_frame(tuple(dropwhile(lambda frame: is_holdfasts(frame.path), _frames())))
    return frame.place if frame is not None else ""


def _frames() -> Iterator[StackFrame]:
    """The frames of this thread, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        yield StackFrame(path, frame.f_lineno, is_own=not is_library(path))
        frame = frame.f_back  # type: ignore[assignment]


# ---- in the agent's process ------------------------------------------------------------------------------


def stack_file() -> int:
    """The descriptor of a new memory file."""
    return os.memfd_create(FILE_NAME)


def is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == [STOPPED]


def ask(pid: int, file: int, *, all_threads: bool = False) -> bool:
    """Ask the process to write its stack into the file. False if it has no handler and was not asked."""
    number = SIGNAL_ALL if all_threads else SIGNAL
    if not listens(pid, number):
        return False
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)  # the process writes at the same position
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return True


def answer(file: int) -> str:
    """The stack, as far as the process has written it."""
    return os.pread(file, STACK_BYTES_MAX, 0).decode("utf-8", "replace")


def listens(pid: int, number: int = SIGNAL) -> bool:
    """Whether the process has a handler for the signal, by the kernel's mask of caught signals."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)
