"""The file of a snapshot in memory: a header, the bytes of a share of the state, a note with their hashes.

The header is written last. The bytes are cut into pieces; each has its hash in the note, and nothing is used
before its hashes agree. Who writes such a file, and when, is said in snapshots.py.
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
"""Larger than a checkpoint's chunks: threads that hash them ask seldom for the interpreter, which trains."""
PAGE_BYTES = 4096
BLOCK_BYTES = 512
"""In which the kernel counts what a file takes."""
EMPTIED_BYTES = 64 << 20
"""So much memory is given back at a time: other threads wait meanwhile."""
_MAGIC = b"holdfast.snap\r\n\x1a"
_VERSION = 1
_HEADER = struct.Struct(">16sIIIIIQQQ16s32s32s")


def piece_count(size_bytes: int) -> int:
    return -(-size_bytes // PIECE_BYTES)


class PartHeader(NamedTuple):
    """What a file holds: a share of a part. layout: the hash of what all shares must have alike."""

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
        """None where there is none that is whole."""
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
    """Bytes of one tensor: from which on, where they lie in the file, and the hashes of their pieces."""

    tensor: int
    begin: int
    size_bytes: int
    offset: int
    names: bytes = b""

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Beginning and end of each, from where the stretch begins."""
        size_bytes = self.size_bytes
        return ((at, min(at + PIECE_BYTES, size_bytes)) for at in range(0, size_bytes, PIECE_BYTES))


class SnapshotNote(msgspec.Struct, frozen=True, array_like=True):
    """What the first share has beside its bytes: skeleton, stored and sizes as a `Laid` has them, and the
    small tensors themselves, by number.
    """

    stretches: tuple[KeptStretch, ...]
    skeleton: bytes = b""
    stored: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    small: dict[int, bytes] = {}


class MemoryFile:
    """One of a slot's files, as anybody on the node reads it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def header(self) -> PartHeader | None:
        return PartHeader.read(os.pread(self.descriptor, PAGE_BYTES, 0))

    @property
    def is_damaged(self) -> bool:
        """Whether it begins with something else than a header, or nothing."""
        return self.header() is None and any(os.pread(self.descriptor, _HEADER.size + SEAL_BYTES, 0))

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def taken_bytes(self) -> int:
        """Of memory."""
        return os.fstat(self.descriptor).st_blocks * BLOCK_BYTES

    def blank(self) -> None:
        """What it holds is of no use any more."""
        os.pwrite(self.descriptor, bytes(_HEADER.size + SEAL_BYTES), 0)

    def note(self, header: PartHeader) -> SnapshotNote:
        """Raises `Unsound`."""
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
        """Raises `OSError`, and `ValueError` where it is shorter. Pages are mapped as they are used: to map
        all of them would keep every other thread waiting meanwhile.
        """
        return mmap.mmap(self.descriptor, size_bytes, mmap.MAP_SHARED)

    def empty(self) -> None:
        """Give its memory back. It keeps its size, so that whoever reads it just now finds zeros, and is not
        killed. Raises `OSError`.
        """
        if size_bytes := self.size_bytes:
            memory = self.mapped(size_bytes)
            for begin in range(0, size_bytes, EMPTIED_BYTES):
                memory.madvise(mmap.MADV_REMOVE, begin, min(EMPTIED_BYTES, size_bytes - begin))
