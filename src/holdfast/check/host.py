"""A node without its GPUs: its disk, its memory and its clock."""

import ctypes
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.check.figures import CheckedFigure, figure, unmeasured
from holdfast.record.errors import InputError

DISK_BYTES, BLOCK_BYTES = 256 << 20, 8 << 20
DISK_MB_PER_S_MIN = 100.0
"""Less than a hard disk writes in a row."""
COPY_BYTES, COPY_ROUNDS = 256 << 20, 4
CLOCK_S_MAX = 0.1
"""By which a clock may be wrong: records of several nodes are put in order by it."""
EDAC = Path("/sys/devices/system/edac/mc")
STA_UNSYNC = 0x40
"""Of adjtimex(2)."""


def host_figures(folder: Path) -> Iterator[CheckedFigure]:
    yield from _disk(folder)
    yield _memory()
    yield from _memory_errors(EDAC)
    yield _clock()


def _disk(folder: Path) -> Iterator[CheckedFigure]:
    """A file in the folder, written until the disk has it, and read from there."""
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
        if not folder.is_dir():
            raise InputError(
                f"{folder} is not a directory.", hint="Name one on the disk to try with --directory."
            ) from None
        yield unmeasured("disk.write", "MB/s", (error.strerror or str(error)).lower())
        return
    size_mb = DISK_BYTES / 1e6
    yield figure("disk.write", size_mb / (written - begun), "MB/s", least=DISK_MB_PER_S_MIN)
    yield figure("disk.read", size_mb / (ended - again), "MB/s", least=DISK_MB_PER_S_MIN)


def _memory() -> CheckedFigure:
    """One processor's copies: only a site's own reference says what they should reach."""
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    took_s = []
    for _ in range(COPY_ROUNDS):
        begun = time.monotonic()
        target[:] = source
        took_s.append(time.monotonic() - begun)
    return figure("memory.copy", 2 * COPY_BYTES / min(took_s) / 1e9, "GB/s")


def _memory_errors(edac: Path) -> Iterator[CheckedFigure]:
    """What the memory controllers counted since they were started; nothing where they do not tell."""
    counts = []
    for file in sorted(edac.glob("mc*/ue_count")):
        try:
            counts.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    if counts:
        yield figure("memory.uncorrected", sum(counts), "errors", most=0)


class _Timex(ctypes.Structure):
    """The beginning of struct timex, and room for the rest of it."""

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
    """By the kernel's own account of how wrong it may be."""
    told = _Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(told)) < 0:
        return unmeasured("clock.error", "s", "the kernel does not tell of its clock")
    if told.status & STA_UNSYNC:
        return unmeasured("clock.error", "s", "nobody keeps the clock: neither chrony nor another daemon")
    return figure("clock.error", told.maxerror / 1e6, "s", most=CLOCK_S_MAX)
