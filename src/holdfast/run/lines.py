"""The lines of a running run, kept in a file of its directory for viewers that attach later or again.

Several processes append to it: this machine's agents append the members' output, the coordinator Holdfast's
own lines. The file is bounded: when it is full, it starts again with its last quarter, so a viewer that lags
by less loses no line. One character before each line marks its stream; a first line with another mark says
how many bytes are gone. A lock keeps others out while the file starts again.
"""

import fcntl
import os
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.run.output import BACKLOG_LINES_MAX, CLOSE_WAIT_S, Stream, write_whole

LINES_FILE = "lines"
LINES_BYTES_MAX = 16 << 20
LOOK_LINES = 256
"""After this many lines of its own, a process checks the size of the file."""
READ_BYTES = 1 << 16
KEPT_SHARE = 4
"""Of a full file one part in so many is kept."""
_GONE = re.compile(rb"0([0-9]{20})\n")
_GONE_BYTES = 22

_MARKS: dict[Stream, bytes] = {"stdout": b"1", "stderr": b"2"}
_STREAMS: dict[bytes, Stream] = {mark: stream for stream, mark in _MARKS.items()}


class KeptLines:
    """The file for a process that appends to it, with a thread of its own: if the home does not respond,
    lines are lost here, but nothing waits.
    """

    def __init__(self, descriptor: int, bytes_max: int) -> None:
        self._descriptor = descriptor
        self._bytes_max = bytes_max
        self._queue: queue.Queue[bytes | None] = queue.Queue(BACKLOG_LINES_MAX)
        self._thread = threading.Thread(target=self._work, name="holdfast-lines", daemon=True)
        self._thread.start()

    @classmethod
    def opened(cls, path: Path, bytes_max: int = LINES_BYTES_MAX) -> "KeptLines | None":
        """Open the file. None if it cannot be written: the run continues, but cannot be viewed later."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            return cls(os.open(path, flags, 0o600), bytes_max)
        except OSError:
            return None

    def keep(self, stream: Stream, line: bytes) -> None:
        """Append a line with its end, or drop it if too many wait."""
        with suppress(queue.Full):
            self._queue.put_nowait(_MARKS[stream] + line)

    def close(self) -> None:
        """Wait until everything is written, for a bounded time."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_WAIT_S)
            self._thread.join(CLOSE_WAIT_S)

    def _work(self) -> None:
        lines = 0
        while (line := self._queue.get()) is not None:
            lines += 1
            with suppress(OSError):  # the disk may be full only for a while
                if lines % LOOK_LINES == 0 and os.fstat(self._descriptor).st_size > self._bytes_max:
                    self._start_again()
                with _shared(self._descriptor):
                    write_whole(self._descriptor, line)
        os.close(self._descriptor)

    def _start_again(self) -> None:
        """Keep the last lines only. If another process is at the file, leave it for the next time."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # a filesystem without locks
            os.ftruncate(self._descriptor, 0)
            return
        try:
            size = os.fstat(self._descriptor).st_size
            if size > self._bytes_max:  # no other process has just done it
                gone, begin = _gone(self._descriptor)
                kept = os.pread(
                    self._descriptor, self._bytes_max // KEPT_SHARE, size - self._bytes_max // KEPT_SHARE
                )
                kept = kept[kept.find(b"\n") + 1 :]
                gone += size - len(kept) - begin
                os.ftruncate(self._descriptor, 0)
                write_whole(self._descriptor, b"0%020d\n" % gone + kept)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


@contextmanager
def _shared(descriptor: int) -> Iterator[None]:
    """The file does not start again meanwhile, where the filesystem has locks."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _gone(descriptor: int) -> tuple[int, int]:
    """How many bytes of lines are gone, and where the others begin."""
    match = _GONE.match(os.pread(descriptor, _GONE_BYTES, 0))
    return (int(match[1]), _GONE_BYTES) if match else (0, 0)


class KeptLine(msgspec.Struct, frozen=True):
    """One line, with its end."""

    stream: Stream
    data: bytes


class LinesReader:
    """Reads the file while others append to it."""

    def __init__(self, path: Path) -> None:
        """Raise `OSError` if there is no such file."""
        self._file = path.open("rb", buffering=0)
        self._position = 0
        """How many bytes of lines were read or are gone."""
        self._rest = b""

    def new(self) -> Iterator[KeptLine]:
        """The whole lines that were added since the last call."""
        while data := self._read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if (stream := _STREAMS.get(line[:1])) is not None:
                    yield KeptLine(stream, line[1:] + b"\n")

    def _read(self) -> bytes:
        descriptor = self._file.fileno()
        with _shared(descriptor):
            gone, begin = _gone(descriptor)
            known = os.fstat(descriptor).st_size - begin
            if not gone <= self._position <= gone + known:  # it has started again without what was not read
                self._position, self._rest = gone, b""
            data = os.pread(descriptor, READ_BYTES, begin + self._position - gone)
        self._position += len(data)
        return data

    def close(self) -> None:
        self._file.close()
