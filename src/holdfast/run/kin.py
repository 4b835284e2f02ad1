"""What Linux is asked for so that no process outlives its run: to die with one's parent, to adopt orphans."""

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

ORPHAN_GRACE_S = 1.0
"""How long processes may outlive their worker, to clean up."""
ORPHAN_KILL_S = 1.0
ORPHAN_POLL_INTERVAL_S = 0.02

_libc = ctypes.CDLL(None)


def die_with(parent: int) -> None:
    """Have the kernel kill this process as soon as the one that started it, `parent`, is gone.

    System calls and no lock, so that it may be called between fork and exec.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


def wake_with(parent: int) -> None:
    """Have the kernel wake this process, should it be stopped, as soon as `parent` is gone: it is to end what
    it has started before it ends itself.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def be_dispensable() -> None:
    """If memory runs out, have the kernel end this process rather than one that trains.

    System calls and no lock, so that it may be called between fork and exec.
    """
    with suppress(OSError):  # where /proc is not what it should be, the kernel decides by size
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, b"1000")
        finally:
            os.close(file)


def be_called(name: str, before: str) -> None:
    """Show this process in `ps` under another name than it was started with, which must not be longer. Linux
    shows the memory in which the arguments lie.
    """
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        place, shown = int(fields[45]), Path("/proc/self/cmdline").read_bytes()
        renamed = shown.replace(before.encode(), name.encode())
        if place and len(renamed) <= len(shown):
            ctypes.memmove(place, renamed.ljust(len(shown), b"\0"), len(shown))


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own, instead of the machine's first process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> frozenset[int]:
    """Started or adopted, by every thread of this process; none where the kernel does not tell."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found.update(map(int, (task / "children").read_text(encoding="ascii").split()))
    return frozenset(found)


def end_children() -> None:
    """End every descendant, whatever session it is in: whoever loses its parent by this is adopted, and ended
    as well. What cleans up after others, as the trackers of shared memory do, has a moment for it.
    """
    for child in children():
        signal_process(child, signal.SIGKILL)
    begun_s = time.monotonic()
    while left := children():
        reap(left)
        waited_s = time.monotonic() - begun_s
        if waited_s >= ORPHAN_GRACE_S + ORPHAN_KILL_S:
            return  # the kernel cannot end them
        if waited_s >= ORPHAN_GRACE_S:
            for child in left:
                signal_process(child, signal.SIGKILL)
        time.sleep(ORPHAN_POLL_INTERVAL_S)


def reap(pids: Iterable[int]) -> None:
    """Let go of those of these children that have ended."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child that is not reaped yet; one that has ended meanwhile does not mind."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; 0 only asks. False if nobody is in it.

    The number of a group is not given to anybody else as long as somebody is in it.
    """
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody is, under another user
        return True
    return True
