"""The spool: a bounded ring of lines in a mapped file, which outlives the process that fills it.

Adding a line is a copy in memory: no system call, so no waiting for storage. The file lives on tmpfs and its
blocks are reserved when it is made, so a full tmpfs is an error then and not a SIGBUS later. One process puts
lines in, and one of its threads takes them out. The process that holds the file's lock owns the spool: the
kernel frees the lock when the owner dies in any way, and the next process that gets it inherits the remaining
lines. A spool's name has its process's token and its journal; any user may make a file of that name, so a
reader first checks whether it can be trusted.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import mmap
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

SHARED_MEMORY = Path("/dev/shm")
LINE_BYTES_MAX = 2**20
"""The longest line that is accepted: a generation of tens of thousands of members fits in it."""
SPOOL_BYTES = 4 * 2**20
"""Some 20,000 events: what a process can record while storage hangs before it drops any."""
SPOOL_BYTES_MIN = LINE_BYTES_MAX
"""If there is not even room for this, the spool has to go elsewhere."""
FREE_SHARE_MAX = 1 / 16
"""A spool takes no more of the free shared memory: collectives and data loaders use it too, and die of a
SIGBUS if it runs out. With the minimum above, 15 MiB are always left to them."""
UNFINISHED_S_MAX = 60.0
"""A spool without a header for this long was left behind by a process that died while making it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAGIC = b"holdfast spool 1"
_WORDS_AT, _OWNER_AT, _RING_AT = 16, 64, 4096
# The words of the header. Head and tail count all bytes since the beginning; only their places wrap.
_HEAD, _TAIL, _DROPPED, _REPORTED, _DROPPED_NS = range(5)
_NAME = re.compile(r"holdfast-(?P<journal>[0-9a-f]{16})-(?P<token>[a-z2-7]{12})\.spool")


class SpoolName(NamedTuple):
    """The name of a spool's file: the digest of its journal's path, and its process's token."""

    journal: str
    token: str

    def __str__(self) -> str:
        return f"holdfast-{self.journal}-{self.token}.spool"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """None for anything but exactly such a name: tokens become parts of paths."""
        found = _NAME.fullmatch(name)
        return cls(found["journal"], found["token"]) if found else None


def journal_digest(path: Path) -> str:
    """The digest of a journal's absolute path in the names of its spools."""
    return hashlib.sha256(os.path.normpath(os.fsencode(path))).hexdigest()[:16]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of these lines, for the process that inherits them, and the machine whose lock counts."""

    token: str
    source: str
    run: str
    host: str
    boot_id: str

    @classmethod
    def here(cls, *, token: str, run: str) -> Self:
        host = os.uname().nodename
        return cls(token=token, source=f"{host}/{os.getpid()}", run=run, host=host, boot_id=boot_id())

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the owner ran on this machine, in this boot or an earlier one."""
        return is_this_machine(self.host, self.boot_id)


@functools.cache
def boot_id() -> str:
    """Identifies this boot of the kernel; the same in all its containers."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def is_this_machine(host: str, boot: str) -> bool:
    """Whether a process ran on this machine. host: its node name. boot: its `boot_id`."""
    return boot == boot_id() or host == os.uname().nodename


class Drops(msgspec.Struct, frozen=True, kw_only=True):
    """How many events were dropped, how many of these are reported in the journal, and when the last was."""

    total: int
    reported: int
    last_ns: int


def affordable_bytes(directory: Path, wanted_bytes: int) -> int:
    """How large a spool may be here: as large as wanted, or smaller. Raises OSError if that is too small."""
    room = os.statvfs(directory)
    size = min(wanted_bytes, int(room.f_bavail * room.f_frsize * FREE_SHARE_MAX))
    if size < min(wanted_bytes, SPOOL_BYTES_MIN):
        raise OSError(errno.ENOSPC, "too little room for a spool", str(directory))
    return size


class Spool:
    """One mapped ring. Made by `create`, or opened by `adopt` (to own it) and `snapshot` (to read it)."""

    def __init__(self, path: Path, descriptor: int, owner: Owner, flags: int = mmap.MAP_SHARED) -> None:
        self.path = path
        self.owner = owner
        # The map keeps a duplicate of the descriptor, and with it the lock.
        self._map = mmap.mmap(descriptor, 0, flags=flags)
        # A store to this view is one aligned machine word, which a kill finds either done or not done.
        self._words = memoryview(self._map)[_WORDS_AT:_OWNER_AT].cast("Q")
        self._ring = memoryview(self._map)[_RING_AT:]
        self._capacity_bytes = len(self._ring)
        self._sealed = False
        # Reentrant, because a signal handler that records may interrupt its own thread inside `put`.
        self._lock = threading.RLock()

    @classmethod
    def create(cls, path: Path, owner: Owner, capacity_bytes: int = SPOOL_BYTES) -> Self:
        """Make a new, empty spool owned by this process. Raises OSError without room or permission."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, _RING_AT + capacity_bytes)
            written = msgspec.json.encode(owner)
            if len(written) > _RING_AT - _OWNER_AT:
                raise OSError(f"the names of run and source take {len(written)} bytes in the spool's header")
            os.pwrite(descriptor, written, _OWNER_AT)
            os.pwrite(descriptor, _MAGIC, 0)
            return cls(path, descriptor, owner, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    @classmethod
    def adopt(cls, path: Path, trusted_uids: Collection[int]) -> Self | None:
        """Take over the spool of a dead process; None if its owner lives or another process was quicker.

        None also for a spool of another machine, whose lock may not be visible here. A spool that its process
        did not finish making is empty, and is removed.
        """
        with _opened(path, trusted_uids) as descriptor:
            unfinished = _is_unfinished(descriptor)
            if unfinished and time.time() - os.fstat(descriptor).st_mtime < UNFINISHED_S_MAX:
                # Its process is about to lock it, and must not find it locked.
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if os.fstat(descriptor).st_nlink != 1:
                # Another process inherited and removed it between our opening and our locking it.
                return None
            if unfinished:
                path.unlink()
                return None
            owner = _read_owner(path, descriptor)
            return cls(path, descriptor, owner) if owner.is_of_this_machine else None

    @classmethod
    def snapshot(cls, path: Path, trusted_uids: Collection[int]) -> bytes:
        """The lines in the spool at `path` now, without touching it, even if it has an owner."""
        with _opened(path, trusted_uids) as descriptor:
            if _is_unfinished(descriptor):
                return b""
            with contextlib.closing(cls(path, descriptor, _read_owner(path, descriptor))) as spool:
                return spool.pending()

    def put(self, line: bytes) -> bool:
        """Append a line; False if it does not fit. Once this has returned True, no SIGKILL loses it."""
        size = len(line)
        if size > LINE_BYTES_MAX:
            return False
        with self._lock:
            # From reading the head to storing it there is no call and no loop, and only at those does the
            # interpreter run signal handlers: a handler that records, or raises, comes before or after, never
            # in between.
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
            # Last, so that no process ever finds half a line in the spool.
            words[_HEAD] = head + size
            return True

    def pending(self, limit_bytes: int | None = None) -> bytes:
        """The oldest whole lines, all of them or as many as fit into `limit_bytes`."""
        # Read the head first: in the other order, a busy owner could add more meanwhile than the ring holds.
        head, tail = self._words[_HEAD], self._words[_TAIL]
        begin = tail % self._capacity_bytes
        size = max(0, min(head - tail, self._capacity_bytes if limit_bytes is None else limit_bytes))
        over = max(0, begin + size - self._capacity_bytes)
        # Copied from the map: a slice of the view, alive in this thread during a fork, would keep the child
        # from closing the map, and so from releasing the lock.
        lines = self._map[_RING_AT + begin : _RING_AT + begin + size - over]
        lines += self._map[_RING_AT : _RING_AT + over]
        # Lines that the owner released meanwhile are in the journal by now, and may be overwritten here.
        return lines[self._words[_TAIL] - tail : lines.rfind(b"\n") + 1]

    @property
    def pending_bytes(self) -> int:
        return self._words[_HEAD] - self._words[_TAIL]

    def release(self, size: int) -> None:
        """Free the oldest `size` bytes, which are in the journal now."""
        self._words[_TAIL] += size

    def seal(self) -> None:
        """Accept no more lines."""
        with self._lock:
            self._sealed = True

    @property
    def drops(self) -> Drops:
        return Drops(
            total=self._words[_DROPPED], reported=self._words[_REPORTED], last_ns=self._words[_DROPPED_NS]
        )

    def note(self, drops: Drops) -> None:
        """Write the drops into the spool, for the process that inherits it."""
        self._words[_DROPPED] = drops.total
        self._words[_REPORTED] = drops.reported
        self._words[_DROPPED_NS] = drops.last_ns

    def close(self) -> None:
        """Close the file, and release its lock unless a forked process still has it too. Its lines stay."""
        self._words.release()
        self._ring.release()
        self._map.close()


@contextlib.contextmanager
def _opened(path: Path, trusted_uids: Collection[int]) -> Iterator[int]:
    """The file's descriptor, if it is a plain file of a trusted user and not a link."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in trusted_uids:
            raise PermissionError(errno.EPERM, "not a file of a trusted user", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _is_unfinished(descriptor: int) -> bool:
    return not os.pread(descriptor, len(_MAGIC), 0).strip(b"\0")


def _read_owner(path: Path, descriptor: int) -> Owner:
    """The owner in the header, if this is a spool of the process that the file's name gives."""
    header, size_bytes = os.pread(descriptor, _RING_AT, 0), os.fstat(descriptor).st_size
    name = SpoolName.parse(path.name)
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        owner = msgspec.json.decode(header[_OWNER_AT:].rstrip(b"\0"), type=Owner)
        if header.startswith(_MAGIC) and size_bytes > _RING_AT and name and name.token == owner.token:
            return owner
    raise OSError(errno.EINVAL, "not a spool", str(path))
