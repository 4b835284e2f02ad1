"""The lines of a running run, kept in a file of its directory for viewers that attach later or again.

Several processes append to it: this machine's agents append the members' output, the coordinator Holdfast's
own lines. The file is bounded: when it is full, it starts again. One character before each line marks its
stream.
"""

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.run.output import BACKLOG_LINES_MAX, CLOSE_WAIT_S, Stream, write_whole

LINES_FILE = "lines"
LINES_BYTES_MAX = 16 << 20
LOOK_LINES = 256
"""After this many lines of its own, a process checks the size of the file."""
READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 10
"""A file that has started again may have grown beyond what was read. It is recognised because the last bytes
that were read are not there any more; these are enough to have a line that does not repeat.
"""

_MARKS: dict[Stream, bytes] = {"stdout": b"1", "stderr": b"2"}
_STREAMS: dict[bytes, Stream] = {mark: stream for stream, mark in _MARKS.items()}


class KeptLines:
    """The file for a process that appends to it, with a thread of its own: if the home does not respond,
    lines are lost here, but nothing waits.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queue: queue.Queue[bytes | None] = queue.Queue(BACKLOG_LINES_MAX)
        self._thread = threading.Thread(target=self._work, name="holdfast-lines", daemon=True)
        self._thread.start()

    @classmethod
    def opened(cls, path: Path) -> "KeptLines | None":
        """Open the file. None if it cannot be written: the run continues, but cannot be viewed later."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            return cls(os.open(path, flags, 0o600))
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
                if lines % LOOK_LINES == 0 and os.fstat(self._descriptor).st_size > LINES_BYTES_MAX:
                    os.ftruncate(self._descriptor, 0)
                write_whole(self._descriptor, line)
        os.close(self._descriptor)


class KeptLine(msgspec.Struct, frozen=True):
    """One line, with its end."""

    stream: Stream
    data: bytes


class LinesReader:
    """Reads the file while others append to it."""

    def __init__(self, path: Path) -> None:
        """Raise `OSError` if there is no such file."""
        self._file = path.open("rb", buffering=0)
        self._begin_again()

    def _begin_again(self) -> None:
        self._offset = 0
        self._tail = b""
        """The last bytes before the offset."""
        self._rest = b""

    def new(self) -> Iterator[KeptLine]:
        """The whole lines that were added since the last call."""
        while True:
            known = len(self._tail)
            data = os.pread(self._file.fileno(), known + READ_BYTES, self._offset - known)
            if not data.startswith(self._tail):  # the file has started again
                self._begin_again()
                continue
            if len(data) == known:
                return
            self._offset += len(data) - known
            self._tail = data[-TAIL_BYTES:]
            *lines, self._rest = (self._rest + data[known:]).split(b"\n")
            for line in lines:
                if (stream := _STREAMS.get(line[:1])) is not None:
                    yield KeptLine(stream, line[1:] + b"\n")

    def close(self) -> None:
        self._file.close()
