"""The journal: files to which any process adds events without coordination, and the one way to read them.

A journal is a directory. Every process writes files of its own, `<token>-<number>.journal`, and never opens
an old one. A line is the CRC-32 of an event's JSON in eight hex digits, a space, the JSON and a newline.
Reading never fails on a file's content: anything but a whole line with the right checksum comes out as
`Damage`, and reading goes on. docs/journal.md has the format, and what survives which failure.
"""

import base64
import contextlib
import io
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent, FaultObserved, MalformedEvent, decode, encode
from holdfast.record.files import HOME_NAME, make_private_directory, make_private_file, sync
from holdfast.record.spool import LINE_BYTES_MAX, SHARED_MEMORY, Owner, Spool, SpoolName, journal_digest

ROTATE_BYTES = 64 * 2**20
"""A file of this size is closed and the next one begun."""
JOURNAL_SUFFIX = ".journal"
JOURNAL_DIRECTORY = "journal"
"""Where under `home` the processes of this machine record."""
EVENT_COUNT_MAX = 16**10 - 1
_CHECKSUM_BYTES = 9  # eight hex digits and a space


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a journal that is not an event: where, and why. Line 0 stands for the whole file."""

    file: str
    line: int
    reason: str
    torn: bool = False
    """An unfinished last line: left by a crash, or still being written."""


def home(environment: Mapping[str, str]) -> Path:
    """The directory for this user's data: `$HOLDFAST_HOME`, or `~/.holdfast`."""
    return Path(environment.get("HOLDFAST_HOME") or Path.home() / HOME_NAME)


def new_token() -> str:
    """A random name for a source of events."""
    return base64.b32encode(os.urandom(8)).decode().lower()[:12]


def event_id(token: str, count: int) -> str:
    """An id of fixed width, so that ids of one source sort in the order in which they were given out."""
    return f"{token}-{count:010x}"


def line_of(body: bytes) -> bytes:
    """An encoded event as a line of a journal."""
    return b"%08x %b\n" % (zlib.crc32(body), body)


class JournalWriter:
    """The files one process writes, one after the other. `write` and `sync` may fail and be tried again."""

    def __init__(self, directory: Path, token: str, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._directory = directory
        self._token = token
        self._rotate_bytes = rotate_bytes
        self._number = 0
        self._path = directory
        self._descriptor = -1
        self._size_bytes = 0
        self._synced_bytes = 0

    def write(self, lines: bytes) -> None:
        """Append whole lines. After an error none of them count as written: give them again."""
        self._leave_if_gone()
        if self._size_bytes >= self._rotate_bytes:
            self.sync()
            self.close()
        if self._descriptor < 0:
            self._begin_file()
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._take_back()
            raise
        self._size_bytes += len(lines)

    def sync(self) -> None:
        """Have the kernel bring everything written so far to the disk.

        If that fails, the kernel may have discarded the lines and would report the next attempt as a success.
        So the file is given up, readers find what is left of it, and the next write begins another.
        """
        self._leave_if_gone()
        if self._descriptor < 0 or self._synced_bytes == self._size_bytes:
            return
        try:
            os.fsync(self._descriptor)
            if self._synced_bytes == 0:
                sync(self._directory)
        except OSError:
            self.close()
            raise
        self._synced_bytes = self._size_bytes

    def close(self) -> None:
        """End the present file; a later write begins another."""
        descriptor, self._descriptor = self._descriptor, -1
        self._size_bytes = self._synced_bytes = 0
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _begin_file(self) -> None:
        make_private_directory(self._directory)
        self._path = self._directory / f"{self._token}-{self._number:06d}{JOURNAL_SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._number += 1  # before the file exists, so that a failure here is not repeated for ever
        self._descriptor = os.open(self._path, flags, 0o600)

    def _leave_if_gone(self) -> None:
        """Close a file that was removed or moved away, so that later lines go to a file in the right
        place."""
        if self._descriptor < 0:
            return
        try:
            in_place = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            in_place = False
        except OSError:
            return  # unknown for now, and the descriptor may still work
        if not in_place:
            self.close()

    def _take_back(self) -> None:
        """Cut off the remains of a failed write, so that the next one begins a line; else give the file
        up."""
        try:
            os.ftruncate(self._descriptor, self._size_bytes)
        except OSError:
            self.close()


def read(path: Path) -> Iterator[AnyEvent | Damage]:
    """Everything in one journal file, in the order in which it was written."""
    try:
        with path.open("rb") as stream:
            for item, _end in _items(path, stream, 0):
                yield item
    except OSError as error:
        raise _unreadable(path, error) from None


def holds_journal(directory: Path) -> bool:
    """Whether any process has ever recorded there."""
    return any(name.endswith(JOURNAL_SUFFIX) for name in _names(directory)) or bool(_spools(directory))


def read_directory(
    directory: Path, offsets: dict[str, int] | None = None, *, spool_directory: Path = SHARED_MEMORY
) -> Iterator[AnyEvent | Damage]:
    """Yield everything in a journal: its files, and the lines still in spools of this machine.

    `offsets` says, for each file's name, up to which byte it was read; it is kept up to date, and whenever an
    item is yielded it covers that item. Pass it again to go on from there. An event recorded (on this
    machine) before the call is found for certain; one that is on its way to its file may be found twice, with
    the same id. `spool_directory` is the directory that the recorders were given for their spools.
    """
    # Spools come before files: an event that leaves a spool after this look is in its file before that is
    # read.
    spools = [(path, _look_into(path, directory)) for path in _spools(directory, spool_directory)]
    taken = {} if offsets is None else offsets
    yield from _read_files(directory, taken, missing_ok=bool(spools))
    for path, found in spools:
        if isinstance(found, Damage):
            yield found
            continue
        for item, _end in _items(path, io.BytesIO(found), 0):
            # An unreadable line was caught while it moved. It will be in a file, damaged or not.
            if not isinstance(item, Damage):
                yield item


def events_of(home: Path) -> list[AnyEvent]:
    """Every event recorded in a home, in the order of recording."""
    found = {
        item.id: item for item in read_directory(home / JOURNAL_DIRECTORY) if not isinstance(item, Damage)
    }
    return sorted(found.values(), key=lambda event: event.recorded_ns)


def salvage(directory: Path, spool_directory: Path = SHARED_MEMORY) -> int:
    """Write the spools of dead processes of this machine into the journal they recorded in.

    A spool that is in use, not trusted, or cannot be written out at the moment is left alone. Returns the
    number of the journal's spools, of living and dead processes.
    """
    spools = _spools(directory, spool_directory)
    for path in spools:
        with contextlib.suppress(OSError):
            _inherit(path, directory)
    return len(spools)


def dropped_notice(owner: Owner, identity: str, count: int, now_ns: int, reason: str) -> FaultObserved:
    """The event that reports events which a recorder could not keep."""
    return FaultObserved(
        id=identity,
        occurred_ns=now_ns,
        recorded_ns=now_ns,
        source=owner.source,
        run=owner.run,
        subject=owner.source,
        fault="recorder-dropped",
        severity="degraded",
        detail=f"events dropped: {count}, the last one because: {reason}",
    )


def _spools(directory: Path, spool_directory: Path = SHARED_MEMORY) -> list[Path]:
    """The spools that belong to a journal, by their names alone.

    The name has a digest of the journal's path as its recorder knew it. But a journal may be moved, or have
    another path in a container or over a link; so a spool also belongs to it if a file of the same process is
    there.
    """
    names = _names(directory, missing_ok=True)
    try:
        paths = directory.absolute(), Path(os.path.realpath(directory))
    except FileNotFoundError as error:  # it is relative, and the working directory is gone
        raise _unreadable(directory, error) from None
    digests = {journal_digest(path) for path in paths}
    tokens = {name.partition("-")[0] for name in names if name.endswith(JOURNAL_SUFFIX)}
    found = {directory / name for name in names if SpoolName.parse(name)}
    for name in _names(spool_directory, missing_ok=True):
        spool = SpoolName.parse(name)
        if spool and (spool.journal in digests or spool.token in tokens):
            found.add(spool_directory / name)
    return sorted(found)


def _look_into(path: Path, directory: Path) -> bytes | Damage:
    """The lines in a spool that are on their way to a file. A dead process's lines are written out first."""
    try:
        return b"" if _inherit(path, directory) else Spool.snapshot(path, _trusted_uids(directory))
    except FileNotFoundError:
        return b""  # written out meanwhile
    except OSError as error:
        return Damage(file=_text(path), line=0, reason=f"a process's last events: {_reason(error)}")


def _inherit(path: Path, directory: Path) -> bool:
    """Write a dead process's spool out and remove it. False if it is in use or that fails for now."""
    spool = Spool.adopt(path, _trusted_uids(directory))
    if spool is None:
        return False
    with contextlib.closing(spool), contextlib.suppress(OSError):
        _write_out(spool, directory)
        path.unlink()  # while we hold the lock, so that no other process inherits it again
        return True
    return False


def _trusted_uids(directory: Path) -> Collection[int]:
    """The users whose spools are trusted: our own and, if we are root, the owner of the journal.

    Any user may make a file in shared memory, with any name and content.
    """
    uid = os.geteuid()
    if uid == 0:
        with contextlib.suppress(FileNotFoundError):
            return {uid, directory.stat().st_uid}
    return {uid}


def _write_out(spool: Spool, directory: Path) -> None:
    """Write a dead process's lines as a file of the journal. A second call makes the same file again."""
    owner, drops = spool.owner, spool.drops
    lines = spool.pending()
    if unreported := drops.total - drops.reported:
        # Greater than any id the process can have given out itself.
        identity = event_id(owner.token, EVENT_COUNT_MAX)
        reason = "the process ended before it could say why"
        lines += line_of(encode(dropped_notice(owner, identity, unreported, drops.last_ns, reason)))
    if not lines:
        return
    make_private_directory(directory)
    # Letters sort after digits, so this is read after what the process wrote itself.
    path = directory / f"{owner.token}-salvaged{JOURNAL_SUFFIX}"
    draft = path.with_suffix(".draft")
    # Never write to an existing name: it may be a link to another file.
    draft.unlink(missing_ok=True)
    make_private_file(draft)  # which follows no link
    with draft.open("r+b") as stream:
        stream.write(lines)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)
    sync(directory)


def _read_files(directory: Path, offsets: dict[str, int], *, missing_ok: bool) -> Iterator[AnyEvent | Damage]:
    """The files' content after the offsets."""
    for name in _names(directory, missing_ok=missing_ok):
        path = directory / name
        if path.suffix != JOURNAL_SUFFIX:
            continue
        if not name.isprintable():
            # No recorder gives such names, and a store could not keep the file's offset under it.
            yield Damage(file=_text(path), line=0, reason="not read: its name is not readable text")
            continue
        try:
            begin = offsets.get(name, 0)
            if path.stat().st_size <= begin:
                continue
            with path.open("rb") as stream:
                for item, end in _items(path, stream, begin):
                    offsets[name] = end
                    yield item
        except FileNotFoundError:
            continue  # archived since it was listed
        except OSError as error:
            yield Damage(file=_text(path), line=0, reason=f"cannot be read: {_reason(error)}")


def _items(path: Path, stream: BinaryIO, begin: int) -> Iterator[tuple[AnyEvent | Damage, int]]:
    """Each item from the byte `begin` on, with the byte it ends at; a torn tail ends where it begins."""
    stream.seek(begin)
    first_line = 0  # counted only when there is damage to point at
    end = begin
    for index, (raw, size_bytes) in enumerate(_lines(stream)):
        torn = not raw.endswith(b"\n")
        outcome = "the line is not finished" if torn else _event_in(raw, size_bytes)
        if not torn:
            end += size_bytes
        if isinstance(outcome, str):
            first_line = first_line or 1 + _newlines_before(path, begin)
            yield Damage(file=_text(path), line=first_line + index, reason=outcome, torn=torn), end
        else:
            yield outcome, end


def _lines(stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Each line and its size in bytes; of a line above `LINE_BYTES_MAX` only its last part."""
    while raw := stream.readline(LINE_BYTES_MAX + 1):
        size_bytes = len(raw)
        while len(raw) > LINE_BYTES_MAX and not raw.endswith(b"\n"):
            more = stream.readline(LINE_BYTES_MAX + 1)
            if not more:
                break
            raw, size_bytes = more, size_bytes + len(more)
        yield raw, size_bytes


def _event_in(raw: bytes, size_bytes: int) -> AnyEvent | str:
    """The event in a finished line, or the reason why there is none."""
    if size_bytes > LINE_BYTES_MAX:
        return f"the line is longer than {LINE_BYTES_MAX:,} bytes"
    body = raw[_CHECKSUM_BYTES:-1]
    if raw[:_CHECKSUM_BYTES] != b"%08x " % zlib.crc32(body):
        return "the checksum does not match"
    try:
        return decode(body)
    except (MalformedEvent, RecursionError) as error:
        return f"no event: {error}"


def _newlines_before(path: Path, offset: int) -> int:
    if offset == 0:
        return 0
    newlines = 0
    with path.open("rb") as stream:
        while offset > 0 and (block := stream.read(min(offset, LINE_BYTES_MAX))):
            newlines += block.count(b"\n")
            offset -= len(block)
    return newlines


def _names(directory: Path, *, missing_ok: bool = False) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError | NotADirectoryError):
            return []
        raise _unreadable(directory, error) from None


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"The journal {_text(path)} cannot be read: {_reason(error)}.",
        hint="Give a journal file, or the directory that the recorders were given.",
    )


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _text(path: Path) -> str:
    """A path that any output can show: a name may be bytes that are not text."""
    return os.fsencode(path).decode(errors="backslashreplace")
