"""Checkpoints: durable copies of a run's state, for when no peer is left to copy it from.

`Checkpoints` is the protocol of a store of them. `DirectoryCheckpoints` keeps them in a directory: one
manifest per step, which appears atomically, and the chunks that it names. `Writer` writes them without
holding training up. Other modules decide which member writes and what the state consists of.
"""

import contextlib
import copy
import errno
import math
import os
import re
import shlex
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, Self

import msgspec
import torch

from holdfast import wording
from holdfast.economics.cadence.cadence import daly_work_s, learned_mtbf_s, mtbf_of_nodes_s
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import InputError, StoreError
from holdfast.record.files import sync
from holdfast.train.chunks import (
    FOLDER,
    ChunkPlace,
    NewerFormat,
    OlderFormat,
    PackWriter,
    Unsound,
    age_s,
    locked,
    packs_in,
    remove_packs,
)
from holdfast.train.holds import held_steps
from holdfast.train.kept import WHOLE, found_in, manifest_path
from holdfast.train.manifest import (
    assembled,
    identity_of,
    lay_out,
    load_state,
    stretches,
    write_share,
)
from holdfast.train.manifest_file import (
    ALL,
    Manifest,
    Share,
    ShareNote,
    check_chunks,
    encoded,
    read_manifest,
    read_share,
)
from holdfast.train.skeleton import is_dense
from holdfast.train.storage_budget import JITTER_SHARE_MAX, StorageBudget, jitter
from holdfast.train.whole_file import is_left_behind, part_of

COST_SHARE_MAX = 1 / 50
"""Making a checkpoint takes at most this share of the time between two checkpoints."""
INTERVAL_S_MIN = 10.0
"""Checkpoints are never closer together than this, even if they cost next to nothing. The first one is made
this soon, too, because the cost of one is unknown before.
"""
EXPOSURE_S_MAX = 600.0
"""At most this much work is at risk, however unlikely failures are, unless checkpoints cost too much: some
ends are in no failure rate, such as a power cut or a user's `kill -9`.
"""
CLOSE_S_MAX = 60.0
"""How long closing a writer waits for its unfinished work, so that hanging storage cannot block the end."""
READ_PAUSES_S = (0.25, 0.5, 1.0, 2.0)
"""Pauses between attempts to read a file that exists but is unreadable, so that storage can recover."""
LOST_ERRORS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""The kernel's errors when storage has lost data or the filesystem is damaged."""
AHEAD_MAX = 8
"""The most checkpoints kept of a rank that is ahead, while the other ranks' parts are missing."""
USED_SHARE_MIN = 0.5
"""If less of a pack is in use than this share, its chunks are written again so that it can be removed."""
SHARES_S_MIN, SHARES_X = 10.0, 2.0
"""How long the first member waits for the others' shares: this many seconds plus this many times its own
time.
"""
SHARE_LOOK_S = 0.02
LOOKS_MAX = 8
"""How often a directory is listed again because a listed checkpoint was gone: writers remove old ones."""

State = Mapping[str, object]
"""A tree of dicts, lists and tuples whose leaves are tensors, numbers, strings and None."""
Happened = Literal["begun", "saved", "failed"]
"""As in the record. `failed`: the checkpoint could not be written, or was unfit to be read."""


class CheckpointListener(Protocol):
    """Called with every event of a checkpoint, in the thread where it happened. Must not raise."""

    def __call__(
        self,
        happened: Happened,
        step: int,
        place: str,
        reason: str = "",
        *,
        stall_ns: int | None = None,
        size_bytes: int | None = None,
        written_bytes: int | None = None,
        write_ns: int | None = None,
        exposed_ns: int | None = None,
    ) -> None: ...


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A durable checkpoint that was read back. size_bytes: of all its tensors. written_bytes: of the chunks
    that had to be written. digest: of the state. paused_ns: how long the storage budget delayed it.
    """

    step: int
    place: str
    size_bytes: int
    written_bytes: int
    digest: str
    paused_ns: int = 0


Mark = tuple[int, int]
"""A step, and a preference among the checkpoints of that step. The highest mark is the newest."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose hashes all matched. digest: of the state. history, whole: for a part, see
    `PartNote`.
    """

    step: int
    state: dict[str, object]
    place: str
    digest: str
    preference: int = 0
    history: str = ""
    whole: int = 0

    @property
    def mark(self) -> Mark:
        return self.step, self.preference


class Checkpoints(Protocol):
    """A store of a run's checkpoints. Every complete one can be used, however old it is."""

    @property
    def place(self) -> str:
        """Where the checkpoints are, for messages."""

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        """Make the state durable, or raise. The caller may change the tensors once this returns. share: the
        share of the state to write here; other members write the rest. The member of the first share waits
        for the others and publishes the checkpoint of the whole.
        """

    def newest(self, until: Mark | None = None) -> Loaded | None:
        """The newest sound checkpoint, up to `until` if given. Damaged ones are skipped and reported. None if
        nothing was ever saved here. Raises `StoreError` if something here cannot be read, or if no checkpoint
        is sound.
        """

    def steps(self) -> list[int]:
        """The steps of the checkpoints listed here, oldest first; they are not verified."""

    def hurry(self, within_s: float) -> None:
        """The process ends: the save in progress has this long. A store with a second place must leave it
        time.
        """

    @property
    def is_read(self) -> bool:
        """Whether a state passed to `save` may still be read, so that its memory must not be reused."""


# ---- one checkpoint --------------------------------------------------------------------------------------

_SHARE = re.compile(r"step-([0-9]{12,})\.[0-9a-f]+\.[0-9]+-of-[0-9]+\.share")
_PART = re.compile(r"\.step-([0-9]{12,})\.[0-9a-f]{16}\.part")


class AllDamaged(StoreError):
    """Checkpoints exist, but none is sound."""


class _Gone(Exception):
    """A checkpoint was removed while it was being read."""


def verify(path: Path, step: int | None = None) -> None:
    """Raise `Unsound` or `OSError` unless the checkpoint is intact, and of this step if one is given."""
    check_chunks(path, read_manifest(path, step))


def read(path: Path, step: int | None = None, map_location: str | torch.device = "cpu") -> Loaded:
    """Read the checkpoint of this manifest, of this step if one is given. Raises `Unsound` or `OSError`."""
    manifest = read_manifest(path, step)
    state = load_state(path, manifest, map_location)
    return Loaded(step=manifest.step, state=state, place=str(path), digest=manifest.digest)


def _why(error: Exception) -> str:
    """The reason in the system's words, without the error number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _sentence(error: BaseException) -> str:
    """The first line of the message: torch's messages can be pages long."""
    return (str(error).splitlines() or [type(error).__name__])[0]


# ---- a directory of checkpoints --------------------------------------------------------------------------


class DirectoryCheckpoints:
    """A directory that successive members of a run share, with a manifest per step and the chunks in a
    subfolder.

    Packs of chunks are on the disk before a manifest names them. A manifest is written under a temporary
    name, synced, and only then renamed. So neither a kill nor a second writer (a paused member that wakes up)
    can leave anything but whole checkpoints under a checkpoint's name. The leftovers of a killed writer are
    recognised by their lock, which the kernel has released. Files with other names are ignored.

    Unchanged chunks are not written again, unless only the newest checkpoint has them: the two newest have no
    file in common, so that damage to one file cannot destroy both.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        told: CheckpointListener,
        keep: int = 2,
        read_pauses_s: Sequence[float] = READ_PAUSES_S,
        budget: StorageBudget | None = None,
    ) -> None:
        if keep < 1:
            raise InputError(f"keep={keep} keeps no checkpoint.", hint="Keep at least 1; 2 is the default.")
        self._directory = Path(directory)
        self._keep = keep
        self._told = told
        self._read_pauses_s = tuple(read_pauses_s)
        self._refused: set[int] = set()
        self._budget = budget
        self._ranks = 1

    @property
    def paused_s(self) -> float:
        """How long the storage budget has delayed saves in total."""
        return 0.0 if self._budget is None else self._budget.paused_s

    @property
    def place(self) -> str:
        return str(self._directory)

    @property
    def is_read(self) -> bool:
        return False

    @property
    def _folder(self) -> Path:
        return self._directory / FOLDER

    def hurry(self, within_s: float) -> None:
        """Lift the storage budget: the process ends, and there is no second place to write to."""
        if self._budget is not None:
            self._budget.lift()

    def steps(self) -> list[int]:
        return sorted(self._found(WHOLE).values())

    def marks(self) -> list[Mark]:
        """The marks of all checkpoints listed here, unverified. Raises `OSError`."""
        return [each.mark for each in self._candidates()]

    def path(self, step: int) -> Path:
        """The path of a step's manifest, whether or not it exists."""
        return manifest_path(self._directory, step)

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        paused_s = self.paused_s
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            saved = self._save(step, state, share)
        except (OSError, Unsound, InputError) as error:
            with contextlib.suppress(OSError):
                self.collect()  # leftovers of other writers may take the space
            raise StoreError(
                f"The checkpoint of step {step} could not be written to {self._directory}: {_why(error)}.",
                hint="Look at the directory's free space, permissions and disk.",
            ) from error
        if share.number == 0:
            self._refused.discard(step)
            self._remove_old(step)
        return msgspec.structs.replace(saved, paused_ns=round(1e9 * (self.paused_s - paused_s)))

    def _save(self, step: int, state: State, share: Share) -> Saved:
        laid = lay_out(state)
        begun_s = time.monotonic()
        of_others: list[int] = []

        def write(packs: PackWriter) -> Manifest | ShareNote:
            note = write_share(step, laid, share, packs)
            packs.close()
            if share.number:
                return note
            others = self._others(step, share, SHARES_S_MIN + SHARES_X * (time.monotonic() - begun_s))
            of_others.extend(other.written_bytes for other in others)
            history, whole = _told_of(state)
            return assembled(step, laid, [note, *others], history=history, whole=whole)

        target = self._share_path(step, share) if share.number else self.path(step)
        made, written_bytes = self._publish(step, target, write, writers=share.of)
        return Saved(
            step=step,
            place=str(target),
            size_bytes=sum(tensor.nbytes for tensor in laid.tensors),
            written_bytes=written_bytes + sum(of_others),
            digest=made.digest if isinstance(made, Manifest) else "",
        )

    def _publish(
        self, step: int, target: Path, write: Callable[[PackWriter], Manifest | ShareNote], writers: int = 1
    ) -> tuple[Manifest | ShareNote, int]:
        """Publish what `write` makes, once its chunks are durable. Returns it and the number of new bytes."""

        def wait(count: int) -> None:
            if self._budget is not None:
                self._budget.take(count, self._ranks * writers)

        with part_of(self._directory, f"step-{step:012d}") as file, locked(self._folder) as held:
            packs = PackWriter(self._folder, self._reusable(step) if held == "held" else {}, wait)
            try:
                made = write(packs)
                packs.close()
                self._check_there(made.packs)
                file.write(encoded(made))
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                packs.abandon()
                raise
            Path(file.name).replace(target)
            sync(self._directory)
        return made, packs.written_bytes

    def _share_path(self, step: int, share: Share) -> Path:
        """The file that lists what a member has written of a step, until the manifest does."""
        return self._directory / f"step-{step:012d}.{share.history or 0}.{share.number}-of-{share.of}.share"

    def _others(self, step: int, first: Share, within_s: float) -> list[ShareNote]:
        """The notes of the other members' shares. Raises `Unsound` if one does not arrive in time."""
        until_s = time.monotonic() + within_s
        found = []
        for number in range(1, first.of):
            share = first._replace(number=number)
            path = self._share_path(step, share)
            while not path.exists():
                if time.monotonic() > until_s:
                    raise Unsound(f"the member of rank {number} did not write its share in {within_s:.0f} s")
                time.sleep(SHARE_LOOK_S)
            note = read_share(path)
            if (note.step, note.share) != (step, share):
                raise Unsound(f"{path.name} is the share of another state")
            found.append(note)
        return found

    def _check_there(self, packs: Sequence[tuple[str, int]]) -> None:
        """Raise `Unsound` if a pack is missing. The folder is locked, so no pack disappears afterwards."""
        there = packs_in(self._folder)
        missing = [pack for pack, size in packs if there.get(pack, -1) < size]
        if missing:
            raise Unsound(f"its chunks in {missing[0]} were removed meanwhile")

    def _manifests(self, *, passes_over: bool = False) -> dict[int, Manifest]:
        """The sound manifests, by step. Raises `OSError` for one that exists but cannot be read. passes_over:
        skip those that storage has lost.
        """
        found = {}
        for path, step in self._found(WHOLE).items():
            try:
                found[step] = read_manifest(path, step)
            except NewerFormat as error:
                raise OSError(None, str(error), str(path)) from error
            except FileNotFoundError:
                if path.is_symlink():
                    raise  # a broken link, whose target may come back
            except OSError as error:
                if not passes_over or error.errno not in LOST_ERRORS:
                    raise
            except Unsound:
                continue  # needs no chunks, as it will never be used
        return found

    def _reusable(self, step: int) -> dict[bytes, ChunkPlace]:
        """Chunks that a new checkpoint of this step may refer to: their packs are not needed by the newest
        other checkpoint, have their full length and are mostly in use.
        """
        readable = self._manifests(passes_over=True)
        manifests = {of: found for of, found in readable.items() if of not in self._refused}
        newest = max((of for of in manifests if of != step), default=None)
        apart = set(dict(manifests[newest].packs)) if newest is not None else set[str]()
        there = packs_in(self._folder)
        known: dict[bytes, ChunkPlace] = {}
        for manifest in manifests.values():
            used = Counter[str]()
            chunks = dict(manifest.chunks())
            for place in chunks.values():
                used[place.pack] += place.size_bytes
            usable = {
                pack
                for pack, size in manifest.packs
                if pack not in apart
                and there.get(pack, -1) >= size
                and used[pack] >= USED_SHARE_MIN * there[pack]
            }
            known |= {name: place for name, place in chunks.items() if place.pack in usable}
        return known

    def newest(self, until: Mark | None = None) -> Loaded | None:
        for pause_s in (*self._read_pauses_s, None):
            try:
                return self._newest_settled(until, is_last=pause_s is None)
            except OSError as error:
                if pause_s is None:
                    raise StoreError(
                        f"Cannot read {error.filename or self.place}: {_why(error)}. What it holds is the "
                        "state to go on from.",
                        hint="Nothing was changed there. Make it readable and start the run again; to begin "
                        "anew, name another directory with --checkpoints.",
                    ) from error
                time.sleep(pause_s)
        raise AssertionError  # the last attempt returns or raises

    def _newest_settled(self, until: Mark | None, *, is_last: bool) -> Loaded | None:
        self._tell_leftovers()
        for _ in range(LOOKS_MAX - 1):
            with contextlib.suppress(_Gone):  # removed as old meanwhile: list again
                return self._newest_now(until, is_last=is_last)
        return self._newest_now(until, is_last=is_last)

    def _newest_now(self, until: Mark | None, *, is_last: bool) -> Loaded | None:
        """Skip only damaged checkpoints: one that cannot be read, or that another version wrote, may be sound
        and newer than the rest. is_last: no further attempt follows, so data that storage has lost count as
        damaged, if an older checkpoint can be read.
        """
        found = [each for each in self._candidates() if until is None or each.mark <= until]
        lost: OSError | None = None
        for each in found:
            try:
                return self._open(each)
            except FileNotFoundError as error:
                if each not in self._candidates():
                    raise _Gone from error
                raise  # a broken link, such as into a filesystem that is not mounted
            except (NewerFormat, OlderFormat) as error:
                raise _foreign(each.place, error) from error
            except OSError as error:
                if not is_last or error.errno not in LOST_ERRORS:
                    raise
                lost = lost or error
                file = Path(error.filename or each.place).name
                self._refuse(each, f"{file} cannot be read: {_why(error)}")
            except Unsound as error:
                if each not in self._candidates():
                    raise _Gone from error  # removed together with its chunks, while they were read
                self._refuse(each, _sentence(error))
        if lost is not None:
            raise lost
        if found:
            raise AllDamaged(
                f"Every checkpoint in {self.place} is damaged: `holdfast checkpoint verify "
                f"{shlex.quote(self.place)}` says how.",
                hint="Nothing was changed there. Put a sound one back; to begin anew, name another directory "
                "with --checkpoints.",
            )
        return None

    def _refuse(self, candidate: "Candidate", reason: str) -> None:
        if candidate.place == str(self.path(candidate.step)):
            self._refused.add(candidate.step)
        self._told("failed", candidate.step, candidate.place, reason)

    def _candidates(self) -> list["Candidate"]:
        """The checkpoints listed here, newest first; they are not verified."""
        return [Candidate((step, 0), str(self.path(step))) for step in reversed(self.steps())]

    def _open(self, candidate: "Candidate") -> Loaded:
        """Raises `Unsound` or `OSError`."""
        return read(Path(candidate.place), candidate.step)

    def _found(self, name: re.Pattern[str]) -> dict[Path, int]:
        """The files whose names match, with their steps."""
        return {path: int(match[1]) for path, match in found_in(self._directory, name).items()}

    def _tell_leftovers(self) -> None:
        for path, step in self._found(_PART).items():
            if is_left_behind(path):
                self._told("failed", step, str(path), "its writer died before it was complete")

    def _remove_old(self, step: int) -> None:
        """Remove old checkpoints up to this step; later ones belong to another writer. The newest sound ones
        stay.
        """
        found = [of for of in self.steps() if of <= step]
        sound = set(found) - self._refused
        kept = sorted(self._usable(sound))[-self._keep :]
        oldest = kept[0] if len(kept) == self._keep else 0
        newest = sorted(sound)[-max(AHEAD_MAX, self._keep) :]  # in case none becomes usable
        self.forget_shares(step)
        doomed = [of for of in found if of not in newest or of < oldest]
        if doomed:
            self.remove(set(doomed) - held_steps(self._directory))

    def forget_shares(self, until: int) -> None:
        """Remove the notes of shares up to this step: they are in a manifest, or the save was given up."""
        for path, of in self._found(_SHARE).items():
            if of <= until:
                with contextlib.suppress(OSError):
                    path.unlink()

    def remove(self, steps: Collection[int], *, unnamed_s: float = math.inf) -> int:
        """Remove checkpoints and all chunks that nothing needs any more. Returns how many bytes of chunks
        that frees. Manifests go first: a kill in between leaves only chunks, which the next removal finds.
        unnamed_s: see `collect`.
        """
        named: set[str] = set()
        for step in steps:
            with contextlib.suppress(OSError, Unsound):
                named |= set(dict(read_manifest(self.path(step), step).packs))
            with contextlib.suppress(OSError):  # already removed, or it stays; both are harmless
                self.path(step).unlink()
        with contextlib.suppress(OSError):
            return self.collect(named, unnamed_s=unnamed_s)
        return 0

    def collect(self, named: Collection[str] = (), *, unnamed_s: float = math.inf) -> int:
        """Remove packs that no manifest names, unless a process is writing. Returns how many bytes that
        frees. named: packs that were in use until now. Without file locks no writer ever reuses the packs of
        others, so these can go; packs that were never named go if they are older than `unnamed_s`. Raises
        `OSError` if a manifest cannot be read, as the packs it needs are then unknown.
        """
        for part in self._found(_PART):
            if is_left_behind(part):
                part.unlink(missing_ok=True)
        if not self._folder.is_dir():
            return 0
        with locked(self._folder, exclusively=True) as held:
            if held == "busy":
                return 0
            there = set(packs_in(self._folder))
            if held == "none":
                there = {pack for pack in there if pack in named or age_s(self._folder / pack) > unnamed_s}
            needed = {pack for found in self._manifests().values() for pack, _ in found.packs}
            for share in self._found(_SHARE):
                with contextlib.suppress(Unsound, FileNotFoundError):
                    needed |= set(dict(read_share(share).packs))
            return remove_packs(self._folder, there - needed)

    def _usable(self, steps: set[int]) -> set[int]:
        """The given steps that a run can resume from, as far as this store can tell."""
        return steps


def _foreign(place: str, error: NewerFormat | OlderFormat) -> StoreError:
    """Another version of Holdfast wrote the newest checkpoint, in a format that this one cannot read."""
    again = (
        "Go on with the version that wrote it"
        if isinstance(error, NewerFormat)
        else "Export it with that version (`holdfast checkpoint export RUN --to all.pt`) and bring it into a "
        "new directory with this one (`holdfast checkpoint import all.pt --to DIR`)"
    )
    return StoreError(
        f"Cannot go on from {place}: {error}.",
        hint=f"Nothing was changed there. {again}; to begin anew, name another directory with --checkpoints.",
    )


def _told_of(state: State) -> tuple[str, int]:
    """The history of a part, and the newest step known to be complete: see `PartNote`."""
    note = state.get("shards")
    return (note.get("history", ""), note.get("whole", 0)) if isinstance(note, dict) else ("", 0)


class Candidate(NamedTuple):
    """A possible checkpoint, not verified. place: its file, or a pattern that matches several."""

    mark: Mark
    place: str

    @property
    def step(self) -> int:
        return self.mark[0]


# ---- in the background -----------------------------------------------------------------------------------


class _Like(NamedTuple):
    """Tensors that agree in these fields can reuse each other's memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    pinned: bool


class Snapshot:
    """A copy of a state in CPU memory that nothing else writes to.

    spare: a snapshot that is no longer needed, whose memory is reused. Touching fresh memory for the first
    time takes several times as long as the copying itself, and training waits for it. share: the share that
    is copied; the rest has the same layout and arbitrary contents.
    """

    def __init__(self, state: State, spare: "Snapshot | None" = None, share: Share = ALL) -> None:
        self._stretches: dict[tuple[object, ...], tuple[int, int]] = {}
        if share.of > 1:
            tensors = lay_out(state).tensors
            found = stretches([tensor.nbytes for tensor in tensors], share)
            self._stretches = dict(zip(map(identity_of, tensors), found, strict=True))
        self._spare: defaultdict[_Like, list[torch.Tensor]] = defaultdict(list)
        for like, tensor in spare._tensors if spare else ():
            self._spare[like].append(tensor)
        self._tensors: list[tuple[_Like, torch.Tensor]] = []
        self._copies: dict[tuple[object, ...], torch.Tensor] = {}
        self.state: dict[str, object] = {key: self._copy(value, key) for key, value in state.items()}
        self.is_of_gpu = any(like.pinned for like, _ in self._tensors)
        if self.is_of_gpu:
            torch.cuda.synchronize()  # copies into pinned memory are only begun
        self._spare.clear()
        self._copies.clear()
        self._stretches.clear()

    def _copy(self, value: object, path: str) -> object:
        """Copy a value. `path` names it in the error if it cannot be kept."""
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value, path)
        if kind in _PLAIN:
            return value
        if isinstance(value, float):  # numpy's float64 is one, with the same bits
            return float(value)
        if kind in (dict, OrderedDict, Counter):
            assert isinstance(value, dict)
            twin = copy.copy(value)  # with the attributes that state_dict() sets on it
            for key, item in value.items():
                if type(key) not in _PLAIN:
                    raise _unkept(key, f"a key of {path}")
                twin[key] = self._copy(item, f"{path}.{key}")
            return twin
        if kind in (list, tuple):
            assert isinstance(value, list | tuple)
            return kind(self._copy(item, f"{path}[{index}]") for index, item in enumerate(value))
        raise _unkept(value, path)

    def _copy_tensor(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_meta:
            raise _unkept(tensor, path)
        tensor = tensor.detach()
        # A tied tensor is copied once, and is tied again when it is loaded.
        identity = identity_of(tensor)
        if (known := self._copies.get(identity)) is not None:
            return known
        begin, end = self._stretches.get(identity, (0, tensor.nbytes))
        if begin == end != tensor.nbytes:
            copied = torch.empty_like(tensor, device="cpu")  # untouched memory costs nothing
        else:
            copied = self._filled(tensor, begin, end)
        self._copies[identity] = copied
        return copied

    def _filled(self, tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        like = _Like(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_cuda)
        spare = self._spare[like]
        copied = spare.pop() if spare else torch.empty_like(tensor, device="cpu", pin_memory=like.pinned)
        self._tensors.append((like, copied))
        if end - begin == tensor.nbytes or not is_dense(tensor):
            copied.copy_(tensor, non_blocking=True)
            return copied
        of = slice(begin // tensor.itemsize, end // tensor.itemsize)
        target, source = (one.as_strided((one.numel(),), (1,)) for one in (copied, tensor))
        target[of].copy_(source[of], non_blocking=True)
        return copied


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def _unkept(value: object, path: str) -> InputError:
    return InputError(
        f"A checkpoint cannot keep {path}, a {type(value).__module__}.{type(value).__qualname__}.",
        hint="A state is made of dicts, lists and tuples of dense tensors, numbers and strings.",
    )


class _Offer(NamedTuple):
    step: int
    share: Share
    snapshot: Snapshot
    began_ns: int
    stall_ns: int


class Writer:
    """Writes checkpoints in a thread of its own; training waits only while its state is copied.

    One is written at a time and at most one waits; a newer offer replaces the waiting one. So up to two
    copies of the state are in memory, and one between checkpoints. A failed save is reported, and training
    continues.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        told: CheckpointListener,
        clock: Clock | None = None,
        interval_s: float = INTERVAL_S_MIN,
        every_steps: int | None = None,
        run: str = "",
    ) -> None:
        """run: the run's name, which shifts its saves away from those of other runs; empty: no shift."""
        if interval_s < 0:
            raise InputError(
                f"interval_s={wording.number(interval_s)} is not a time to wait.", hint="Give 0 or more."
            )
        if every_steps is not None and every_steps < 1:
            raise InputError(f"every_steps={every_steps} is not a number of steps.", hint="Give 1 or more.")
        self._checkpoints = checkpoints
        self._told = told
        self._clock = clock or SystemClock()
        self._interval_ns = int(interval_s * 1e9)
        self._every_steps = every_steps
        self._run_name = run
        self._offers = 0
        self._changed = threading.Condition()
        self._waiting: _Offer | None = None
        self._writing = False
        self._closing = False
        self._spare: Snapshot | None = None
        self._opened_ns = self._began_ns = self._clock.now_ns()
        self._cost_ns: int | None = None
        self._safe_ns = self._opened_ns  # when the newest durable state was copied
        self.saved = 0  # the newest durable step
        self.is_troubled = False  # the last save failed
        self._thread = threading.Thread(target=self._run, name="holdfast checkpoints", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def due(self, step: int, *, nodes: int = 1, failures: int = 0) -> bool:
        """Whether to offer this step: if `every_steps` is given, every such step; else as the work at risk
        demands.

        In the second case the last checkpoint must be finished, and the best interval must have passed since
        it began. nodes: how many the run has. failures: how many this member has seen.
        """
        if self._every_steps is not None:
            return step % self._every_steps == 0
        with self._changed:
            if self._writing or self._waiting:
                return False
            return self._clock.now_ns() - self._began_ns >= self._best_interval_ns(nodes, failures)

    @property
    def is_busy(self) -> bool:
        """Whether an offered state is not durable yet."""
        with self._changed:
            return self._writing or self._waiting is not None

    def _best_interval_ns(self, nodes: int, failures: int) -> int:
        """Daly's interval for the cost of the last checkpoint and the failure rate of such a run, within
        bounds. Within these it differs from run to run, so that runs that began together do not save
        together.
        """
        away = JITTER_SHARE_MAX * jitter(self._run_name, self._offers)
        least_ns = round(self._interval_ns * (1 + away))
        if self._cost_ns is None:
            return least_ns
        elapsed_s = (self._clock.now_ns() - self._opened_ns) / 1e9
        mtbf_s = learned_mtbf_s(mtbf_of_nodes_s(nodes), failures, elapsed_s)
        best_ns = self._cost_ns + round(1e9 * daly_work_s(self._cost_ns / 1e9, mtbf_s))
        tolerated_ns = round(min(best_ns, EXPOSURE_S_MAX * 1e9) * (1 - away))
        return max(tolerated_ns, least_ns, round(self._cost_ns / COST_SHARE_MAX * (1 + away)))

    def offer(self, step: int, state: State, share: Share = ALL) -> int:
        """Have this step, or a share of it, written. Returns how long the copying took, in nanoseconds.
        Raises `InputError` for a state that cannot be kept, because a retry would not help.
        """
        began_ns = self._clock.now_ns()
        with self._changed:
            if self._closing:
                raise RuntimeError("offered a checkpoint to a writer that was closed")
            replaced, self._waiting = self._waiting, None
            spare = replaced.snapshot if replaced else self._spare
            self._spare = None
        snapshot = Snapshot(state, spare, share)
        stall_ns = self._clock.now_ns() - began_ns
        with self._changed:
            self._waiting = _Offer(step, share, snapshot, began_ns, stall_ns)
            self._began_ns = began_ns
            self._offers += 1
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify_all()
        return stall_ns

    def close(self, timeout_s: float = CLOSE_S_MAX) -> bool:
        """Finish the offered saves. False if that took too long; the thread is then left running."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._checkpoints.hurry(timeout_s)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while offer := self._next():
            # The member of the first share reports for the whole checkpoint.
            if offer.share.number == 0:
                self._told("begun", offer.step, self._checkpoints.place)
            saved, reason = self._save(offer)
            happened: Happened = "failed" if saved is None else "saved"
            now_ns = self._clock.now_ns()
            took_ns, exposed_ns = now_ns - offer.began_ns, now_ns - self._safe_ns
            if saved is not None:
                self._safe_ns = offer.began_ns
            with self._changed:
                self._spare = None if self._checkpoints.is_read else offer.snapshot
                # If a GPU trains, this thread takes no time from it. Otherwise it uses training's own cores,
                # except while it waits for its storage budget.
                paused_ns = 0 if saved is None else saved.paused_ns
                busy_ns = max(offer.stall_ns, took_ns - paused_ns)
                self._cost_ns = offer.stall_ns if offer.snapshot.is_of_gpu else busy_ns
                self._writing = False
                self.saved = offer.step if happened == "saved" else self.saved
                self.is_troubled = happened == "failed"
            if offer.share.number == 0 or happened == "failed":
                self._told(
                    happened,
                    offer.step,
                    self._checkpoints.place if saved is None else saved.place,
                    reason,
                    stall_ns=offer.stall_ns,
                    size_bytes=None if saved is None else saved.size_bytes,
                    written_bytes=None if saved is None else saved.written_bytes,
                    write_ns=None if saved is None else took_ns - offer.stall_ns,
                    exposed_ns=None if saved is None else exposed_ns,
                )

    def _next(self) -> _Offer | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            offer, self._waiting = self._waiting, None
            self._writing = offer is not None
            return offer

    def _save(self, offer: _Offer) -> tuple[Saved | None, str]:
        """The saved checkpoint, or the reason for the failure."""
        try:
            return self._checkpoints.save(offer.step, offer.snapshot.state, offer.share), ""
        except Exception as error:  # training continues after any failure
            return None, _sentence(error)
