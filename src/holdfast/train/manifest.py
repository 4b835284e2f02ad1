"""Manifests: what a checkpoint consists of. A manifest is a small file that is written last. It is valid only
if its hash matches and every chunk that it names is stored as it was written.

A manifest has the skeleton of a state (typed data, never a pickle), the small tensors themselves, and the
names and places of the chunks of every other tensor.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from holdfast.train.chunks import (
    CHUNK_BYTES,
    FOLDER,
    PackWriter,
    Unsound,
    WantedChunk,
    pieces_of,
    read_chunks,
)
from holdfast.train.manifest_file import (
    INLINE_BYTES,
    Manifest,
    Share,
    ShareNote,
    StoredTensor,
    WrittenStretch,
    count_of,
    cuts_of,
    digest_of,
    sealed_by,
)
from holdfast.train.skeleton import MalformedSkeleton, is_dense, places_of, put_together, take_apart

# ---- a state and its memory ------------------------------------------------------------------------------


class Laid(NamedTuple):
    """A state as it is stored. stored: see `Manifest`."""

    skeleton: bytes
    stored: tuple[int, ...]
    tensors: list[torch.Tensor]


def lay_out(state: Mapping[str, object]) -> Laid:
    """Lay a state out for storage. Tensors that share their memory are stored once."""
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
    """The size of all its tensors in bytes."""
    return sum(tensor.nbytes for tensor in take_apart(dict(state))[1])


def identity_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that share memory with the same layout, and for empty tensors of the same layout."""
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense, non-empty tensor in CPU memory, in memory order."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    memory: memoryview = flat.view(torch.uint8).numpy().data
    return memory


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    tensor = tensor.detach().cpu()
    if not tensor.numel():
        return memoryview(b"")
    return memory_of(tensor if is_dense(tensor) else tensor.contiguous())


def stretches(sizes: Sequence[int], share: Share) -> list[tuple[int, int]]:
    """For each tensor, the byte range that belongs to a share. Small tensors belong to the first share."""
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
    """Round up to the beginning of a chunk, or to the end of the tensor."""
    return max(0, min(size, -(-at // CHUNK_BYTES) * CHUNK_BYTES))


# ---- writing ---------------------------------------------------------------------------------------------


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
    """The hash of everything but the tensors' contents."""
    sizes = [tensor.nbytes for tensor in laid.tensors]
    return sealed_by(msgspec.msgpack.encode((laid.skeleton, laid.stored, sizes)))


def assembled(
    step: int, laid: Laid, notes: Sequence[ShareNote], *, history: str = "", whole: int = 0
) -> Manifest:
    """The manifest of all written shares. Raises `Unsound` if they are not everything."""
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
        if len(all_places) != count_of(tensor.nbytes):
            raise Unsound("the shares leave gaps")
    made = Manifest(
        step, laid.skeleton, laid.stored, tuple(tensors), tuple(packs.items()), "", history, whole
    )
    return msgspec.structs.replace(made, digest=digest_of(made))


# ---- reading ---------------------------------------------------------------------------------------------


def load_state(path: Path, manifest: Manifest, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Load the state and compare every byte. Raises `Unsound` or `OSError`."""
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
        if not count_of(stored.size_bytes):
            memory[:] = stored.inline
            continue
        wanted += [
            WantedChunk(name, place, memory[begin:end])
            for (name, place), (begin, end) in zip(manifest.chunks_of(stored), cuts_of(stored), strict=True)
        ]
    read_chunks(folder, wanted)
