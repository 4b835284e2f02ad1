"""Where a process is, as the kernel and its own stack tell: also of one that cannot speak.

A script that holds the interpreter answers nobody, but a signal handler in C still runs: faulthandler writes
the stack of the main thread into a file that exists only in memory, which the agent has given to the process,
and reads. A process that has no such handler is never signalled: it would die of it.
"""

import faulthandler
import os
import re
import signal
import sys
import sysconfig
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path

SIGNAL = signal.SIGRTMIN + 10
"""Nobody uses it: glibc has the first two real-time signals, and programs that want one take the next."""
VARIABLE = "HOLDFAST_STACK_FD"
FILE_NAME = "holdfast-stack"
STACK_BYTES_MAX = 64 << 10
"""faulthandler writes a hundred frames at most."""
STOPPED = "T"
"""What proc(5) calls stopped by a signal. Whoever a debugger holds (`t`) has the time that a hang has."""

_FRAME = re.compile(r'File "(.+)", line (\d+) in')
_OWN = str(Path(__file__).parent.parent) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")
_Frame = tuple[str, int]
"""The path of a file, and a line of it."""


# ---- in the script's process -----------------------------------------------------------------------------


def register(environment: MutableMapping[str, str]) -> None:
    """Let the agent ask where this process is, if it has given it the file for it."""
    given = environment.pop(VARIABLE, "")
    if not given.isdecimal():
        return
    with suppress(OSError):
        # A program between the agent and this one may have closed it, and opened another in its place.
        if FILE_NAME in str(Path(f"/proc/self/fd/{given}").readlink()):
            os.set_inheritable(int(given), False)
            faulthandler.register(SIGNAL, file=int(given), all_threads=False)


def here() -> str:
    """The line of the script that this thread is at."""
    return _users_own(list(dropwhile(lambda frame: frame[0].startswith(_OWN), _frames())))


def _frames() -> Iterator[_Frame]:
    """Of this thread, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
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


def ask(pid: int, file: int) -> bool:
    """Have the process write its stack into the file. False: it does not listen, and was not asked."""
    if not _listens(pid):
        return False
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)  # the process writes at the same position
    with suppress(ProcessLookupError):
        os.kill(pid, SIGNAL)
    return True


def answer(file: int) -> str:
    """The stack as far as the process has written it."""
    return os.pread(file, STACK_BYTES_MAX, 0).decode("utf-8", "replace")


def innermost(stack: str) -> str:
    """The line of the script at the top of a stack that faulthandler has written."""
    return _users_own([(path, int(line)) for path, line in _FRAME.findall(stack)])


def _listens(pid: int) -> bool:
    """Whether the process has a handler for the signal; the kernel has a mask of those that it catches."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (SIGNAL - 1) & 1)


# ---- in both ---------------------------------------------------------------------------------------------


def _users_own(frames: Sequence[_Frame]) -> str:
    """`train.py:88`: the innermost frame that is neither Holdfast's, nor of an installed package, nor of the
    standard library or, where there is none, the innermost of all.
    """
    own = [frame for frame in frames if not _is_library(frame[0])]
    path, line = next(iter(own or frames), ("", 0))
    return f"{Path(path).name}:{line}" if path else ""


def _is_library(path: str) -> bool:
    return path.startswith(("<", _OWN, _STANDARD)) or any(part in path for part in _INSTALLED)
