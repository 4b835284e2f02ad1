"""Chunks: the bytes of checkpoints, cut into pieces of a fixed size, each named by the hash of its bytes.

They are stored in packs, files that are written once from beginning to end and never changed. A pack is
durable and was read back before anything refers to it. A pack that nothing refers to any more is removed as a
whole. The manifest of a checkpoint lists its chunks.
"""

import contextlib
import errno
import fcntl
import os
import queue
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from blake3 import blake3

from holdfast.record.errors import InputError
from holdfast.record.files import sync
from holdfast.train.pack_file import PackFile, ReadBack

CHUNK_BYTES = 1 << 20
"""Small enough that sparse changes leave most chunks unchanged; 16 GB make 16,000 chunks."""
PACK_BYTES = 64 << 20
"""A pack has this size plus at most one chunk: while one is written, the previous one is synced and read
back.
"""
NAME_BYTES = 32
FOLDER = "chunks"
PACKERS, PACKS_BEHIND_MAX = 4, 5
"""Threads that write packs, sync them and read them back, so that one writes while another reads; and the
most packs that they write or have in their queue.
"""
HASHERS_MAX, HASHES_AHEAD = 4, 4
"""The most threads that hash (one per two cores), and how many chunks each is given ahead of writing."""
LOCK_S_MAX, LOCK_LOOK_S = 60.0, 0.01
"""How long a writer waits for a process that removes packs, and how often it looks."""
READERS_MAX, READERS_OF_CORE = 16, 4
"""Threads that read and compare chunks: some wait for the disk while others compare. Training is idle."""
READ_TOGETHER = 8
"""Chunks that one thread reads in a row."""
_PACK = re.compile(r"[0-9a-f]{16}-[0-9]{6}\.pack")
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}

Memory = memoryview | bytes | bytearray
Task = TypeVar("Task")


class Unsound(Exception):
    """The file is not a checkpoint, is incomplete, or is not as it was written."""


class DamagedCheckpoints(InputError):
    """No requested checkpoint is sound. That is a result, not a mistake of the caller."""

    exit_code = 1


class NewerFormat(Unsound):
    """A newer version of Holdfast wrote it."""


class OlderFormat(Unsound):
    """An older version of Holdfast wrote it."""


class ChunkPlace(NamedTuple):
    """Where a chunk is: this many bytes of a pack, from this offset."""

    pack: str
    offset: int
    size_bytes: int


class _Crew:
    """Threads that work through a queue of tasks. Unlike the threads of an executor, they do not keep the
    process from ending while storage hangs.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[..., Task], *arguments: object) -> "Future[Task]":
        future: Future[Task] = Future()
        self._tasks.put((future, partial(work, *arguments)))
        return future

    def dismiss(self) -> None:
        """Let the threads end after the tasks submitted so far."""
        for _ in range(self._count):
            self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, work = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # raised again by future.result()
                future.set_exception(error)
            del task, future, work  # they may hold a state


# ---- names -----------------------------------------------------------------------------------------------


def name_of(data: Memory) -> bytes:
    """The hash that names a chunk. Other threads can run meanwhile."""
    return blake3(data).digest()


def pieces_of(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Beginning and end of each chunk of this byte range."""
    return ((at, min(at + CHUNK_BYTES, end)) for at in range(begin, end, CHUNK_BYTES))


# ---- writing ---------------------------------------------------------------------------------------------


class PackWriter:
    """Writes chunks into new packs of a folder. Nothing refers to them until `close` has returned.

    Some threads hash chunks ahead; others write full packs, sync them and read them back. Chunks are not
    copied, so the caller must not change them until `close` has returned.
    """

    def __init__(
        self,
        folder: Path,
        known: Mapping[bytes, ChunkPlace],
        wait: Callable[[int], None] = lambda _: None,
    ) -> None:
        """known: stored chunks that may be referred to. wait: blocks until this many bytes may be written."""
        self._folder = folder
        self._wait = wait
        self._token = secrets.token_hex(8)
        self._places = dict(known)
        self._filling: list[memoryview] = []
        self._filled_bytes = 0
        self._behind: list[tuple[Future[None], PackFile]] = []
        self._packers = _Crew(PACKERS, "holdfast packs")
        hashers = max(1, min(HASHERS_MAX, len(os.sched_getaffinity(0)) // 2))
        self._hashers = _Crew(hashers, "holdfast hashes")
        self._ahead = HASHES_AHEAD * hashers
        self._is_open = True
        self.packs: dict[str, int] = {}
        self.written_bytes = 0

    def add_all(self, chunks: Iterable[memoryview]) -> Iterator[tuple[bytes, ChunkPlace]]:
        """Name and place of each chunk, in order. Known chunks are not written again."""
        ahead: list[tuple[memoryview, Future[bytes]]] = []
        for chunk in chunks:
            ahead.append((chunk, self._hashers.submit(name_of, chunk)))
            if len(ahead) > self._ahead:
                yield self._add(*ahead.pop(0))
        for waiting in ahead:
            yield self._add(*waiting)

    def _add(self, chunk: memoryview, name: Future[bytes]) -> tuple[bytes, ChunkPlace]:
        known = self._places.get(found := name.result())
        if known is None or known.size_bytes != len(chunk):
            known = self._places[found] = self._append(chunk)
        return found, known

    def _append(self, chunk: memoryview) -> ChunkPlace:
        place = ChunkPlace(f"{self._token}-{len(self.packs):06d}.pack", self._filled_bytes, len(chunk))
        self._filling.append(chunk)
        self._filled_bytes += len(chunk)
        self.written_bytes += len(chunk)
        if self._filled_bytes >= PACK_BYTES:
            self._pack(place.pack)
        return place

    def _pack(self, name: str) -> None:
        """Hand the gathered chunks to the packers."""
        self.packs[name] = self._filled_bytes  # before it exists, so that `abandon` removes it
        file = PackFile(self._folder / name, self._wait)
        self._behind.append((self._packers.submit(_write, file, self._filling), file))
        self._filling, self._filled_bytes = [], 0
        while len(self._behind) > PACKS_BEHIND_MAX:
            self._behind.pop(0)[0].result()

    def close(self) -> None:
        """Make all packs durable; a second call does nothing. Raises `OSError` or `Unsound`."""
        if self._filling:
            self._pack(f"{self._token}-{len(self.packs):06d}.pack")
        while self._behind:
            self._behind.pop(0)[0].result()
        if self.packs and self._is_open:
            sync(self._folder)
        self._dismiss()

    def abandon(self) -> None:
        """Remove all packs written so far, after a failure."""
        unwritten = [file for writing, file in self._behind if writing.cancel()]
        self._dismiss()
        for file in unwritten:
            with contextlib.suppress(OSError):
                file.close()
        for pack in self.packs:
            with contextlib.suppress(OSError):
                (self._folder / pack).unlink()

    def _dismiss(self) -> None:
        if self._is_open:
            self._is_open = False
            self._packers.dismiss()
            self._hashers.dismiss()


def _write(file: PackFile, chunks: list[memoryview]) -> None:
    try:
        file.write(chunks)
    except ReadBack as error:
        raise Unsound(str(error)) from None


# ---- reading ---------------------------------------------------------------------------------------------


class WantedChunk(NamedTuple):
    """A chunk by its name, and the memory for its bytes; None if it is only to be verified."""

    name: bytes
    place: ChunkPlace
    into: memoryview | None


def read_chunks(folder: Path, wanted: Iterable[WantedChunk]) -> None:
    """Read and compare chunks. Raises `Unsound`, or `OSError` for a file that exists but cannot be read."""
    rows = list(_rows(wanted))
    if len(rows) <= 1:  # including callers that read chunk by chunk
        for pack, chunks in rows:
            _read_row(folder / pack, chunks)
        return
    count = min(READERS_MAX, READERS_OF_CORE * len(os.sched_getaffinity(0)), len(rows))
    readers = _Crew(count, "holdfast chunks")
    begun = [readers.submit(_read_row, folder / pack, chunks) for pack, chunks in rows]
    readers.dismiss()
    try:
        for reading in begun:
            reading.result()
    except BaseException:
        for reading in begun:
            reading.cancel()
        raise


def _rows(wanted: Iterable[WantedChunk]) -> Iterator[tuple[str, list[WantedChunk]]]:
    """Groups of consecutive chunks of a pack, each for one thread to read in a row."""
    by_pack: dict[str, list[WantedChunk]] = {}
    for one in wanted:
        by_pack.setdefault(one.place.pack, []).append(one)
    for pack, chunks in by_pack.items():
        chunks.sort(key=lambda one: one.place.offset)
        for begin in range(0, len(chunks), READ_TOGETHER):
            yield pack, chunks[begin : begin + READ_TOGETHER]


def _read_row(path: Path, wanted: list[WantedChunk]) -> None:
    scratch = memoryview(
        bytearray(max((each.place.size_bytes for each in wanted if each.into is None), default=0))
    )
    try:
        with plain_file(path) as descriptor:
            for name, place, into in wanted:
                target = scratch[: place.size_bytes] if into is None else into
                _read_into(descriptor, target, place.offset)
                if name_of(target) != name:
                    raise Unsound(f"the hash of its chunk at byte {place.offset} does not agree")
    except FileNotFoundError:
        if path.is_symlink():
            raise  # a broken link, such as into a filesystem that is not mounted
        raise Unsound(f"its chunks in {path.name} are missing") from None
    except Unsound as error:
        raise Unsound(f"its pack {path.name} is damaged: {error}") from None


def _read_into(descriptor: int, target: memoryview, offset: int) -> None:
    at = 0
    while at < len(target):
        count = os.preadv(descriptor, [target[at:]], offset + at)
        if count == 0:
            raise Unsound(f"it ends at byte {offset + at}, inside a chunk")
        at += count


@contextlib.contextmanager
def plain_file(path: Path) -> Iterator[int]:
    """A descriptor to read the file with. Opening never blocks, not even on a pipe that another user put
    here. Every `OSError` names the file, including that of a read, which itself knows only the descriptor.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unsound("it is not a plain file")
        yield descriptor
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


# ---- the folder ------------------------------------------------------------------------------------------


def is_pack(name: str) -> bool:
    return _PACK.fullmatch(name) is not None


def age_s(pack: Path) -> float:
    """Seconds since the pack was last written to; 0 if it is gone."""
    try:
        return time.time() - pack.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def packs_in(folder: Path) -> dict[str, int]:
    """The packs in the folder, with their sizes."""
    found = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if is_pack(entry.name):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile, or a broken link
                    found[entry.name] = entry.stat().st_size
    return found


Lock = Literal["held", "busy", "none"]
"""busy: another process holds it. none: the filesystem has no locks."""


@contextlib.contextmanager
def locked(folder: Path, *, exclusively: bool = False) -> Iterator[Lock]:
    """Hold the folder's lock, shared to write packs or exclusively to remove them. An exclusive request never
    waits ("busy"). A shared one waits for a bounded time and then raises `TimeoutError`.
    """
    descriptor = _lock_file(folder)
    try:
        yield _flock(descriptor, fcntl.LOCK_EX) if exclusively else _flock_soon(descriptor)
    finally:
        # A child that was forked meanwhile has the descriptor, too, but must not keep the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock_file(folder: Path) -> int:
    """Open the lock file. Whatever the creator's umask, all who may write to the folder may lock it."""
    how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        descriptor = os.open(folder / ".lock", how | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(folder / ".lock", how, 0o666)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(folder.stat().st_mode) & 0o666)
    return descriptor


def _flock_soon(descriptor: int) -> Lock:
    """Wait for the shared lock. A removal takes only a moment, unless its process was paused."""
    until_s = time.monotonic() + LOCK_S_MAX
    while (found := _flock(descriptor, fcntl.LOCK_SH)) == "busy":
        if time.monotonic() > until_s:
            raise TimeoutError(errno.ETIMEDOUT, f"another process has its lock for {LOCK_S_MAX:.0f} s")
        time.sleep(LOCK_LOOK_S)
    return found


def _flock(descriptor: int, how: int) -> Lock:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return "busy"
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return "none"
    return "held"


def remove_packs(folder: Path, doomed: Collection[str]) -> int:
    """Remove packs; returns how many bytes that frees. Packs already gone, or that cannot go, are skipped."""
    freed = 0
    for pack in doomed:
        with contextlib.suppress(OSError):
            size = (folder / pack).stat().st_size
            (folder / pack).unlink()
            freed += size
    return freed
