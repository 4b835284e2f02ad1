"""Manifests: what a checkpoint consists of. A small file that is written last, and believed only when its
hash agrees and every chunk that it names is there as it was written.

A manifest has the skeleton of a state, typed data and never a pickle, the small tensors themselves, and of
each other tensor the names and places of its chunks.
"""

import hashlib
import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch

from holdfast.train.chunks import (
    CHUNK_BYTES,
    FOLDER,
    NAME_BYTES,
    ChunkPlace,
    NewerFormat,
    OlderFormat,
    PackWriter,
    Unsound,
    WantedChunk,
    is_pack,
    packs_in,
    pieces_of,
    plain_file,
    read_chunks,
)
from holdfast.train.skeleton import MalformedSkeleton, is_dense, places_of, put_together, take_apart

SEAL_BYTES = 32
INLINE_BYTES = 1 << 10
"""Tensors up to this size are in the manifest itself: counters and the like."""
_MAGIC = b"holdfast.ckpt\r\n\x1a"  # a transfer that mends line ends breaks it, and shows
_VERSION = 4
_HEADER = struct.Struct(
    ">16sIQQ32s"
)  # magic, version, step, bytes that follow, BLAKE2b-256 of all but itself


class StoredTensor(msgspec.Struct, frozen=True, array_like=True):
    """inline: its bytes, if it is small. Else names: those of its chunks, one after the other. places: of
    each the number of its pack, and where it begins there.
    """

    size_bytes: int
    inline: bytes = b""
    names: bytes = b""
    places: tuple[tuple[int, int], ...] = ()


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint consists of. stored: for each tensor of the skeleton which of `tensors` it is; those
    that are tied are the same. packs: their names and sizes. digest: of the state, wherever its chunks are.
    history, whole: of a part of a sharded state, see `PartNote`.
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
        """Of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def chunks(self) -> Iterator[tuple[bytes, ChunkPlace]]:
        """All of them, in the order of the tensors."""
        for tensor in self.tensors:
            yield from self.chunks_of(tensor)

    def chunks_of(self, tensor: StoredTensor) -> Iterator[tuple[bytes, ChunkPlace]]:
        for number, (begin, end) in enumerate(_cuts(tensor)):
            pack, offset = tensor.places[number]
            name = tensor.names[number * NAME_BYTES : (number + 1) * NAME_BYTES]
            yield name, ChunkPlace(self.packs[pack][0], offset, end - begin)


def _cuts(tensor: StoredTensor) -> Iterable[tuple[int, int]]:
    return () if tensor.size_bytes <= INLINE_BYTES else pieces_of(0, tensor.size_bytes)


def _count(size_bytes: int) -> int:
    """How many chunks so many bytes have."""
    return 0 if size_bytes <= INLINE_BYTES else -(-size_bytes // CHUNK_BYTES)


# ---- a state and its memory ------------------------------------------------------------------------------


class Laid(NamedTuple):
    """A state as it is stored. stored: see `Manifest`."""

    skeleton: bytes
    stored: tuple[int, ...]
    tensors: list[torch.Tensor]


def lay_out(state: Mapping[str, object]) -> Laid:
    """Tensors that share their memory are stored once."""
    skeleton, tensors = take_apart(dict(state))
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    unique: list[torch.Tensor] = []
    stored = []
    for tensor in tensors:
        there = numbers[tensor.data_ptr()]
        number = next((one for one in there if identity_of(unique[one]) == identity_of(tensor)), len(unique))
        if number == len(unique):
            unique.append(tensor)
            there.append(number)
        stored.append(number)
    return Laid(skeleton, tuple(stored), unique)


def size_of(state: Mapping[str, object]) -> int:
    """In bytes, of all its tensors."""
    return sum(tensor.nbytes for tensor in take_apart(dict(state))[1])


def identity_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """The same for two that share their memory, and are laid out alike in it; so do all that are empty."""
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense tensor in CPU memory, in the order in which they lie there. Not of an empty."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    memory: memoryview = flat.view(torch.uint8).numpy().data
    return memory


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    tensor = tensor.detach().cpu()
    if not tensor.numel():
        return memoryview(b"")
    return memory_of(tensor if is_dense(tensor) else tensor.contiguous())


class Share(NamedTuple):
    """Which part of a state one of several members keeps, who all have the same. history: of the state."""

    number: int
    of: int
    history: str = ""


ALL = Share(0, 1)


def stretches(sizes: Sequence[int], share: Share) -> list[tuple[int, int]]:
    """Of each tensor the bytes that belong to a share. Small tensors belong to the first."""
    total = sum(size for size in sizes if size > INLINE_BYTES)
    begin, end = (total * number // share.of for number in (share.number, share.number + 1))
    found = []
    at = 0
    for size in sizes:
        if size <= INLINE_BYTES:
            found.append((0, 0 if share.number else size))
            continue
        found.append((_rounded(begin - at, size), _rounded(end - at, size)))
        at += size
    return found


def _rounded(at: int, size: int) -> int:
    """To where a chunk begins, or the tensor ends."""
    return max(0, min(size, -(-at // CHUNK_BYTES) * CHUNK_BYTES))


# ---- writing ---------------------------------------------------------------------------------------------


class WrittenStretch(msgspec.Struct, frozen=True, array_like=True):
    """Chunks of one tensor, from a byte on: see `StoredTensor`."""

    tensor: int
    begin: int
    names: bytes
    places: tuple[tuple[int, int], ...]


class ShareNote(msgspec.Struct, frozen=True, array_like=True):
    """What a member has written of a state. layout: the hash of what all of them must have alike.
    written_bytes: what was not there yet.
    """

    step: int
    share: Share
    layout: bytes
    stretches: tuple[WrittenStretch, ...]
    packs: tuple[tuple[str, int], ...]
    written_bytes: int = 0


def write_share(step: int, laid: Laid, share: Share, packs: PackWriter) -> ShareNote:
    """Write the chunks of a share. They are durable once the packs are closed."""
    sizes = [tensor.nbytes for tensor in laid.tensors]
    own = [
        (number, begin, _bytes_of(laid.tensors[number])[begin:end])
        for number, (begin, end) in enumerate(stretches(sizes, share))
        if begin < end and sizes[number] > INLINE_BYTES
    ]
    found = packs.add_all(memory[a:b] for _, _, memory in own for a, b in pieces_of(0, len(memory)))
    numbers: dict[str, int] = {}
    pack_sizes: dict[str, int] = {}
    written = []
    for tensor, begin, memory in own:
        chunks = [next(found) for _ in pieces_of(0, len(memory))]
        places = tuple((numbers.setdefault(place.pack, len(numbers)), place.offset) for _, place in chunks)
        for _, place in chunks:
            pack_sizes[place.pack] = max(pack_sizes.get(place.pack, 0), place.offset + place.size_bytes)
        written.append(WrittenStretch(tensor, begin, b"".join(name for name, _ in chunks), places))
    names = tuple(pack_sizes.items())
    return ShareNote(step, share, layout_of(laid), tuple(written), names, packs.written_bytes)


def layout_of(laid: Laid) -> bytes:
    """The hash of all but what is in the tensors."""
    sizes = [tensor.nbytes for tensor in laid.tensors]
    return sealed_by(msgspec.msgpack.encode((laid.skeleton, laid.stored, sizes)))


def assembled(
    step: int, laid: Laid, notes: Sequence[ShareNote], *, history: str = "", whole: int = 0
) -> Manifest:
    """The manifest of what all of them have written. Raises `Unsound` where that is not everything."""
    layout = layout_of(laid)
    stretches_of: list[list[tuple[int, bytes, list[tuple[int, int]]]]] = [[] for _ in laid.tensors]
    packs: dict[str, int] = {}
    for note in notes:
        if note.layout != layout:
            raise Unsound(f"the share of rank {note.share.number} is of another state")
        for pack, size in note.packs:
            packs[pack] = max(packs.get(pack, 0), size)
        numbers = {pack: number for number, pack in enumerate(packs)}
        renumbered = [numbers[pack] for pack, _ in note.packs]
        for one in note.stretches:
            places = [(renumbered[pack], offset) for pack, offset in one.places]
            stretches_of[one.tensor].append((one.begin, one.names, places))
    tensors = []
    for tensor, found in zip(laid.tensors, stretches_of, strict=True):
        found.sort()
        small = bytes(_bytes_of(tensor)) if tensor.nbytes <= INLINE_BYTES else b""
        all_places = tuple(place for _, _, places in found for place in places)
        names = b"".join(of for _, of, _ in found)
        tensors.append(StoredTensor(tensor.nbytes, small, names, all_places))
        if len(all_places) != _count(tensor.nbytes):
            raise Unsound("the shares leave gaps")
    made = Manifest(
        step, laid.skeleton, laid.stored, tuple(tensors), tuple(packs.items()), "", history, whole
    )
    return msgspec.structs.replace(made, digest=_digest(made))


def copied(folder: Path, manifest: Manifest, packs: PackWriter) -> Manifest:
    """A manifest of the same state in other packs, into which its chunks are written once they were compared.
    Raises `Unsound` or `OSError`.
    """

    def chunks() -> Iterator[memoryview]:
        for name, place in manifest.chunks():
            memory = memoryview(bytearray(place.size_bytes))
            read_chunks(folder, [WantedChunk(name, place, memory)])
            yield memory

    found = [place for _, place in packs.add_all(chunks())]
    sizes: dict[str, int] = {}
    for place in found:
        sizes[place.pack] = max(sizes.get(place.pack, 0), place.offset + place.size_bytes)
    numbers = {pack: number for number, pack in enumerate(sizes)}
    placed = iter((numbers[place.pack], place.offset) for place in found)
    tensors = tuple(
        msgspec.structs.replace(tensor, places=tuple(next(placed) for _ in tensor.places))
        for tensor in manifest.tensors
    )
    return msgspec.structs.replace(manifest, tensors=tensors, packs=tuple(sizes.items()))


def _digest(manifest: Manifest) -> str:
    contents = [(tensor.size_bytes, tensor.inline, tensor.names) for tensor in manifest.tensors]
    return sealed_by(msgspec.msgpack.encode((manifest.skeleton, manifest.stored, contents))).hex()


def sealed_by(data: bytes) -> bytes:
    """The hash that headers and notes are sealed with."""
    return hashlib.blake2b(data, digest_size=SEAL_BYTES).digest()


def encoded(note: Manifest | ShareNote) -> bytes:
    """As a file."""
    payload = msgspec.msgpack.encode(note)
    return _HEADER.pack(_MAGIC, _VERSION, note.step, len(payload), _seal(note.step, payload)) + payload


def _seal(step: int, payload: bytes) -> bytes:
    """Over the format as well: a file that agrees with this one but for its format number is damaged, and not
    another version's.
    """
    return sealed_by(_HEADER.pack(_MAGIC, _VERSION, step, len(payload), b"") + payload)


# ---- reading ---------------------------------------------------------------------------------------------


def read_manifest(path: Path, step: int | None = None) -> Manifest:
    """What a manifest says, of this step if one is given. Raises `Unsound` or `OSError`."""
    found = _decoded(path, step, Manifest)
    if any(not is_pack(pack) or size < 0 for pack, size in found.packs):
        raise Unsound("it names what cannot be a pack")
    for tensor in found.tensors:
        count = _count(tensor.size_bytes)
        is_there = len(tensor.inline) == (0 if count else tensor.size_bytes)
        if not is_there or len(tensor.places) != count or len(tensor.names) != count * NAME_BYTES:
            raise Unsound("it does not say where all of its tensors are")
        for (pack, offset), (begin, end) in zip(tensor.places, _cuts(tensor), strict=True):
            if not 0 <= pack < len(found.packs) or not 0 <= offset <= found.packs[pack][1] - (end - begin):
                raise Unsound("it places a chunk outside of its packs")
    if _digest(found) != found.digest:
        raise Unsound("its digest does not agree")
    return found


def read_share(path: Path) -> ShareNote:
    """Raises `Unsound` or `OSError`."""
    found = _decoded(path, None, ShareNote)
    if not all(is_pack(pack) for pack, _ in found.packs) or any(
        not 0 <= pack < len(found.packs) for one in found.stretches for pack, _ in one.places
    ):
        raise Unsound("it names what cannot be a pack")
    return found


Note = TypeVar("Note", Manifest, ShareNote)


def _decoded(path: Path, step: int | None, kind: type[Note]) -> Note:
    with plain_file(path) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        header = os.pread(descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            raise Unsound(f"it ends after {size_bytes} bytes, inside its header")
        magic, version, written_step, payload_bytes, digest = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise Unsound("it is not a checkpoint of Holdfast, or was torn before it was complete")
        is_all_there = size_bytes == _HEADER.size + payload_bytes
        payload = _all_of(descriptor, payload_bytes) if is_all_there else b""
        is_as_written = is_all_there and _seal(written_step, payload) == digest
    if version != _VERSION:
        raise _other_format(version, is_as_written)
    if step is not None and written_step != step:
        raise Unsound(f"it says inside that it is of step {written_step}")
    if not is_all_there:
        raise Unsound(f"it has {size_bytes} bytes instead of {_HEADER.size + payload_bytes}")
    if not is_as_written:
        raise Unsound("its hash does not agree: it is not what was written")
    try:
        found = msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unsound(f"it cannot be read: {error}") from None
    if found.step != written_step:
        raise Unsound(f"it says inside that it is of step {found.step}")
    return found


def _other_format(version: int, is_of_this: bool) -> Unsound:
    """is_of_this: all but the number is as this version would have written it."""
    if is_of_this:
        return Unsound(f"its format number is damaged: it says {version}, and all else is of {_VERSION}")
    if version > _VERSION:
        return NewerFormat(f"a newer Holdfast wrote it: format {version}, and this one reads {_VERSION}")
    if version > 0:
        return OlderFormat(f"an older Holdfast wrote it: format {version}, and this one reads {_VERSION}")
    return Unsound("it has no format that there ever was")


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
    """Whether all that it names is there, as far as sizes tell. Raises `Unsound` or `OSError`."""
    there = packs_in(path.parent / FOLDER)
    for pack, size in manifest.packs:
        if there.get(pack, -1) < size:
            raise Unsound(f"its chunks in {pack} are " + ("cut short" if pack in there else "missing"))


def check_chunks(path: Path, manifest: Manifest) -> None:
    """Read everything that it names, and compare. Raises `Unsound` or `OSError`."""
    seen: dict[tuple[bytes, ChunkPlace], None] = dict.fromkeys(manifest.chunks())
    read_chunks(path.parent / FOLDER, (WantedChunk(name, place, None) for name, place in seen))


def load_state(path: Path, manifest: Manifest, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """The state, every byte of it compared. Raises `Unsound` or `OSError`."""
    try:
        places = places_of(manifest.skeleton)
        is_whole = len(places) == len(manifest.stored)
        if not is_whole or any(not 0 <= number < len(manifest.tensors) for number in manifest.stored):
            raise Unsound("its tensors are not those of its skeleton")
        tensors: dict[int, torch.Tensor] = {}
        for place, number in zip(places, manifest.stored, strict=True):
            if place.size_bytes != manifest.tensors[number].size_bytes:
                raise Unsound("its tensors are not those of its skeleton")
            if number not in tensors:
                tensors[number] = place.empty(torch.device("cpu"))
        _fill(path.parent / FOLDER, manifest, tensors)
        placed = {number: tensor.to(map_location) for number, tensor in tensors.items()}
        state = put_together(manifest.skeleton, [placed[number] for number in manifest.stored])
    except (MalformedSkeleton, RuntimeError) as error:
        raise Unsound(f"it cannot be put together: {error}") from None
    if not isinstance(state, dict):
        raise Unsound(f"it holds a {type(state).__name__} instead of a state")
    return state


def _fill(folder: Path, manifest: Manifest, tensors: Mapping[int, torch.Tensor]) -> None:
    wanted = []
    for number, tensor in tensors.items():
        stored = manifest.tensors[number]
        if not stored.size_bytes:
            continue
        memory = memory_of(tensor)
        if not _count(stored.size_bytes):
            memory[:] = stored.inline
            continue
        wanted += [
            WantedChunk(name, place, memory[begin:end])
            for (name, place), (begin, end) in zip(manifest.chunks_of(stored), _cuts(stored), strict=True)
        ]
    read_chunks(folder, wanted)
