"""Following a log that grows: a file, which may be rotated, /dev/kmsg, or what comes on stdin."""

import errno
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.record.kernel import LINE_BYTES_MAX
from holdfast.signals.collectors import Unavailable

CHUNK_BYTES = 64 * 1024
"""At once; more than a record of /dev/kmsg may have, which comes whole or not at all."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""In one look at a log that is followed; what is left is read in the next."""
OVERRUNS_MAX = 100
"""How often in a row the kernel may overwrite what is about to be read before the next look has its turn."""
STDIN = 0
_NOTHING_YET = (errno.EAGAIN, errno.EWOULDBLOCK)


class LogFollower:
    """Gives each line of a log once. path: None for stdin."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = STDIN if path is None else None
        self._rest = b""

    def all_lines(self) -> Iterator[bytes]:
        """To the end, with a last line that is not finished; waits for what stdin has still to say."""
        while chunk := self._chunk():
            yield from self._split(chunk)
        if self._rest:
            yield self._rest
            self._rest = b""

    def new_lines(self) -> Iterator[bytes]:
        """What is new and whole; at most `READ_BYTES_MAX` of it, and waiting for nothing."""
        read_bytes = 0
        while read_bytes < READ_BYTES_MAX and self._has_more():
            chunk = self._chunk()
            if not chunk:
                self._at_end()
                return
            read_bytes += len(chunk)
            yield from self._split(chunk)

    def close(self) -> None:
        if self._descriptor is not None and self._path is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _has_more(self) -> bool:
        """A file is always ready to be read, and then gives nothing at its end."""
        return bool(select.select([self._open()], [], [], 0)[0])

    def _open(self) -> int:
        if self._descriptor is None:
            assert self._path is not None
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise Unavailable(
                    f"The kernel log {self._path} cannot be read: {error.strerror}.",
                    hint="/dev/kmsg needs root, or CAP_SYSLOG.",
                ) from None
        return self._descriptor

    def _chunk(self) -> bytes:
        for _ in range(OVERRUNS_MAX):
            try:
                return os.read(self._open(), CHUNK_BYTES)
            except OSError as error:
                # The kernel has overwritten what was next: it goes on with the oldest record there is.
                if error.errno == errno.EPIPE:
                    continue
                if error.errno in _NOTHING_YET:
                    return b""
                raise Unavailable(
                    f"The kernel log {self._path or 'on stdin'} cannot be read: {error.strerror}."
                ) from None
        return b""

    def _split(self, chunk: bytes) -> Iterator[bytes]:
        *whole, rest = (self._rest + chunk).split(b"\n")
        # Of a line without an end no more is kept than is ever read of it.
        self._rest = rest[:LINE_BYTES_MAX]
        yield from whole

    def _at_end(self) -> None:
        """Look whether there will be more, here or in a file that has taken this one's name."""
        if self._path is None:
            raise Unavailable("The kernel log on stdin has ended.", hint="Is what wrote it still running?")
        here = os.fstat(self._open())
        if not stat.S_ISREG(here.st_mode):
            return
        try:
            there = self._path.stat()
        except OSError:
            there = None
        position = os.lseek(self._open(), 0, os.SEEK_CUR)
        replaced = there is None or (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)
        if replaced or here.st_size < position:
            self.close()
            self._rest = b""
