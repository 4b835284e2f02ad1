"""A node's disk, memory and clock, and the readings of its GPU driver.

Also a program of its own, `python -m holdfast.check.host`, which writes each result as a line of JSON: a
mount or a driver may hang, and must not hang the check.
"""

import ctypes
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.check.child import written_by
from holdfast.check.figures import CheckedFigure, figure, unmeasured
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.nvml import NvmlCollector
from holdfast.signals.frame import Reading

DISK_BYTES, BLOCK_BYTES = 256 << 20, 8 << 20
DISK_MB_PER_S_MIN = 100.0
"""Less than a hard disk's sequential write speed."""
COPY_BYTES, COPY_ROUNDS = 256 << 20, 4
CLOCK_S_MAX = 0.1
"""The most that a clock may be wrong: the records of several nodes are put in order by it."""
EDAC = Path("/sys/devices/system/edac/mc")
STA_UNSYNC = 0x40
"""A flag of adjtimex(2)."""


class HostLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the three is set. complaint: why the driver could not be read."""

    figure: CheckedFigure | None = None
    reading: Reading | None = None
    complaint: str = ""


PARTS = ("disk", "memory", "clock", "driver")


def main(words: Sequence[str]) -> int:
    """words: the directory to try, then the parts to check."""
    folder, parts = Path(words[0]), words[1:]
    for line in _lines(folder, parts):
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _lines(folder: Path, parts: Sequence[str]) -> Iterator[HostLine]:
    figures: dict[str, Callable[[], Iterable[CheckedFigure]]] = {
        "disk": lambda: _disk(folder),
        "memory": lambda: (_memory(), *_memory_errors(EDAC)),
        "clock": lambda: (_clock(),),
    }
    for part, found in figures.items():
        if part in parts:
            yield from (HostLine(figure=one) for one in found())
    if "driver" in parts:
        yield from _driver()


def _driver() -> Iterator[HostLine]:
    try:
        with closing(NvmlCollector(clock=SystemClock(), host="")) as collector:
            yield from (HostLine(reading=one) for one in collector.collect())
    except Unavailable as error:
        yield HostLine(complaint=str(error))
    except ModuleNotFoundError:
        yield HostLine(complaint="the GPU driver cannot be read: pynvml is not installed.")


class HostFound(NamedTuple):
    figures: list[CheckedFigure]
    readings: list[Reading]
    complaint: str


def look_at_host(folder: Path, parts: Sequence[str], until_s: float) -> HostFound:
    """Check these of `PARTS`, the disk first. If they take too long, a figure `host` is added as not good."""
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a directory.", hint="Name one on the disk to try with --directory."
        )
    command = (sys.executable, "-m", "holdfast.check.host", str(folder), *parts)
    output, note = written_by(command, until_s)
    lines = [msgspec.json.decode(line, type=HostLine) for line in output.splitlines()]
    figures = [line.figure for line in lines if line.figure is not None]
    if note:
        figures.append(unmeasured("host", "", note))
    readings = [line.reading for line in lines if line.reading is not None]
    return HostFound(figures, readings, next((line.complaint for line in lines if line.complaint), ""))


def _disk(folder: Path) -> Iterator[CheckedFigure]:
    """Write a file in the folder, force it to the disk, and read it back from there."""
    block = secrets.token_bytes(BLOCK_BYTES)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begun = time.monotonic()
            for _ in range(DISK_BYTES // BLOCK_BYTES):
                if file.write(block) != BLOCK_BYTES:
                    raise OSError(28, "No space left on device")
            os.fsync(file.fileno())
            written = time.monotonic()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            again = time.monotonic()
            while came := file.read(BLOCK_BYTES):
                if came != block[: len(came)]:
                    yield unmeasured("disk.read", "MB/s", "what was read is not what was written")
                    return
            ended = time.monotonic()
    except OSError as error:
        yield unmeasured("disk.write", "MB/s", (error.strerror or str(error)).lower())
        return
    size_mb = DISK_BYTES / 1e6
    yield figure("disk.write", size_mb / (written - begun), "MB/s", least=DISK_MB_PER_S_MIN)
    yield figure("disk.read", size_mb / (ended - again), "MB/s", least=DISK_MB_PER_S_MIN)


def _memory() -> CheckedFigure:
    """Copy memory with one processor. Only a site's own reference says how fast it should be."""
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    took_s = []
    for _ in range(COPY_ROUNDS):
        begun = time.monotonic()
        target[:] = source
        took_s.append(time.monotonic() - begun)
    return figure("memory.copy", 2 * COPY_BYTES / min(took_s) / 1e9, "GB/s")


def _memory_errors(edac: Path) -> Iterator[CheckedFigure]:
    """The uncorrected errors that the memory controllers counted since boot; nothing without counters."""
    counts = []
    for file in sorted(edac.glob("mc*/ue_count")):
        try:
            counts.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    if counts:
        yield figure("memory.uncorrected", sum(counts), "errors", most=0)


class _Timex(ctypes.Structure):
    """The beginning of struct timex, and space for the rest of it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def _clock() -> CheckedFigure:
    """The kernel's own estimate of its clock's error."""
    told = _Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(told)) < 0:
        return unmeasured("clock.error", "s", "the kernel does not report the state of its clock")
    if told.status & STA_UNSYNC:
        return unmeasured("clock.error", "s", "no time service, such as chrony, synchronises the clock")
    return figure("clock.error", told.maxerror / 1e6, "s", most=CLOCK_S_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
