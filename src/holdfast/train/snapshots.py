"""Snapshots: copies of a run's state in memory that outlives its members, for when all of them die at once.

The node's agent holds the memory (run/memory.py): two files for each slot, so that one is whole while the
other is written. The members of a node keep one copy of the state together, each a share of its bytes; a rank
of a sharded model keeps its part. So every node has what it needs, and each is a mirror of the others.

snapshot_file.py defines the contents of a file, and snapshot_restore.py puts a state together from files.
Other modules decide when a snapshot is due, and what the state consists of.
"""

import ctypes
import fcntl
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import msgspec
import torch

from holdfast.record.errors import StoreError
from holdfast.run.memory import VERSIONS, SlotFiles, memory_left_bytes
from holdfast.train.checkpoint import Checkpoints, Loaded, Mark, State
from holdfast.train.chunks import NAME_BYTES, Unsound, name_of
from holdfast.train.device_copy import (
    CopyTask,
    HostCopy,
    SideStreamCopy,
    StateCopy,
    is_gathered,
    register,
    unregister,
)
from holdfast.train.manifest import Laid, lay_out, layout_of, stretches
from holdfast.train.manifest_file import INLINE_BYTES, Share, sealed_by
from holdfast.train.parts import OWN
from holdfast.train.protected import memory_as_it_lies
from holdfast.train.snapshot_file import (
    PAGE_BYTES,
    KeptStretch,
    MemoryFile,
    PartHeader,
    SnapshotNote,
    piece_count,
)
from holdfast.train.snapshot_restore import RestoreTimes, restored

SNAPSHOT = OWN + 1
"""The preference of a snapshot: it is used before a checkpoint of the same step, and does not hide it."""
INTERVAL_S_MIN = 1.0
"""Snapshots are never closer together than this, even if they cost next to nothing."""
COST_SHARE_MAX = 1 / 100
"""Taking a snapshot takes at most this share of the time between two snapshots."""
COPY_COST = 1 / 10
"""What a step loses of the time that a copy from a GPU takes beside it; on an H200 it is less."""
MEMORY_SHARE_MAX = 0.5
"""The share of the free memory that this member's snapshots may take."""
INLINE_PREPARE_BYTES = 16 << 20
"""Memory up to this size is prepared while training waits; more is prepared in the background."""
HASHERS_MAX = 4
"""The most threads that hash beside training; one per two cores."""
CLOSE_S_MAX = 2.0
LIST_S_MAX = 10.0
"""How long storage may take to list its checkpoints if there is a snapshot to resume from."""
ALIGNED_BYTES = 64
_GB = 1e9
_FAILURES = (OSError, RuntimeError, ValueError, MemoryError)
"""Failures of snapshots alone: training continues without them. A failed device shows in
training by itself.
"""

Readiness = Literal[0, 1, 2]
READY: Readiness = 0
DUE: Readiness = 1
BUSY: Readiness = 2
"""What a member tells the others. READY: it can take a snapshot, or takes none. DUE: one is due. BUSY: the
last one is not complete.
"""


class SnapshotListener(Protocol):
    """Called, in any thread, when a snapshot is complete, or cannot be taken or used. Must not raise."""

    def kept(self, step: int, stall_ns: int, size_bytes: int) -> None: ...

    def failed(self, step: int, place: str, reason: str) -> None: ...


def each_hashed(work: Sequence[Callable[[], bytes]], threads_max: int = 1) -> list[bytes]:
    """The results of these hashes, computed by several threads: the interpreter is free while one hashes.
    Raises what one of them raises.
    """
    count = max(1, min(threads_max, len(work)))
    found: list[bytes] = [b""] * len(work)
    failures: list[Exception] = []

    def hash_some(first: int) -> None:
        try:
            for number in range(first, len(work), count):
                found[number] = work[number]()
        except Exception as error:
            failures.append(error)

    others = [threading.Thread(target=hash_some, args=(number,), daemon=True) for number in range(1, count)]
    for other in others:
        other.start()
    hash_some(0)
    for other in others:
        other.join()
    if failures:
        raise failures[0]
    return found


# ---- taking snapshots ------------------------------------------------------------------------------------


@dataclass
class _Buffer:
    """A file that this process writes. lock: an open file of its own, so that a process that had the slot
    before and is still alive is noticed.
    """

    file: MemoryFile
    lock: int = -1
    flat: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def is_locked(self) -> bool:
        """Whether this process may write it now. Raises `OSError`."""
        if self.lock < 0:
            lock = os.open(f"/proc/self/fd/{self.file.descriptor}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            except OSError:
                os.close(lock)
                raise
            self.lock = lock
        return True

    def make_ready(self, size_bytes: int, device: torch.device) -> None:
        """Give it this size, with memory behind every page; its contents stay. Raises `OSError`."""
        self.let_go(device)
        if self.file.header() is not None:
            size_bytes = max(size_bytes, self.file.size_bytes)
        os.posix_fallocate(self.file.descriptor, 0, size_bytes)  # raises here instead of a SIGBUS later
        self.flat = torch.frombuffer(self.file.mapped(size_bytes), dtype=torch.uint8)
        if device.type == "cuda":
            register(self.flat, device)

    def let_go(self, device: torch.device) -> None:
        if device.type == "cuda" and self.flat.numel():
            unregister(self.flat)
        self.flat = torch.empty(0, dtype=torch.uint8)


class _Taken(NamedTuple):
    flat: torch.Tensor
    header: PartHeader
    note: SnapshotNote
    began_ns: int
    epoch: int


class MemorySnapshots:
    """This member's snapshots. slots: the files of all slots of its node; slot: its own. every: take one
    every so many steps; None: by cost. part: its rail, and the number of ranks of a sharded model.
    """

    def __init__(
        self,
        slots: SlotFiles,
        slot: int,
        *,
        node: str,
        device: torch.device,
        told: SnapshotListener,
        every: int | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._files = [MemoryFile(descriptor) for of_slot in slots for descriptor in of_slot]
        self._own = [_Buffer(MemoryFile(descriptor)) for descriptor in slots[slot]]
        self._node = node
        self._device = device
        self.told = told
        self._every = every
        self._rail, self._ranks = part
        self._copy: StateCopy = SideStreamCopy(device) if device.type == "cuda" else HostCopy()
        self._working: threading.Thread | None = None
        self._heading = threading.Lock()
        self._epoch = 0  # a snapshot of an earlier epoch gets no header
        self._ready_bytes = 0
        self._is_off = self._is_closed = False
        self._refused: set[tuple[object, ...]] = set()  # damaged parts, or numbers of damaged files
        self._began_ns = time.monotonic_ns()
        self._cost_s = 0.0
        self.host_bytes = 0
        self.times = RestoreTimes()  # of the last restore

    @property
    def place(self) -> str:
        return f"the memory of {self._node}"

    def readiness(self, step: int) -> Readiness:
        """Whether this member can take a snapshot of this step, and whether one is due by its own clock."""
        if self._is_off:
            return READY
        if self.is_busy:
            return BUSY
        if self._every is not None:
            return DUE if step % self._every == 0 else READY
        waited_s = (time.monotonic_ns() - self._began_ns) / 1e9
        return DUE if waited_s >= max(INTERVAL_S_MIN, self._cost_s / COST_SHARE_MAX) else READY

    @property
    def is_busy(self) -> bool:
        """Whether the last snapshot is not complete yet, or its memory is not ready."""
        return self._working is not None and self._working.is_alive()

    def take(self, step: int, state: State, share: Share, at_once: Collection[int] = ()) -> int:
        """Have this member's share of the state copied. Returns how long training waited, in nanoseconds. The
        copy may continue until `hold_back`. at_once: storage addresses of tensors that forward passes change.
        """
        began_ns = time.monotonic_ns()
        self._began_ns = began_ns
        if self._is_off or self.is_busy:
            return 0
        try:
            self._take(step, state, share, at_once)
        except _FAILURES as error:
            self._switch_off(step, f"snapshots are off, because one could not be taken: {error}")
        return time.monotonic_ns() - began_ns

    def _take(self, step: int, state: State, share: Share, at_once: Collection[int]) -> None:
        if not all(buffer.is_locked() for buffer in self._own):
            return
        began_ns = self._began_ns
        laid = lay_out(state)
        kept, end = _placed(laid, share)
        note = _note(laid, kept, share)
        room_bytes = _rounded(end + len(msgspec.msgpack.encode(note)) + _names_bytes(kept) + PAGE_BYTES)
        mates = share.of if self._ranks == 1 else len(self._files) // VERSIONS
        if room_bytes > self._ready_bytes and not self._make_ready(step, room_bytes, mates):
            return
        buffer = self._target()
        buffer.file.blank()
        tasks = [CopyTask(laid.tensors[one.tensor], one.begin, one.size_bytes, one.offset) for one in kept]
        self._copy.copy(buffer.flat, tasks, at_once)
        header = PartHeader(step, share, self._rail, self._ranks, end, 0, layout_of(laid), b"")
        stall_ns = time.monotonic_ns() - began_ns
        self._work(self._complete, _Taken(buffer.flat, header, note, began_ns, self._epoch), stall_ns)

    def hold_back(self) -> None:
        """The state is about to change: make that wait for the copy."""
        self._copy.hold_back()

    @property
    def copied_s(self) -> float | None:
        """How long the last copy took on the device; None if there is no device but the host."""
        return self._copy.took_s

    def settle(self) -> None:
        """Wait until nothing reads the state any more."""
        if self.is_busy:
            self._copy.wait()

    def close(self) -> None:
        """Stop. The memory stays with the agent. A snapshot that is not complete soon is given up without a
        report.
        """
        self._is_closed = True
        with suppress(RuntimeError):  # the device may have failed
            self.settle()
        if self._working is not None:
            self._working.join(CLOSE_S_MAX)
        self._void()  # another process may write here from now on
        for buffer in self._own:
            buffer.let_go(self._device)
            if buffer.lock >= 0:
                os.close(buffer.lock)
                buffer.lock = -1

    def forget(self) -> None:
        """Invalidate all snapshots of this node: they may be wrong."""
        self._void()
        failed: OSError | None = None
        for file in self._files:
            try:
                file.blank()
            except OSError as error:
                failed = error
        if failed is not None:
            self._switch_off(0, f"snapshots are off, because one could not be forgotten: {failed}")

    def _void(self) -> None:
        """Void the snapshot in progress: once this returns, it either has its header already or never gets
        one.
        """
        with self._heading:
            self._epoch += 1

    def _work(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="holdfast snapshots", daemon=True)
        thread.start()
        self._working = thread

    def _make_ready(self, step: int, room_bytes: int, mates: int) -> bool:
        """Whether the memory is ready now. If not, it will be, or there is no room. mates: how many grow
        alike.
        """
        left_bytes = memory_left_bytes()
        taken_bytes = sum(buffer.file.taken_bytes for buffer in self._own)
        wanted_bytes = max(0, VERSIONS * room_bytes - taken_bytes) * mates
        if wanted_bytes > MEMORY_SHARE_MAX * left_bytes:
            self._switch_off(
                step,
                f"snapshots are off: they would take {wanted_bytes / _GB:.1f} GB more of the "
                f"{left_bytes / _GB:.1f} GB of memory that {self._node} has left",
            )
            return False
        if room_bytes <= INLINE_PREPARE_BYTES and self._device.type == "cpu":
            self._prepare(step, room_bytes)
            return not self._is_off
        self._work(self._prepare, step, room_bytes)
        return False

    def _prepare(self, step: int, room_bytes: int) -> None:
        try:
            for buffer in self._own:
                buffer.make_ready(room_bytes, self._device)
        except _FAILURES as error:
            self._switch_off(step, f"snapshots are off, because memory ran out: {error}")
            return
        self._ready_bytes = room_bytes
        self.host_bytes = VERSIONS * room_bytes

    def _switch_off(self, step: int, reason: str, *, is_kept: bool = False) -> None:
        """is_kept: keep the existing snapshots, for processes that can read them."""
        self._is_off = True
        if not is_kept:
            with suppress(*_FAILURES):
                self._give_memory_back()
        self.told.failed(step, self.place, reason)

    def _give_memory_back(self) -> None:
        self._void()
        self._copy.wait()
        for buffer in self._own:
            if buffer.lock >= 0:  # else it belongs to another process by now
                buffer.file.blank()
                buffer.let_go(self._device)
                buffer.file.empty()
        self.host_bytes = 0

    def _target(self) -> _Buffer:
        """The file of this member that is not needed."""
        headers = [buffer.file.header() for buffer in self._own]
        needed = self._needed()
        order = sorted(
            range(len(headers)),
            key=lambda number: (
                (header := headers[number]) is not None,
                header is not None and header.whole in needed,
                0 if header is None else header.step,
            ),
        )
        return self._own[order[0]]

    def _needed(self) -> set[tuple[object, ...]]:
        """The newest snapshot of which this node has every part that it has of any; else the newest of this
        member's own part.
        """
        parts = [header for header in _whole_ones(self._headers()) if header.ranks == self._ranks]
        rails = {header.rail for header in parts}
        versions: defaultdict[tuple[int, str], list[PartHeader]] = defaultdict(list)
        for header in parts:
            versions[header.step, header.share.history].append(header)
        found = [version for version in versions.values() if {header.rail for header in version} == rails]
        own = [header for header in parts if header.rail == self._rail]
        return {header.whole for header in (found[-1] if found else own[-1:])}

    def _complete(self, taken: _Taken, stall_ns: int) -> None:
        """After the copy, write the hashes, the note and, last, the header."""
        try:
            self._copy.wait()
        except RuntimeError:
            return  # the device has failed, and with it this member
        try:
            self._seal(taken, stall_ns)
        except _FAILURES as error:
            self._switch_off(
                taken.header.step, f"snapshots are off, because one could not be completed: {error}"
            )

    def _seal(self, taken: _Taken, stall_ns: int) -> None:
        memory = taken.flat.numpy().data
        bounds = [
            (one.offset + begin, one.offset + end)
            for one in taken.note.stretches
            for begin, end in one.pieces()
        ]
        threads = min(HASHERS_MAX, len(os.sched_getaffinity(0)) // 2)
        names = iter(each_hashed([_naming(memory[begin:end]) for begin, end in bounds], threads))
        kept = tuple(
            msgspec.structs.replace(one, names=b"".join(next(names) for _ in one.pieces()))
            for one in taken.note.stretches
        )
        note = msgspec.msgpack.encode(msgspec.structs.replace(taken.note, stretches=kept))
        begin = taken.header.data_bytes
        memory[begin : begin + len(note)] = note
        header = taken.header._replace(note_bytes=len(note), note_hash=sealed_by(note)).encoded()
        with self._heading:
            if taken.epoch != self._epoch:
                return
            memory[: len(header)] = header
        took_s = (time.monotonic_ns() - taken.began_ns) / 1e9
        copied_s = self._copy.took_s
        self._cost_s = took_s if copied_s is None else stall_ns / 1e9 + COPY_COST * copied_s
        size_bytes = sum(one.size_bytes for one in taken.note.stretches)
        if not self._is_closed:
            self.told.kept(taken.header.step, stall_ns, size_bytes)

    # ---- using snapshots -----------------------------------------------------------------------------------

    def _headers(self) -> dict[int, PartHeader]:
        """The headers, by the number of the file."""
        found = {number: file.header() for number, file in enumerate(self._files)}
        return {number: header for number, header in found.items() if header is not None}

    def newest(self, until: Mark | None = None) -> Loaded | None:
        """The newest complete snapshot of this member's part on this node, up to `until` if given. Damaged
        ones are skipped and reported.
        """
        try:
            self._tell_damaged()
            headers = self._headers()
        except OSError as error:
            self._switch_off(0, f"snapshots are off, because none can be read: {error}", is_kept=True)
            return None
        for candidate in reversed(_whole_ones(headers)):
            is_wanted = (candidate.rail, candidate.ranks) == (self._rail, self._ranks)
            if not is_wanted or candidate.whole in self._refused:
                continue
            if until is not None and (candidate.step, SNAPSHOT) > until:
                continue
            shares = {
                header.share.number: number
                for number, header in headers.items()
                if header.whole == candidate.whole
            }
            try:
                return self._loaded(
                    candidate, [(self._files[file], headers[file]) for file in shares.values()]
                )
            except (Unsound, OSError, ValueError) as error:
                self._refused.add(candidate.whole)
                self.told.failed(
                    candidate.step, self.place, f"the snapshot of step {candidate.step} is damaged: {error}"
                )
        return None

    def _tell_damaged(self) -> None:
        """Report files so damaged that not even their step is known; once each."""
        for number, file in enumerate(self._files):
            if (number,) not in self._refused and file.is_damaged:
                self._refused.add((number,))
                self.told.failed(0, self.place, "a snapshot is damaged: it does not begin with its header")

    def _loaded(self, candidate: PartHeader, parts: Sequence[tuple[MemoryFile, PartHeader]]) -> Loaded:
        self.times = RestoreTimes()
        state = restored(parts, self._device, self.times)
        told = state.get("shards")
        return Loaded(
            step=candidate.step,
            state=state,
            place=self.place,
            digest="",
            preference=SNAPSHOT,
            history=candidate.share.history,
            whole=told.get("whole", 0) if isinstance(told, dict) else 0,
        )


def _whole_ones(headers: Mapping[int, PartHeader]) -> list[PartHeader]:
    """One header of each part that has all its shares, the newest last."""
    shares: defaultdict[tuple[object, ...], dict[int, PartHeader]] = defaultdict(dict)
    for header in headers.values():
        shares[header.whole][header.share.number] = header
    found = [one[0] for one in shares.values() if len(one) == next(iter(one.values())).share.of]
    return sorted(found, key=lambda header: (header.step, header.share.history))


def _placed(laid: Laid, share: Share) -> tuple[list[KeptStretch], int]:
    """Where the bytes of a share lie in its file, and where they end. Data that a GPU gathers come last."""
    sizes = [tensor.nbytes for tensor in laid.tensors]
    wanted = [
        (number, begin, end - begin)
        for number, (begin, end) in enumerate(stretches(sizes, share))
        if begin < end and not _is_small(laid.tensors[number])
    ]
    kept, gathered, at = [], [], PAGE_BYTES
    for one in wanted:
        if is_gathered(laid.tensors[one[0]], one[2]):
            gathered.append(one)
            continue
        kept.append(KeptStretch(*one, at))
        at = -(-(at + one[2]) // ALIGNED_BYTES) * ALIGNED_BYTES
    for one in gathered:
        kept.append(KeptStretch(*one, at))
        at += one[2]
    return kept, at


def _note(laid: Laid, kept: Sequence[KeptStretch], share: Share) -> SnapshotNote:
    """Small tensors in main memory are read here, before anything changes them."""
    if share.number:
        return SnapshotNote(tuple(kept))
    small = {number: _bytes_here(tensor) for number, tensor in enumerate(laid.tensors) if _is_small(tensor)}
    sizes = tuple(tensor.nbytes for tensor in laid.tensors)
    return SnapshotNote(tuple(kept), laid.skeleton, laid.stored, sizes, small)


def _bytes_here(tensor: torch.Tensor) -> bytes:
    flat = memory_as_it_lies(tensor)
    return ctypes.string_at(flat.data_ptr(), flat.numel())


def _is_small(tensor: torch.Tensor) -> bool:
    """Not for a GPU's tensors: to read one by itself, the host would wait for everything queued there."""
    return not tensor.nbytes or (tensor.nbytes <= INLINE_BYTES and not tensor.is_cuda)


def _names_bytes(kept: Sequence[KeptStretch]) -> int:
    """How much the hashes of all pieces will add to the note."""
    return sum(NAME_BYTES * piece_count(one.size_bytes) + 8 for one in kept)


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _naming(memory: memoryview) -> Callable[[], bytes]:
    return lambda: name_of(memory)


# ---- snapshots before checkpoints ------------------------------------------------------------------------


class Restorable(Protocol):
    """A source of states that a run can resume from."""

    def newest(self, until: Mark | None = None) -> Loaded | None:
        """See `Checkpoints`."""


class MemoryFirst:
    """Snapshots; checkpoints if they are newer, or if there is no snapshot in memory."""

    def __init__(self, snapshots: MemorySnapshots, checkpoints: Checkpoints | None) -> None:
        self._snapshots = snapshots
        self._checkpoints = checkpoints

    def newest(self, until: Mark | None = None) -> Loaded | None:
        found = self._snapshots.newest(until)
        if self._checkpoints is None:
            return found
        if found is None:
            return self._checkpoints.newest(until)
        try:
            steps = [step for step in self._steps(self._checkpoints) if until is None or (step, 0) <= until]
            if steps and max(steps) > found.step:
                kept = self._checkpoints.newest(until)
                return found if kept is None or kept.mark < found.mark else kept
        except (OSError, StoreError) as error:  # unreadable storage must not delay a member with a state
            self._snapshots.told.failed(
                found.step,
                found.place,
                f"resuming from the snapshot of step {found.step}; a newer checkpoint may exist, but storage "
                f"could not be read: {error}",
            )
        return found

    def _steps(self, checkpoints: Checkpoints) -> list[int]:
        """List the steps. Raises `OSError` or `StoreError` if storage cannot be read, or hangs."""
        found: list[list[int] | OSError | StoreError] = []

        def look() -> None:
            try:
                found.append(checkpoints.steps())
            except (OSError, StoreError) as error:
                found.append(error)

        looking = threading.Thread(target=look, name="holdfast storage", daemon=True)
        try:
            looking.start()
        except RuntimeError as error:
            raise OSError(str(error)) from None
        looking.join(LIST_S_MAX)
        if not found:
            raise TimeoutError(f"storage could not be listed in {LIST_S_MAX:.0f} s")
        if isinstance(found[0], list):
            return found[0]
        raise found[0]
