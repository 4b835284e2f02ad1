"""The kernel's log messages about this machine's GPUs during a run, if the log is readable.

/dev/kmsg is opened once, at its end, and read without waiting whenever a worker has failed. Only records of
the kernel's own facility count, because a program may have written the others. Reading often requires root.
Without permission there are no messages, but never an error, and no delay beyond `READ_S_MAX`.
"""

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from holdfast.record.kernel import LINE_BYTES_MAX, Xid, parse_kmsg, parse_xid, pci_address

KERNEL_LOG = Path("/dev/kmsg")
GPUS = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver has a folder here for each GPU, named by its PCI address."""
READ_S_MAX = 0.05
"""The most time for reading new records; one takes a few microseconds."""
OVERRUNS_MAX = 100
"""How often in a row the kernel may overwrite the next record before it is read."""
KEPT_MAX = 64
RECENT_S = 10.0
"""On a machine with one GPU, an Xid that names no process is attributed to a worker that failed at most this
long after it."""


class _Logged(NamedTuple):
    at_s: float
    xid: Xid


class KernelLog:
    """The Xids that were logged since this was made. gpus: a folder with an entry for each GPU."""

    def __init__(self, path: Path = KERNEL_LOG, gpus: Path = GPUS) -> None:
        self._kept: deque[_Logged] = deque(maxlen=KEPT_MAX)
        self._only_gpu = _only_gpu(gpus)
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.lseek(self._descriptor, 0, os.SEEK_END)
            except OSError:  # for example a terminal, as in some containers
                self.close()

    def xid_of(self, pid: int, now_s: float) -> Xid | None:
        """The last Xid about this process. If there is none and the machine has one GPU, the last recent Xid
        that names no process.

        now_s: since boot. With several GPUs, an Xid without a process may be about another worker's GPU.
        """
        self._read_on()
        own = [logged.xid for logged in self._kept if logged.xid.pid == pid]
        if own:
            return own[-1]
        nobodys = [
            logged.xid
            for logged in self._kept
            if logged.xid.pid is None
            and logged.xid.device == self._only_gpu
            and now_s - logged.at_s <= RECENT_S
        ]
        return nobodys[-1] if nobodys else None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read_on(self) -> None:
        due_s = time.monotonic() + READ_S_MAX
        while time.monotonic() < due_s and (record := self._next()):
            for line in record.decode("utf-8", "replace").split("\n"):
                logged = parse_kmsg(line)
                if logged is not None and logged.is_kernels and (xid := parse_xid(logged.text)):
                    self._kept.append(_Logged(at_s=logged.uptime_s, xid=xid))

    def _next(self) -> bytes:
        """One record from /dev/kmsg; empty if there is none."""
        if self._descriptor is None:
            return b""
        for _ in range(OVERRUNS_MAX):
            try:
                return os.read(self._descriptor, LINE_BYTES_MAX)
            except BrokenPipeError:
                continue  # the kernel overwrote the next record, and continues with the oldest one left
            except OSError:
                break
        return b""


def _only_gpu(gpus: Path) -> str | None:
    """The PCI address of this machine's only GPU; None if it has several, or none is visible.

    A container may see one of several GPUs but the log of all, so the address has to match, too.
    """
    try:
        found = [pci_address(entry.name) for entry in gpus.iterdir()]
    except OSError:
        return None
    return (found[0] or None) if len(found) == 1 else None
