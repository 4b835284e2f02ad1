"""A manifest as a file: its structure, its seal, and how it is read. Needs no torch, so that programs that
only move checkpoints do not load it. `manifest.py` turns a state into a manifest and back.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.train.chunks import (
    CHUNK_BYTES,
    FOLDER,
    NAME_BYTES,
    ChunkPlace,
    NewerFormat,
    OlderFormat,
    Unsound,
    WantedChunk,
    is_pack,
    packs_in,
    pieces_of,
    plain_file,
    read_chunks,
)

SEAL_BYTES = 32
INLINE_BYTES = 1 << 10
"""Tensors up to this size are in the manifest itself: counters and the like."""
_MAGIC = b"holdfast.ckpt\r\n\x1a"  # a transfer that converts line ends damages it visibly
_VERSION = 4
_HEADER = struct.Struct(
    ">16sIQQ32s"
)  # magic, version, step, bytes that follow, BLAKE2b-256 of all but itself


class StoredTensor(msgspec.Struct, frozen=True, array_like=True):
    """inline: its bytes, if it is small. Otherwise names: the names of its chunks, concatenated; and places:
    for each chunk, the number of its pack and its offset there.
    """

    size_bytes: int
    inline: bytes = b""
    names: bytes = b""
    places: tuple[tuple[int, int], ...] = ()


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint consists of. stored: for each tensor of the skeleton, its index in `tensors`; tied
    tensors have the same index. packs: their names and sizes. digest: of the state, independent of where its
    chunks are. history, whole: for a part of a sharded state, see `PartNote`.
    """

    step: int
    skeleton: bytes
    stored: tuple[int, ...]
    tensors: tuple[StoredTensor, ...]
    packs: tuple[tuple[str, int], ...]
    digest: str
    history: str = ""
    whole: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def chunks(self) -> Iterator[tuple[bytes, ChunkPlace]]:
        """All chunks, in the order of the tensors."""
        for tensor in self.tensors:
            yield from self.chunks_of(tensor)

    def chunks_of(self, tensor: StoredTensor) -> Iterator[tuple[bytes, ChunkPlace]]:
        for number, (begin, end) in enumerate(cuts_of(tensor)):
            pack, offset = tensor.places[number]
            name = tensor.names[number * NAME_BYTES : (number + 1) * NAME_BYTES]
            yield name, ChunkPlace(self.packs[pack][0], offset, end - begin)


def cuts_of(tensor: StoredTensor) -> Iterable[tuple[int, int]]:
    return () if tensor.size_bytes <= INLINE_BYTES else pieces_of(0, tensor.size_bytes)


def count_of(size_bytes: int) -> int:
    """How many chunks a tensor of this size has."""
    return 0 if size_bytes <= INLINE_BYTES else -(-size_bytes // CHUNK_BYTES)


class Share(NamedTuple):
    """The part of a state that one of several members with the same state writes. history: of the state."""

    number: int
    of: int
    history: str = ""


ALL = Share(0, 1)


class WrittenStretch(msgspec.Struct, frozen=True, array_like=True):
    """Chunks of one tensor, from byte `begin` on: see `StoredTensor`."""

    tensor: int
    begin: int
    names: bytes
    places: tuple[tuple[int, int], ...]


class ShareNote(msgspec.Struct, frozen=True, array_like=True):
    """What a member has written of a state. layout: a hash that must be the same for all members.
    written_bytes: of the chunks that had to be written.
    """

    step: int
    share: Share
    layout: bytes
    stretches: tuple[WrittenStretch, ...]
    packs: tuple[tuple[str, int], ...]
    written_bytes: int = 0


# ---- writing ---------------------------------------------------------------------------------------------


def relocated(manifest: Manifest, places: Sequence[ChunkPlace]) -> Manifest:
    """A manifest of the same state whose chunks, in the order of `chunks()`, are at these places."""
    sizes: dict[str, int] = {}
    for place in places:
        sizes[place.pack] = max(sizes.get(place.pack, 0), place.offset + place.size_bytes)
    numbers = {pack: number for number, pack in enumerate(sizes)}
    placed = iter((numbers[place.pack], place.offset) for place in places)
    tensors = tuple(
        msgspec.structs.replace(tensor, places=tuple(next(placed) for _ in tensor.places))
        for tensor in manifest.tensors
    )
    return msgspec.structs.replace(manifest, tensors=tensors, packs=tuple(sizes.items()))


def digest_of(manifest: Manifest) -> str:
    contents = [(tensor.size_bytes, tensor.inline, tensor.names) for tensor in manifest.tensors]
    return sealed_by(msgspec.msgpack.encode((manifest.skeleton, manifest.stored, contents))).hex()


def sealed_by(data: bytes) -> bytes:
    """The hash that headers and notes are sealed with."""
    return hashlib.blake2b(data, digest_size=SEAL_BYTES).digest()


def encoded(note: Manifest | ShareNote) -> bytes:
    """The note as the contents of a file."""
    payload = msgspec.msgpack.encode(note)
    return _HEADER.pack(_MAGIC, _VERSION, note.step, len(payload), _seal(note.step, payload)) + payload


def _seal(step: int, payload: bytes) -> bytes:
    """The seal covers the format number, too. So a file that is valid except for its format number is
    recognised as damaged, not as another version's.
    """
    return sealed_by(_HEADER.pack(_MAGIC, _VERSION, step, len(payload), b"") + payload)


# ---- reading ---------------------------------------------------------------------------------------------


def read_manifest(path: Path, step: int | None = None) -> Manifest:
    """Read a manifest, of this step if one is given. Raises `Unsound` or `OSError`."""
    return _checked(_decoded(path, step, Manifest))


def manifest_of(data: bytes, step: int | None = None) -> Manifest:
    """Read a manifest from the bytes of its file. Raises `Unsound`."""
    header, payload = data[: _HEADER.size], data[_HEADER.size :]
    return _checked(_judged(_Raw(header, payload, len(data)), step, Manifest))


def _checked(found: Manifest) -> Manifest:
    if any(not is_pack(pack) or size < 0 for pack, size in found.packs):
        raise Unsound("it has an invalid pack name")
    for tensor in found.tensors:
        count = count_of(tensor.size_bytes)
        is_there = len(tensor.inline) == (0 if count else tensor.size_bytes)
        if not is_there or len(tensor.places) != count or len(tensor.names) != count * NAME_BYTES:
            raise Unsound("it does not say where all of its tensors are")
        for (pack, offset), (begin, end) in zip(tensor.places, cuts_of(tensor), strict=True):
            if not 0 <= pack < len(found.packs) or not 0 <= offset <= found.packs[pack][1] - (end - begin):
                raise Unsound("it places a chunk outside of its packs")
    if digest_of(found) != found.digest:
        raise Unsound("its digest does not agree")
    return found


def read_share(path: Path) -> ShareNote:
    """Read the note of a share. Raises `Unsound` or `OSError`."""
    found = _decoded(path, None, ShareNote)
    if not all(is_pack(pack) for pack, _ in found.packs) or any(
        not 0 <= pack < len(found.packs) for one in found.stretches for pack, _ in one.places
    ):
        raise Unsound("it has an invalid pack name")
    return found


Note = TypeVar("Note", Manifest, ShareNote)


class _Raw(NamedTuple):
    """A file: its header, its payload (empty if not worth reading), and the size of the whole."""

    header: bytes
    payload: bytes
    size_bytes: int


def _decoded(path: Path, step: int | None, kind: type[Note]) -> Note:
    with plain_file(path) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        header = os.pread(descriptor, _HEADER.size, 0)
        payload = b""
        if len(header) == _HEADER.size:
            magic, _, _, payload_bytes, _ = _HEADER.unpack(header)
            if magic == _MAGIC and size_bytes == _HEADER.size + payload_bytes:
                payload = _all_of(descriptor, payload_bytes)
    return _judged(_Raw(header, payload, size_bytes), step, kind)


def _judged(raw: _Raw, step: int | None, kind: type[Note]) -> Note:
    if len(raw.header) < _HEADER.size:
        raise Unsound(f"it ends after {raw.size_bytes} bytes, inside its header")
    magic, version, written_step, payload_bytes, digest = _HEADER.unpack(raw.header)
    if magic != _MAGIC:
        raise Unsound("it is not a checkpoint of Holdfast, or was torn before it was complete")
    is_all_there = raw.size_bytes == _HEADER.size + payload_bytes
    is_as_written = is_all_there and _seal(written_step, raw.payload) == digest
    if version != _VERSION:
        raise _other_format(version, is_as_written)
    if step is not None and written_step != step:
        raise Unsound(f"its contents say that it is of step {written_step}")
    if not is_all_there:
        raise Unsound(f"it has {raw.size_bytes} bytes instead of {_HEADER.size + payload_bytes}")
    if not is_as_written:
        raise Unsound("its hash does not agree: it is not what was written")
    try:
        found = msgspec.msgpack.decode(raw.payload, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unsound(f"it cannot be read: {error}") from None
    if found.step != written_step:
        raise Unsound(f"its contents say that it is of step {found.step}")
    return found


def _other_format(version: int, is_of_this: bool) -> Unsound:
    """is_of_this: everything but the format number is as this version would have written it."""
    if is_of_this:
        return Unsound(f"its format number is damaged: it says {version}, but the rest is of {_VERSION}")
    if version > _VERSION:
        return NewerFormat(f"a newer Holdfast wrote it: format {version}, but this one reads {_VERSION}")
    if version > 0:
        return OlderFormat(f"an older Holdfast wrote it: format {version}, but this one reads {_VERSION}")
    return Unsound("its format number never existed")


def _all_of(descriptor: int, size_bytes: int) -> bytes:
    payload = bytearray(size_bytes)
    at = 0
    while at < size_bytes:
        count = os.preadv(descriptor, [memoryview(payload)[at:]], _HEADER.size + at)
        if count == 0:
            raise Unsound("it was cut short while it was read")
        at += count
    return bytes(payload)


def check_packs(path: Path, manifest: Manifest) -> None:
    """Raise `Unsound` or `OSError` unless every pack it names exists and is large enough."""
    there = packs_in(path.parent / FOLDER)
    for pack, size in manifest.packs:
        if there.get(pack, -1) < size:
            raise Unsound(f"its chunks in {pack} are " + ("cut short" if pack in there else "missing"))


def check_chunks(path: Path, manifest: Manifest) -> None:
    """Read and compare every chunk it names. Raises `Unsound` or `OSError`."""
    seen: dict[tuple[bytes, ChunkPlace], None] = dict.fromkeys(manifest.chunks())
    read_chunks(path.parent / FOLDER, (WantedChunk(name, place, None) for name, place in seen))
