"""Restores a state from snapshots in memory, comparing every byte with its hash before it is used."""

import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from holdfast.train.chunks import NAME_BYTES, Unsound, name_of
from holdfast.train.device_copy import map_in, map_out, register, unregister
from holdfast.train.manifest import memory_of
from holdfast.train.protected import memory_as_it_lies
from holdfast.train.skeleton import MalformedSkeleton, places_of, put_together
from holdfast.train.snapshot_file import KeptStretch, MemoryFile, PartHeader, SnapshotNote

COMPARERS_MAX, CORES_LEFT = 14, 2
"""The most threads that compare, and how many cores are left to the copying threads and CUDA."""
REGISTERED_BYTES = 1 << 30
"""How much memory is registered with CUDA at a time; it is copied while the next is registered."""
MAPPED_BYTES = 1 << 26
"""How much memory one thread maps at a time."""


@dataclass
class RestoreTimes:
    """How long a restore took: to compare all bytes (including the copy, for those that go to main memory);
    to register memory with CUDA; to copy it to the device; and in total, because these overlap.
    """

    whole_s: float = 0.0
    compared_s: float = 0.0
    pinned_s: float = 0.0
    copied_s: float = 0.0


def restored(
    parts: Sequence[tuple[MemoryFile, PartHeader]], device: torch.device, times: RestoreTimes
) -> dict[str, Any]:
    """The state that these files have shares of, every byte compared. Tensors that were on a GPU are there
    again. Raises `Unsound` or `OSError`.
    """
    begun_s = time.perf_counter()
    notes = [(file, header, file.note(header)) for file, header in parts]
    first = next(note for _, header, note in notes if header.share.number == 0)
    try:
        _check_cover(first, [note for _, _, note in notes])  # before any memory is allocated
        tensors = _empty(first, places_of(first.skeleton), device)
        for file, header, note in notes:
            _fill(file.mapped(header.data_bytes), note, tensors, device, times)
        state = put_together(first.skeleton, [tensors[number] for number in first.stored])
    except (MalformedSkeleton, RuntimeError) as error:
        raise Unsound(f"it cannot be put together: {error}") from None
    if not isinstance(state, dict):
        raise Unsound("it holds no state")
    times.whole_s = time.perf_counter() - begun_s
    return state


def _empty(note: SnapshotNote, places: Sequence[Any], device: torch.device) -> dict[int, torch.Tensor]:
    """A tensor for everything that is stored; the small ones have their contents."""
    if len(places) != len(note.stored):
        raise Unsound("its tensors are not those of its skeleton")
    found: dict[int, torch.Tensor] = {}
    for place, number in zip(places, note.stored, strict=True):
        if not 0 <= number < len(note.sizes) or place.size_bytes != note.sizes[number]:
            raise Unsound("its tensors are not those of its skeleton")
        if number in found:
            continue
        found[number] = place.empty(device)
        if small := note.small.get(number):
            memory_as_it_lies(found[number]).copy_(torch.frombuffer(bytearray(small), dtype=torch.uint8))
    return found


def _check_cover(first: SnapshotNote, notes: Sequence[SnapshotNote]) -> None:
    """Raise `Unsound` unless the shares have every byte of every tensor exactly once."""
    ends = {number: 0 for number in range(len(first.sizes)) if number not in first.small}
    for one in sorted((one for note in notes for one in note.stretches), key=lambda one: one.begin):
        if ends.get(one.tensor) != one.begin:
            raise Unsound("its shares leave gaps")
        ends[one.tensor] += one.size_bytes
    ends |= {number: len(small) for number, small in first.small.items()}
    if any(ends[number] != size for number, size in enumerate(first.sizes)):
        raise Unsound("its shares leave gaps")


def _fill(
    memory: mmap.mmap,
    note: SnapshotNote,
    tensors: Mapping[int, torch.Tensor],
    device: torch.device,
    times: RestoreTimes,
) -> None:
    """Fill the tensors. Data for a GPU are copied while they are compared, and used only if everything
    matches.
    """
    begun_s = time.perf_counter()
    view = memoryview(memory)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    threads = max(1, min(COMPARERS_MAX, len(os.sched_getaffinity(0)) - CORES_LEFT))
    with ThreadPoolExecutor(threads) as pool:
        goes_up = [one for one in note.stretches if tensors[one.tensor].is_cuda]
        mapping = [pool.submit(map_in, part) for part in torch.split(flat, MAPPED_BYTES)] if goes_up else []
        comparing = [
            found for one in note.stretches for found in _comparing(pool, view, one, tensors[one.tensor])
        ]
        if goes_up:
            _upload(flat, mapping, goes_up, tensors, device, times)
        is_sound = all(found.result() for found in comparing)
    times.compared_s += time.perf_counter() - begun_s
    if not is_sound:
        raise Unsound("the hash of a piece does not agree")


def _end(one: KeptStretch) -> int:
    return one.offset + one.size_bytes


def _comparing(
    pool: ThreadPoolExecutor, view: memoryview, one: KeptStretch, target: torch.Tensor
) -> list[Future[bool]]:
    """Whether each piece is unchanged; data for main memory are compared where they have arrived."""
    into = None if target.is_cuda else memory_of(target)[one.begin : one.begin + one.size_bytes]

    def agrees(number: int, begin: int, end: int) -> bool:
        piece = view[one.offset + begin : one.offset + end]
        if into is not None:
            into[begin:end] = piece
            piece = into[begin:end]
        return name_of(piece) == one.names[number * NAME_BYTES : (number + 1) * NAME_BYTES]

    return [pool.submit(agrees, number, *piece) for number, piece in enumerate(one.pieces())]


def _upload(
    flat: torch.Tensor,
    mapping: Sequence[Future[None]],
    stretches: Sequence[KeptStretch],
    tensors: Mapping[int, torch.Tensor],
    device: torch.device,
    times: RestoreTimes,
) -> None:
    """Copy these to the GPU, from memory that is being mapped."""
    registered: list[torch.Tensor] = []
    mapped = iter(mapping)

    def ask(part: torch.Tensor) -> None:
        wait(islice(mapped, math.ceil(part.numel() / MAPPED_BYTES)))
        register(part, device)

    try:
        copies = [
            _copy_up(flat, bounds, stretches, tensors)
            for bounds in registered_stretches(flat, ask, registered, times)
        ]
        torch.cuda.synchronize(device)
        times.copied_s += sum(begun.elapsed_time(done) for begun, done in copies) / 1e3
    finally:  # takes as long as a copy, so it runs in the background
        threading.Thread(target=_let_go, args=(flat, registered, device), daemon=True).start()


def registered_stretches(
    flat: torch.Tensor,
    ask: Callable[[torch.Tensor], None],
    registered: list[torch.Tensor],
    times: RestoreTimes,
    size_bytes: int = REGISTERED_BYTES,
) -> Iterator[tuple[int, int]]:
    """Beginning and end of the stretches to copy, each registered with CUDA beforehand. ask: registers one.
    If that is refused, for example because this user may not lock so much memory, the snapshot is not to
    blame: the rest is copied unregistered, which takes longer.
    """
    is_allowed = True
    for at in range(0, flat.numel(), size_bytes):
        part = flat[at : at + size_bytes]
        begun_s = time.perf_counter()
        if is_allowed:
            try:
                ask(part)
                registered.append(part)
            except RuntimeError:
                is_allowed = False
        times.pinned_s += time.perf_counter() - begun_s
        yield at, at + part.numel()


def _copy_up(
    flat: torch.Tensor,
    bounds: tuple[int, int],
    stretches: Sequence[KeptStretch],
    tensors: Mapping[int, torch.Tensor],
) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Copy what lies between these bounds. Returns events for the beginning and the end on the device."""
    events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    events[0].record()
    for one in stretches:
        begin, end = max(one.offset, bounds[0]), min(_end(one), bounds[1])
        if begin < end:
            first = one.begin + begin - one.offset
            into = memory_as_it_lies(tensors[one.tensor])[first : first + end - begin]
            into.copy_(flat[begin:end], non_blocking=True)
    events[1].record()
    return events


def _let_go(flat: torch.Tensor, registered: Sequence[torch.Tensor], device: torch.device) -> None:
    with suppress(RuntimeError):  # the device may have failed
        torch.cuda.synchronize(device)  # copies may still be under way after an error
    for part in registered:
        unregister(part)
    for part in torch.split(flat, MAPPED_BYTES):
        map_out(part)
