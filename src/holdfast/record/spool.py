"""The spool: a bounded ring of lines in a mapped file, which outlives the process that fills it.

To put a line in is a copy in memory: no system call, so no waiting for storage. The file lives on tmpfs and
its blocks are reserved when it is made, so a full tmpfs is an error then and not a SIGBUS later. One process
puts, one thread of it takes. Who holds the file's lock owns the spool: the kernel frees the lock when the
owner dies, however it dies, and whoever gets it next inherits what is left.
"""

import contextlib
import fcntl
import mmap
import os
import threading
from pathlib import Path
from typing import Self

import msgspec

SPOOL_BYTES = 4 * 2**20
"""Some 20,000 events: what a process can record while storage hangs before it drops any."""
LINE_BYTES_MAX = 2**20
"""The longest line that is accepted: a generation of tens of thousands of members fits in it."""

_MAGIC = b"holdfast spool 1"
_WORDS_AT, _OWNER_AT, _RING_AT = 16, 64, 4096
# The words of the header. Head and tail count all bytes since the beginning; only their places wrap.
_HEAD, _TAIL, _DROPPED, _REPORTED, _DROPPED_NS = range(5)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose lines these are, for whoever inherits them."""

    token: str
    source: str
    run: str


class Drops(msgspec.Struct, frozen=True, kw_only=True):
    """How many events were not kept, how many of these the journal tells of, and when the last one was."""

    total: int
    reported: int
    last_ns: int


class Spool:
    """One mapped ring. Made by `create`, or opened by `adopt` (for good) and `snapshot` (for a look)."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        # A store to this view is one aligned machine word, which a kill finds either done or not done.
        self._words = memoryview(self._map)[_WORDS_AT:_OWNER_AT].cast("Q")
        self._ring = memoryview(self._map)[_RING_AT:]
        self._capacity_bytes = len(self._ring)
        self._sealed = False
        # Reentrant, because a signal handler that records may interrupt its own thread inside `put`.
        self._lock = threading.RLock()

    @classmethod
    def create(cls, path: Path, owner: Owner, capacity_bytes: int = SPOOL_BYTES) -> Self:
        """A new, empty spool owned by this process. OSError where there is no room or no right to it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, _RING_AT + capacity_bytes)
            written = msgspec.json.encode(owner)
            if len(written) > _RING_AT - _OWNER_AT:
                raise OSError(f"the names of run and source take {len(written)} bytes in the spool's header")
            os.pwrite(descriptor, written, _OWNER_AT)
            os.pwrite(descriptor, _MAGIC, 0)
            return cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """The spool of a dead process, now ours; None if its owner lives or somebody else was quicker."""
        spool = cls._open(path)
        try:
            fcntl.flock(spool._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            spool.close()
            if isinstance(error, BlockingIOError):
                return None
            raise
        if os.fstat(spool._descriptor).st_nlink == 0:
            # Somebody inherited and removed it between our opening and our locking it.
            spool.close()
            return None
        return spool

    @classmethod
    def snapshot(cls, path: Path) -> bytes:
        """The lines in the spool at `path` now, without touching it, whoever owns it."""
        spool = cls._open(path)
        try:
            return spool.pending()
        finally:
            spool.close()

    @classmethod
    def _open(cls, path: Path) -> Self:
        real = path.resolve()
        descriptor = os.open(real, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size <= _RING_AT or os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
                raise OSError(f"{path} is not a spool")
            return cls(real, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def put(self, line: bytes) -> bool:
        """Append a line; False where it does not fit. Once this has returned True, no SIGKILL loses it."""
        size = len(line)
        if size > LINE_BYTES_MAX:
            return False
        with self._lock:
            # From reading the head to storing it there is no call and no loop, and only at those does the
            # interpreter run signal handlers: a handler that records comes before or after, never in between.
            words, capacity = self._words, self._capacity_bytes
            head = words[_HEAD]
            if self._sealed or size > capacity - (head - words[_TAIL]):
                return False
            begin = head % capacity
            end = begin + size
            if end <= capacity:
                self._ring[begin:end] = line
            else:
                self._ring[begin:] = line[: capacity - begin]
                self._ring[: end - capacity] = line[capacity - begin :]
            # Last, so that whoever finds the spool never finds half a line.
            words[_HEAD] = head + size
            return True

    def pending(self, limit_bytes: int | None = None) -> bytes:
        """The oldest whole lines, all of them or as many as there are in `limit_bytes`."""
        # The head first: the other way round, a busy owner could put in more meanwhile than the ring holds.
        head, tail = self._words[_HEAD], self._words[_TAIL]
        begin = tail % self._capacity_bytes
        size = max(0, min(head - tail, self._capacity_bytes if limit_bytes is None else limit_bytes))
        over = max(0, begin + size - self._capacity_bytes)
        # Copied from the map: a slice of the view, alive in this thread during a fork, would keep the child
        # from closing the map, and so from letting go of the lock.
        lines = self._map[_RING_AT + begin : _RING_AT + begin + size - over]
        lines += self._map[_RING_AT : _RING_AT + over]
        # What its owner released meanwhile is in the journal by now, and may have been written over here.
        return lines[self._words[_TAIL] - tail : lines.rfind(b"\n") + 1]

    @property
    def pending_bytes(self) -> int:
        return self._words[_HEAD] - self._words[_TAIL]

    def release(self, size: int) -> None:
        """The oldest `size` bytes are in the journal now: their place may be used again."""
        self._words[_TAIL] += size

    def seal(self) -> None:
        """From here on nothing more is put in."""
        with self._lock:
            self._sealed = True

    @property
    def owner(self) -> Owner:
        return msgspec.json.decode(self._map[_OWNER_AT:_RING_AT].rstrip(b"\0"), type=Owner)

    @property
    def drops(self) -> Drops:
        return Drops(
            total=self._words[_DROPPED], reported=self._words[_REPORTED], last_ns=self._words[_DROPPED_NS]
        )

    def note(self, drops: Drops) -> None:
        """Write the drops down where whoever inherits the spool finds them."""
        self._words[_DROPPED] = drops.total
        self._words[_REPORTED] = drops.reported
        self._words[_DROPPED_NS] = drops.last_ns

    def close(self) -> None:
        """Let go of the file, and of its lock unless a forked process still has it too. Lines in it stay."""
        self._words.release()
        self._ring.release()
        self._map.close()
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
