"""Checkpoints: durable copies of a run's state, for when no peer is left to copy it from.

`Checkpoints` is what a store of them can do; `DirectoryCheckpoints` keeps them in a directory: a manifest per
step, whole or not there at all, and the chunks that it names. `Writer` keeps the writing out of training's
way. Which member writes, and what the state is made of, is decided elsewhere.
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
"""Of the time from one checkpoint to the next, no more than this goes into making one."""
INTERVAL_S_MIN = 10.0
"""Where checkpoints cost next to nothing, they are still no closer together. The first is made so soon, too:
what one costs is not known before.
"""
EXPOSURE_S_MAX = 600.0
"""However unlikely a failure is, no more work than this is left at stake, unless checkpoints cost too much:
there are ends that no failure rate tells of, such as a power cut, or a user's `kill -9`.
"""
CLOSE_S_MAX = 60.0
"""How long a writer that is closed waits for what it has begun: storage that hangs holds up no end."""
READ_PAUSES_S = (0.25, 0.5, 1.0, 2.0)
"""Between attempts to read what is there and cannot be read: storage that stumbles is given this long."""
LOST_ERRORS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""What the kernel answers where the storage has lost what was written, or the filesystem is damaged there."""
AHEAD_MAX = 8
"""So many checkpoints are kept at most of a rank that is ahead of the others, whose parts are missing yet."""
USED_SHARE_MIN = 0.5
"""Of a pack: where less of it is in use, that is written anew, so that the pack can go."""
SHARES_S_MIN, SHARES_X = 10.0, 2.0
"""How long the first member waits for the shares of others: so long, and so many times what its own took."""
SHARE_LOOK_S = 0.02
LOOKS_MAX = 8
"""How often a directory is looked at again because what it showed was gone: a writer removes what is old."""

State = Mapping[str, object]
"""A tree of dicts, lists and tuples, with tensors, numbers, strings and None at its ends."""
Happened = Literal["begun", "saved", "failed"]
"""What the record calls it; `failed`: could not be written, or was found unfit to be read."""


class CheckpointListener(Protocol):
    """Who hears what happened to checkpoints, from whichever thread it happened in. Must not raise."""

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
    """A checkpoint that is durable and was read back. size_bytes: of all its tensors; written_bytes: of what
    was not there yet. digest: of the state. paused_ns: for how long a budget of storage held it up.
    """

    step: int
    place: str
    size_bytes: int
    written_bytes: int
    digest: str
    paused_ns: int = 0


Mark = tuple[int, int]
"""A step, and which of its checkpoints is to be taken first if it has several. The highest is the newest."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of which every hash agreed. digest: of the state. history, whole: of a part, see
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
    """Where a run's checkpoints are kept. Any complete one of a run is as good as when it was written."""

    @property
    def place(self) -> str:
        """Where they are, for people."""

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        """Keep the state for good, or raise. The tensors are the caller's again when this returns. share: of
        the state, which others keep the rest of; the first waits for them, and makes a checkpoint of it all.
        """

    def newest(self, until: Mark | None = None) -> Loaded | None:
        """The newest one that is sound, up to this one if one is given; damaged ones are passed over,
        and told of. None: nothing was ever saved here. Raises `StoreError` where something is there that
        cannot be read, or nothing sound.
        """

    def steps(self) -> list[int]:
        """Which there seem to be, oldest first."""

    def hurry(self, within_s: float) -> None:
        """What is being saved is waited for so long; where there is a second place, leave it time."""

    @property
    def is_read(self) -> bool:
        """Whether a state that was to be saved may still be read, so that its memory must be left alone."""


# ---- one of them -----------------------------------------------------------------------------------------

_SHARE = re.compile(r"step-([0-9]{12,})\.[0-9a-f]+\.[0-9]+-of-[0-9]+\.share")
_PART = re.compile(r"\.step-([0-9]{12,})\.[0-9a-f]{16}\.part")


class AllDamaged(StoreError):
    """There are checkpoints, and none is sound."""


class _Gone(Exception):
    """A checkpoint was removed while it was looked for."""


def verify(path: Path, step: int | None = None) -> None:
    """Raises `Unsound` or `OSError` unless all of it is what was written, for this step if one is given."""
    check_chunks(path, read_manifest(path, step))


def read(path: Path, step: int | None = None, map_location: str | torch.device = "cpu") -> Loaded:
    """The checkpoint whose manifest this is, of this step if one is given. Raises `Unsound` or `OSError`."""
    manifest = read_manifest(path, step)
    state = load_state(path, manifest, map_location)
    return Loaded(step=manifest.step, state=state, place=str(path), digest=manifest.digest)


def _why(error: Exception) -> str:
    """In the system's words, without its number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _sentence(error: BaseException) -> str:
    """The first line: torch's go on for pages."""
    return (str(error).splitlines() or [type(error).__name__])[0]


# ---- a directory of them ---------------------------------------------------------------------------------


class DirectoryCheckpoints:
    """A manifest per step in a directory that successive members of a run share, and chunks in a folder of
    it.

    Packs of chunks are on the disk before a manifest names them, and a manifest is written under a name of
    its own, synced and only then renamed. So neither a kill nor a second writer, a paused member that wakes
    up, can leave anything but whole checkpoints under a checkpoint's name. What a killed writer leaves is
    known by its lock, which the kernel took back. Files of other names are not looked at.

    What has not changed is not written again, unless the newest checkpoint is the only one that has it: the
    two newest have no file in common, so no damage to a file takes both.
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
        """How long a budget of storage has held saves up in all."""
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
        """There is no other place, and no time to spare storage."""
        if self._budget is not None:
            self._budget.lift()

    def steps(self) -> list[int]:
        return sorted(self._found(WHOLE).values())

    def marks(self) -> list[Mark]:
        """All that there seem to be to go on from. Raises `OSError`."""
        return [each.mark for each in self._candidates()]

    def path(self, step: int) -> Path:
        """Where the manifest of a step is, if there is one."""
        return manifest_path(self._directory, step)

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        paused_s = self.paused_s
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            saved = self._save(step, state, share)
        except (OSError, Unsound, InputError) as error:
            with contextlib.suppress(OSError):
                self.collect()  # what others have left may be what takes the room
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
        """What was made of chunks that are durable, once it has its name, and how many bytes were new."""

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
        """Where a member says what it has written of a step, until that is in the manifest."""
        return self._directory / f"step-{step:012d}.{share.history or 0}.{share.number}-of-{share.of}.share"

    def _others(self, step: int, first: Share, within_s: float) -> list[ShareNote]:
        """What the other members have written, once they have. Raises `Unsound` where one does not come."""
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
        """While the folder is locked: what is there now will be there when the manifest is."""
        there = packs_in(self._folder)
        missing = [pack for pack, size in packs if there.get(pack, -1) < size]
        if missing:
            raise Unsound(f"its chunks in {missing[0]} were removed meanwhile")

    def _manifests(self, *, passes_over: bool = False) -> dict[int, Manifest]:
        """Those that are sound, by step. Raises `OSError` for one that is there and cannot be read.
        passes_over: unless storage has lost it.
        """
        found = {}
        for path, step in self._found(WHOLE).items():
            try:
                found[step] = read_manifest(path, step)
            except NewerFormat as error:
                raise OSError(None, str(error), str(path)) from error
            except FileNotFoundError:
                if path.is_symlink():
                    raise  # leads nowhere now, and may lead somewhere again
            except OSError as error:
                if not passes_over or error.errno not in LOST_ERRORS:
                    raise
            except Unsound:
                continue  # needs nothing: it will never be used
        return found

    def _reusable(self, step: int) -> dict[bytes, ChunkPlace]:
        """Chunks that a new checkpoint of this step may name: of packs that the newest of the others does not
        need, that are as long as they should be, and mostly in use.
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
            with contextlib.suppress(_Gone):  # removed as old since we looked: look again
                return self._newest_now(until, is_last=is_last)
        return self._newest_now(until, is_last=is_last)

    def _newest_now(self, until: Mark | None, *, is_last: bool) -> Loaded | None:
        """Only what is damaged is passed over: what cannot be read may be sound, and newer than the rest, and
        so may what another version wrote. is_last: there is no further attempt, so what storage has lost is
        damaged, if one before it can be read.
        """
        found = [each for each in self._candidates() if until is None or each.mark <= until]
        lost: OSError | None = None
        for each in found:
            try:
                return self._open(each)
            except FileNotFoundError as error:
                if each not in self._candidates():
                    raise _Gone from error
                raise  # a link that leads nowhere, such as into a filesystem that is not mounted
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
                    raise _Gone from error  # with its chunks, while they were read
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
        """What there seems to be to go on from, the newest first."""
        return [Candidate((step, 0), str(self.path(step))) for step in reversed(self.steps())]

    def _open(self, candidate: "Candidate") -> Loaded:
        """Raises `Unsound` or `OSError`."""
        return read(Path(candidate.place), candidate.step)

    def _found(self, name: re.Pattern[str]) -> dict[Path, int]:
        """The files of such a name, and their steps."""
        return {path: int(match[1]) for path, match in found_in(self._directory, name).items()}

    def _tell_leftovers(self) -> None:
        for path, step in self._found(_PART).items():
            if is_left_behind(path):
                self._told("failed", step, str(path), "its writer died before it was complete")

    def _remove_old(self, step: int) -> None:
        """Of the checkpoints up to this one, leave the newest that are sound; what is ahead is another's."""
        found = [of for of in self.steps() if of <= step]
        sound = set(found) - self._refused
        kept = sorted(self._usable(sound))[-self._keep :]
        oldest = kept[0] if len(kept) == self._keep else 0
        newest = sorted(sound)[-max(AHEAD_MAX, self._keep) :]  # should the usable ones never come
        self.forget_shares(step)
        doomed = [of for of in found if of not in newest or of < oldest]
        if doomed:
            self.remove(set(doomed) - held_steps(self._directory))

    def forget_shares(self, until: int) -> None:
        """Remove what members noted of shares up to this step: a manifest has it, or it was given up."""
        for path, of in self._found(_SHARE).items():
            if of <= until:
                with contextlib.suppress(OSError):
                    path.unlink()

    def remove(self, steps: Collection[int], *, unnamed_s: float = math.inf) -> int:
        """Remove checkpoints, and what nothing needs any more; how many bytes of chunks that frees. First
        goes what names others: a kill in between leaves chunks that the next removal finds. unnamed_s: see
        `collect`.
        """
        named: set[str] = set()
        for step in steps:
            with contextlib.suppress(OSError, Unsound):
                named |= set(dict(read_manifest(self.path(step), step).packs))
            with contextlib.suppress(OSError):  # somebody else was quicker, or it stays: no harm
                self.path(step).unlink()
        with contextlib.suppress(OSError):
            return self.collect(named, unnamed_s=unnamed_s)
        return 0

    def collect(self, named: Collection[str] = (), *, unnamed_s: float = math.inf) -> int:
        """Remove packs that no manifest names, unless somebody is writing; how many bytes that frees. named:
        those that were in use before. Without locks, nobody ever uses those of others, so they can go; what
        was never named goes if it is this old. Raises `OSError` where a manifest cannot be read, and with it
        what it needs.
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
        """Of these, the steps that can be gone on from, as far as can be seen from here."""
        return steps


def _foreign(place: str, error: NewerFormat | OlderFormat) -> StoreError:
    """It is newer than all that can be read, and was made by another version."""
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
    """The history of a part, and what is known to be whole: see `PartNote`."""
    note = state.get("shards")
    return (note.get("history", ""), note.get("whole", 0)) if isinstance(note, dict) else ("", 0)


class Candidate(NamedTuple):
    """What seems to be a checkpoint. place: its file, or a pattern of several."""

    mark: Mark
    place: str

    @property
    def step(self) -> int:
        return self.mark[0]


# ---- in the background -----------------------------------------------------------------------------------


class _Like(NamedTuple):
    """Tensors alike in these can take each other's place in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    pinned: bool


class Snapshot:
    """A copy of a state in CPU memory that nothing else writes to.

    spare: one that is no longer needed, whose memory is used again. To touch fresh memory for the first time
    takes several times as long as the copying does, and training waits for it. share: what of it is copied;
    the rest is laid out alike, and has whatever contents.
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
        """`path` names the value where it cannot be kept."""
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value, path)
        if kind in _PLAIN:
            return value
        if isinstance(value, float):  # numpy's is one, and the same bits
            return float(value)
        if kind in (dict, OrderedDict, Counter):
            assert isinstance(value, dict)
            twin = copy.copy(value)  # with what state_dict() notes on it beside its items
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
        # What is tied is copied once, and is tied again when it is loaded.
        identity = identity_of(tensor)
        if (known := self._copies.get(identity)) is not None:
            return known
        begin, end = self._stretches.get(identity, (0, tensor.nbytes))
        if begin == end != tensor.nbytes:
            copied = torch.empty_like(tensor, device="cpu")  # memory that is never touched costs nothing
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
    """Writes checkpoints from a thread of its own; training waits only while its state is copied.

    One is written at a time and at most one waits, which a newer one replaces; so up to two copies of the
    state are in memory, and one between checkpoints. One that fails is told of, and training goes on.
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
        """run: its name, by which its saves move away from those of other runs; empty: they do not."""
        if interval_s < 0:
            raise InputError(f"interval_s={interval_s:g} is not a time to wait.", hint="Give 0 or more.")
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
        self._safe_ns = self._opened_ns  # when the state was copied that is durable
        self.saved = 0  # the last step that is durable
        self.is_troubled = False  # the last one failed
        self._thread = threading.Thread(target=self._run, name="holdfast checkpoints", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def due(self, step: int, *, nodes: int = 1, failures: int = 0) -> bool:
        """Whether to offer this step: a multiple of `every_steps`, where given, or else by what is at stake.

        Then the last checkpoint is done and began the best interval ago. nodes: how many the run has.
        failures: how many this member has seen.
        """
        if self._every_steps is not None:
            return step % self._every_steps == 0
        with self._changed:
            if self._writing or self._waiting:
                return False
            return self._clock.now_ns() - self._began_ns >= self._best_interval_ns(nodes, failures)

    @property
    def is_busy(self) -> bool:
        """Whether something that was offered is not durable yet."""
        with self._changed:
            return self._writing or self._waiting is not None

    def _best_interval_ns(self, nodes: int, failures: int) -> int:
        """Daly's for what the last checkpoint cost and how often such a run fails, within bounds; and within
        those, another for each run, so that many that began together do not save together.
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
        """Have this step written, or a share of it; how long the copying took, in nanoseconds. InputError for
        a state that cannot be kept, at which nothing else would help.
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
        """Finish what was offered; False where that took too long and is left to its fate."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._checkpoints.hurry(timeout_s)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while offer := self._next():
            # What the first member tells is told of the whole.
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
                # Where a GPU trains, this thread takes no time from it; else it takes training's own cores,
                # but not while it waits for its budget of storage.
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
        """What was saved, or why nothing was."""
        try:
            return self._checkpoints.save(offer.step, offer.snapshot.state, offer.share), ""
        except Exception as error:  # whatever it is, training goes on
            return None, _sentence(error)
