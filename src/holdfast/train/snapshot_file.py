"""The file of a snapshot in memory: a header, the bytes of a share of the state, and a note with their
hashes.

The header is written last. The bytes are cut into pieces; each has its hash in the note, and nothing is used
before its hashes match. snapshots.py says which process writes such a file, and when.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from holdfast.train.chunks import NAME_BYTES, Unsound
from holdfast.train.manifest_file import SEAL_BYTES, Share, sealed_by

PIECE_BYTES = 16 << 20
"""Larger than a checkpoint's chunks: hashing threads then rarely need the interpreter, which
training uses.
"""
PAGE_BYTES = 4096
BLOCK_BYTES = 512
"""The unit in which the kernel counts the memory of a file."""
EMPTIED_BYTES = 64 << 20
"""How much memory is released at a time: other threads wait meanwhile."""
_MAGIC = b"holdfast.snap\r\n\x1a"
_VERSION = 1
_HEADER = struct.Struct(">16sIIIIIQQQ16s32s32s")


def piece_count(size_bytes: int) -> int:
    return -(-size_bytes // PIECE_BYTES)


class PartHeader(NamedTuple):
    """A file's contents: a share of a part. layout: a hash that must be the same for all shares."""

    step: int
    share: Share
    rail: int
    ranks: int
    data_bytes: int
    note_bytes: int
    layout: bytes
    note_hash: bytes

    @property
    def whole(self) -> tuple[object, ...]:
        """The same for all shares of one part."""
        return self.step, self.share.history, self.share.of, self.rail, self.ranks, self.layout

    def encoded(self) -> bytes:
        body = _HEADER.pack(
            *(_MAGIC, _VERSION, self.share.number, self.share.of, self.rail, self.ranks),
            *(self.step, self.data_bytes, self.note_bytes),
            *(self.share.history.encode("ascii"), self.layout, self.note_hash),
        )
        return body + sealed_by(body)

    @classmethod
    def read(cls, data: bytes) -> "PartHeader | None":
        """Decode a header; None if it is missing or damaged."""
        body, digest = data[: _HEADER.size], data[_HEADER.size : _HEADER.size + SEAL_BYTES]
        if len(digest) < SEAL_BYTES or sealed_by(body) != digest:
            return None
        magic, version, number, of, rail, ranks, step, data_bytes, note_bytes, history, layout, note_hash = (
            _HEADER.unpack(body)
        )
        if (magic, version) != (_MAGIC, _VERSION) or not number < of or not rail < ranks:
            return None
        share = Share(number, of, history.rstrip(b"\0").decode("ascii", "replace"))
        return cls(step, share, rail, ranks, data_bytes, note_bytes, layout, note_hash)


class KeptStretch(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of one tensor: where they begin, where they lie in the file, and the hashes of their pieces."""

    tensor: int
    begin: int
    size_bytes: int
    offset: int
    names: bytes = b""

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Beginning and end of each piece, relative to the stretch."""
        size_bytes = self.size_bytes
        return ((at, min(at + PIECE_BYTES, size_bytes)) for at in range(0, size_bytes, PIECE_BYTES))


class SnapshotNote(msgspec.Struct, frozen=True, array_like=True):
    """What a share has besides its bytes. The first share also has skeleton, stored and sizes, as in a
    `Laid`, and the small tensors themselves, by number.
    """

    stretches: tuple[KeptStretch, ...]
    skeleton: bytes = b""
    stored: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    small: dict[int, bytes] = {}


class MemoryFile:
    """One of a slot's files, as every process on the node reads it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def header(self) -> PartHeader | None:
        return PartHeader.read(os.pread(self.descriptor, PAGE_BYTES, 0))

    @property
    def is_damaged(self) -> bool:
        """Whether it begins with something that is not a header. An empty file is not damaged."""
        return self.header() is None and any(os.pread(self.descriptor, _HEADER.size + SEAL_BYTES, 0))

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def taken_bytes(self) -> int:
        """How much memory it takes."""
        return os.fstat(self.descriptor).st_blocks * BLOCK_BYTES

    def blank(self) -> None:
        """Invalidate its contents."""
        os.pwrite(self.descriptor, bytes(_HEADER.size + SEAL_BYTES), 0)

    def note(self, header: PartHeader) -> SnapshotNote:
        """Read the note. Raises `Unsound`."""
        data = os.pread(self.descriptor, header.note_bytes, header.data_bytes)
        if len(data) != header.note_bytes or sealed_by(data) != header.note_hash:
            raise Unsound("its note is not what was written")
        try:
            note = msgspec.msgpack.decode(data, type=SnapshotNote)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Unsound(f"its note cannot be read: {error}") from None
        for one in note.stretches:
            is_inside = one.size_bytes > 0 and PAGE_BYTES <= one.offset <= header.data_bytes - one.size_bytes
            if not is_inside or len(one.names) != NAME_BYTES * piece_count(one.size_bytes):
                raise Unsound("its note places bytes outside of it")
        return note

    def mapped(self, size_bytes: int) -> mmap.mmap:
        """Map the file. Raises `OSError`, or `ValueError` if it is shorter. Pages are mapped as they are
        used: mapping all of them at once would block every other thread.
        """
        return mmap.mmap(self.descriptor, size_bytes, mmap.MAP_SHARED)

    def empty(self) -> None:
        """Release its memory. The file keeps its size, so that a process that is reading it finds zeros
        instead of being killed. Raises `OSError`.
        """
        if size_bytes := self.size_bytes:
            memory = self.mapped(size_bytes)
            for begin in range(0, size_bytes, EMPTIED_BYTES):
                memory.madvise(mmap.MADV_REMOVE, begin, min(EMPTIED_BYTES, size_bytes - begin))
