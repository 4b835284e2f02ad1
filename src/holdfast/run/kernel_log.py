"""What the kernel logs about the GPUs of this machine while a run goes on, as far as it may be read.

/dev/kmsg is opened once, at its end, and read on without waiting whenever a worker has failed. Only records
of the kernel's own facility count: a program may have written the others. Where it may not be read, and that
often takes root, there is nothing: never an error, and no delay beyond `READ_S_MAX`.
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
"""NVIDIA's driver has a folder for each GPU here, by its PCI address."""
READ_S_MAX = 0.05
"""In one look at what is new; a record takes a few microseconds."""
OVERRUNS_MAX = 100
"""How often in a row the kernel may overwrite what is about to be read."""
KEPT_MAX = 64
RECENT_S = 10.0
"""An Xid that names no process is taken for that of a worker that failed at most so long after it, where the
machine has one GPU only."""


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
            except OSError:  # a terminal, say, as in some containers
                self.close()

    def xid_of(self, pid: int, now_s: float) -> Xid | None:
        """The last Xid about this process; else, where there is one GPU, the last recent one that names none.

        now_s: since boot. With several GPUs an Xid without a process may be about another worker's GPU.
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
        """One record, from /dev/kmsg; empty where there is none."""
        if self._descriptor is None:
            return b""
        for _ in range(OVERRUNS_MAX):
            try:
                return os.read(self._descriptor, LINE_BYTES_MAX)
            except BrokenPipeError:
                continue  # the kernel has overwritten what was next, and goes on with the oldest there is
            except OSError:
                break
        return b""


def _only_gpu(gpus: Path) -> str | None:
    """The PCI address of this machine's one GPU; None where it has several, or none that can be seen.

    A container may see one GPU of many and the log of them all, so the address counts too.
    """
    try:
        found = [pci_address(entry.name) for entry in gpus.iterdir()]
    except OSError:
        return None
    return (found[0] or None) if len(found) == 1 else None
