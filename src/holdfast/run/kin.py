"""Linux features that keep processes from outliving their run: dying with the parent, adopting orphans."""

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

    It makes system calls and takes no lock, so it may be called between fork and exec.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before this took effect
        os.kill(os.getpid(), signal.SIGKILL)


def wake_with(parent: int) -> None:
    """If this process is stopped, have the kernel wake it as soon as `parent` is gone, because it has to end
    its own processes before it exits.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def be_dispensable() -> None:
    """If memory runs out, have the kernel kill this process rather than one that trains.

    It makes system calls and takes no lock, so it may be called between fork and exec.
    """
    with suppress(OSError):  # without a usable /proc, the kernel decides by size
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, b"1000")
        finally:
            os.close(file)


def be_called(name: str, before: str) -> None:
    """Replace `before` by `name` in what `ps` shows of this process. The new text must not be longer, because
    Linux shows the memory that holds the arguments.
    """
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        place, shown = int(fields[45]), Path("/proc/self/cmdline").read_bytes()
        renamed = shown.replace(before.encode(), name.encode())
        if place and len(renamed) <= len(shown):
            ctypes.memmove(place, renamed.ljust(len(shown), b"\0"), len(shown))


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own parent, instead of the init process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> frozenset[int]:
    """The children that any thread of this process started or adopted; empty if the kernel does not tell."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found.update(map(int, (task / "children").read_text(encoding="ascii").split()))
    return frozenset(found)


def end_children() -> None:
    """End every descendant in any session. A process that loses its parent this way is adopted and ended,
    too. Processes that clean up after others, such as shared memory trackers, get a moment to do so.
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
    """Reap those of these children that have ended."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child that is not reaped yet; ignore it if the child has ended meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; 0 only asks. False if the group is empty.

    The kernel does not reuse a group's number while a process is in it.
    """
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user is in it
        return True
    return True
