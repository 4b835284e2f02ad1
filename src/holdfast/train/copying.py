"""Copies checkpoints from one place to another and removes old ones there. Needs no torch.

Packs are written first, under names that were never used, and the manifest last. A kill at any moment
therefore leaves whole checkpoints, plus packs that a later collection removes. Object storage has neither
rename nor locks. So a writer first leaves a note that lists the packs it may refer to besides its own. A
collector reads the listing, the manifests, the notes and the manifests again, and removes the packs that none
of them needs. docs/decisions/0026 says why that is enough.
"""

import contextlib
import re
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.train.chunks import (
    FOLDER,
    PACK_BYTES,
    ChunkPlace,
    DamagedCheckpoints,
    NewerFormat,
    Unsound,
    name_of,
)
from holdfast.train.holds import held_steps
from holdfast.train.kept import VERIFY_HINT
from holdfast.train.manifest_file import Manifest, encoded, manifest_of, relocated
from holdfast.train.place import PART, WRITING, DirectoryStorage, Storage, StorageTrouble, StoredObject

NOTE_S_MAX, SESSION_S_MAX = 86_400.0, 43_200.0
"""A note this old was left by a writer that died; a live writer gives up long before."""
REQUESTS_MAX = 3
"""Packs that are read ahead, and as many that are being written. Each takes 64 MiB of memory."""
USED_SHARE_MIN = 0.5
"""If less of a pack is in use than this share, its chunks are written again so that it can be removed."""
_MANIFEST = re.compile(rf"{PART}step-(?P<step>[0-9]{{12,}})\.checkpoint")
_PACK = re.compile(rf"{PART}{FOLDER}/(?P<name>[0-9a-f]{{16}}-[0-9]{{6}}\.pack)")
_RANKS = re.compile(r"shard-([0-9]+)-of-([0-9]+)/")

Listing = Mapping[str, StoredObject]


class CopiedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was copied. size_bytes: of its tensors. written_bytes: what the target lacked."""

    step: int
    size_bytes: int
    written_bytes: int


class PlacedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in a place. keys: of the manifests of its parts. there: for each key, whether it exists."""

    step: int
    keys: tuple[str, ...]
    there: tuple[bool, ...]

    @property
    def is_complete(self) -> bool:
        return all(self.there)

    @property
    def pattern(self) -> str:
        """Its keys as one pattern, for messages."""
        return re.sub(r"^shard-0-", "shard-*-", self.keys[0])

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(key for key, is_there in zip(self.keys, self.there, strict=True) if is_there)


class _Note(msgspec.Struct, frozen=True):
    """The packs that a writer may refer to, besides those whose names begin with its token."""

    packs: tuple[str, ...] = ()


def noted_packs(data: bytes) -> set[str]:
    """The packs that a note lists. Raises `StorageTrouble`: the file may contain anything."""
    try:
        return set(msgspec.json.decode(data, type=_Note).packs)
    except UNDECODABLE as error:
        raise StorageTrouble(f"the note of a writer cannot be read: {error}") from None


# ---- what a place contains -------------------------------------------------------------------------------


def steps_in(listing: Listing) -> list[PlacedStep]:
    """The steps, oldest first; of several layouts of a step, the one with more ranks last."""
    steps: dict[tuple[int, int], set[str]] = {}
    for key in listing:
        if told := _MANIFEST.fullmatch(key):
            steps.setdefault((int(told["step"]), _ranks(told["part"])), set()).add(key)
    found = []
    for (step, ranks), keys in sorted(steps.items()):
        name = f"step-{step:012d}.checkpoint"
        every = [name] if ranks == 1 else [f"shard-{rail}-of-{ranks}/{name}" for rail in range(ranks)]
        if keys & set(every):  # skips a rank number that the layout does not have
            found.append(PlacedStep(step=step, keys=tuple(every), there=tuple(key in keys for key in every)))
    return found


def _ranks(part: str) -> int:
    told = _RANKS.fullmatch(part)
    return int(told[2]) if told else 1


def _step_of(key: str) -> int:
    told = _MANIFEST.fullmatch(key)
    assert told is not None
    return int(told["step"])


def _part_of(key: str) -> str:
    return f"{key.partition('/')[0]}/" if key.startswith("shard-") else ""


def manifest_at(place: Storage, key: str) -> Manifest:
    """Raises `Unsound` or `OSError`."""
    return manifest_of(place.read(key), _step_of(key))


def size_at(place: Storage, kept: PlacedStep) -> int:
    """The size of its tensors in bytes, as far as its manifests can be read. Raises `OSError`."""
    size_bytes = 0
    for key in kept.present:
        with contextlib.suppress(Unsound, FileNotFoundError):  # reported by fault_at
            size_bytes += manifest_at(place, key).size_bytes
    return size_bytes


def fault_at(place: Storage, kept: PlacedStep, listing: Listing, *, is_thorough: bool = False) -> str:
    """Why a run cannot resume from it. Empty if it can, judging by its manifests and the sizes of its packs.
    is_thorough: read and compare every chunk. Raises `OSError` if the place cannot be read.
    """
    if not kept.is_complete:
        missing = sum(not one for one in kept.there)
        return f"{missing} of its {len(kept.keys)} parts are missing"
    histories = set()
    for key in kept.keys:
        try:
            manifest = manifest_at(place, key)
            _check_there(_part_of(key), manifest, listing)
            if is_thorough:
                for _ in _chunks_at(place, _part_of(key), dict(manifest.chunks())):
                    pass
        except FileNotFoundError:
            return "it was removed meanwhile"
        except Unsound as error:
            return str(error) if len(kept.keys) == 1 else f"in {_part_of(key).rstrip('/')} {error}"
        histories.add(manifest.history)
    if len(histories) > 1:
        return f"its parts come from {len(histories)} attempts at this step"
    return ""


def _check_there(part: str, manifest: Manifest, listing: Listing) -> None:
    for pack, size in manifest.packs:
        told = listing.get(f"{part}{FOLDER}/{pack}")
        if told is None or told.size_bytes < size:
            raise Unsound(f"its chunks in {pack} are " + ("missing" if told is None else "cut short"))


def _chunks_at(
    place: Storage, part: str, wanted: Mapping[bytes, ChunkPlace]
) -> Iterator[tuple[bytes, bytes]]:
    """Name and bytes of each chunk, verified, pack by pack; the next packs are read meanwhile."""
    by_pack: dict[str, list[tuple[bytes, ChunkPlace]]] = {}
    for name, at in wanted.items():
        by_pack.setdefault(at.pack, []).append((name, at))
    packs = iter(by_pack.items())
    with ThreadPoolExecutor(REQUESTS_MAX, "holdfast packs") as readers:
        ahead: list[tuple[str, Future[bytes]]] = []

        def read_ahead() -> None:
            if (following := next(packs, None)) is not None:
                pack, _ = following
                ahead.append((pack, readers.submit(place.read, f"{part}{FOLDER}/{pack}")))

        for _ in range(REQUESTS_MAX):
            read_ahead()
        try:
            while ahead:
                pack, reading = ahead.pop(0)
                try:
                    data = reading.result()
                except FileNotFoundError:
                    raise Unsound(f"its chunks in {pack} are missing") from None
                read_ahead()
                for name, at in by_pack[pack]:
                    chunk = data[at.offset : at.offset + at.size_bytes]
                    if len(chunk) < at.size_bytes or name_of(chunk) != name:
                        raise Unsound(f"its pack {pack} is damaged at byte {at.offset}")
                    yield name, chunk
        finally:
            for _, reading in ahead:
                reading.cancel()


# ---- copying ---------------------------------------------------------------------------------------------


def copy_step(source: Storage, kept: PlacedStep, target: Storage, *, reuses: bool = True) -> CopiedStep:
    """Copy the parts of a step that exist to another place. Every chunk is verified on the way. reuses: do
    not write chunks again that the target has. Raises `Unsound` or `OSError`.
    """
    copied = [_copy_part(source, key, target, reuses=reuses) for key in kept.present]
    return CopiedStep(
        step=kept.step,
        size_bytes=sum(one.size_bytes for one in copied),
        written_bytes=sum(one.written_bytes for one in copied),
    )


def copy_newest(
    source: Storage, step: int | None, target: Storage, say: Callable[[str], None]
) -> tuple[PlacedStep, CopiedStep]:
    """Copy the newest sound checkpoint, or that of a step, to another place. Damaged ones are skipped, and
    `say` reports it. Raises `InputError` or `OSError`; `DamagedCheckpoints` if checkpoints exist but none is
    sound.
    """
    listing = source.listed()
    wanted = [kept for kept in reversed(steps_in(listing)) if step in (None, kept.step)]
    damage = ""
    for kept in wanted:
        try:
            if fault := fault_at(source, kept, listing):
                raise Unsound(fault)
            done = copy_step(source, kept, target)
        except Unsound as error:
            damage = damage or f"The checkpoint of step {kept.step} in {source.name} is damaged: {error}."
            continue
        if kept.step < wanted[0].step:
            say(f"{damage} Step {kept.step} is taken instead.")
        return kept, done
    hint = VERIFY_HINT.format(shlex.quote(source.name))
    if wanted:
        raise DamagedCheckpoints(damage, hint=hint)
    which = "" if step is None else f" of step {step}"
    raise InputError(f"{source.name} has no checkpoint{which} that a run can resume from.", hint=hint)


def _copy_part(source: Storage, key: str, target: Storage, *, reuses: bool) -> CopiedStep:
    manifest = manifest_at(source, key)
    part = _part_of(key)
    with target.writing(part) as lock, _Session(target, part) as session:
        listing = target.listed()
        written_bytes = 0
        if not (reuses and _is_there_already(target, key, manifest, listing)):
            known = session.reserve(listing, manifest.step) if reuses and lock == "held" else {}
            places = session.put(_chunks_at(source, part, _lacking(manifest, known)), known)
            session.publish(key, relocated(manifest, [places[name] for name, _ in manifest.chunks()]))
            written_bytes = session.written_bytes + sum(len(tensor.inline) for tensor in manifest.tensors)
    return CopiedStep(step=manifest.step, size_bytes=manifest.size_bytes, written_bytes=written_bytes)


def _lacking(manifest: Manifest, known: Mapping[bytes, ChunkPlace]) -> dict[bytes, ChunkPlace]:
    return {name: place for name, place in manifest.chunks() if name not in known}


def _is_there_already(place: Storage, key: str, manifest: Manifest, listing: Listing) -> bool:
    if key not in listing:
        return False
    try:
        found = manifest_at(place, key)
        _check_there(_part_of(key), found, listing)
    except (Unsound, FileNotFoundError):
        return False
    return (found.digest, found.history) == (manifest.digest, manifest.history)


class _Session:
    """One write of a part, from its note to its manifest."""

    def __init__(self, place: Storage, part: str) -> None:
        self._place = place
        self._part = part
        self._token = secrets.token_hex(8)
        self._note = f"{WRITING}/{self._token}"
        self._begun_s = time.monotonic()
        self._packs = 0
        self._may_be_named = False
        self.written_bytes = 0

    def __enter__(self) -> "_Session":
        self._leave_note(())
        return self

    def __exit__(self, *_: object) -> None:
        own = [] if self._may_be_named else [self._key(number) for number in range(self._packs)]
        with contextlib.suppress(OSError):  # a later collection removes it as a leftover
            self._place.remove([self._note, *own])

    def _leave_note(self, packs: Collection[str]) -> None:
        self._place.write(self._note, msgspec.json.encode(_Note(tuple(sorted(packs)))))

    def reserve(self, listing: Listing, step: int) -> dict[bytes, ChunkPlace]:
        """Stored chunks that this session may refer to: those of manifests that still exist after its note
        was written. Packs of the newest other checkpoint are excluded, because the two newest must share no
        pack.
        """
        manifests = {
            key: found
            for key in listing
            if _part_of(key) == self._part and (found := _sound_at(self._place, key)) is not None
        }
        named = {pack for manifest in manifests.values() for pack, _ in manifest.packs}
        self._leave_note([f"{self._part}{FOLDER}/{pack}" for pack in named])
        again = self._place.listed()
        kept = {
            _step_of(key): manifest for key, manifest in manifests.items() if again.get(key) == listing[key]
        }
        newest = max((of for of in kept if of != step), default=None)
        apart = set(dict(kept[newest].packs)) if newest is not None else set[str]()
        known: dict[bytes, ChunkPlace] = {}
        for manifest in kept.values():
            known |= self._usable(manifest, again, apart)
        return known

    def _usable(self, manifest: Manifest, listing: Listing, apart: set[str]) -> dict[bytes, ChunkPlace]:
        chunks = dict(manifest.chunks())
        used = Counter[str]()
        for place in chunks.values():
            used[place.pack] += place.size_bytes
        usable = set()
        for pack, size in manifest.packs:
            told = listing.get(f"{self._part}{FOLDER}/{pack}")
            if told is None or pack in apart or told.size_bytes < size:
                continue
            if used[pack] >= USED_SHARE_MIN * told.size_bytes:
                usable.add(pack)
        return {name: place for name, place in chunks.items() if place.pack in usable}

    def others(self) -> tuple[set[str], set[str]]:
        """The packs that other writers may refer to, and the writers' tokens. Notes of dead writers are
        removed. Raises `OSError`.
        """
        notes = self._place.listed(WRITING)
        now_s = notes[self._note].modified_s if self._note in notes else 0.0
        packs: set[str] = set()
        tokens = set()
        for key, told in notes.items():
            if key == self._note:
                continue
            if now_s - told.modified_s > NOTE_S_MAX:
                self._place.remove([key])
                continue
            tokens.add(key.rpartition("/")[2])
            with contextlib.suppress(FileNotFoundError):  # that writer is done: its manifest is visible now
                packs |= noted_packs(self._place.read(key))
        return packs, tokens

    def put(
        self, chunks: Iterator[tuple[bytes, bytes]], known: Mapping[bytes, ChunkPlace]
    ) -> dict[bytes, ChunkPlace]:
        """Write the chunks. Returns the places of these and of the known ones, once all are durable."""
        places = dict(known)
        filling = bytearray()
        begun: list[Future[None]] = []
        with ThreadPoolExecutor(REQUESTS_MAX, "holdfast packs") as writers:

            def flush() -> None:
                nonlocal filling
                begun.append(writers.submit(self._place.write, self._key(self._packs), filling))
                self._packs, filling = self._packs + 1, bytearray()
                if len(begun) >= REQUESTS_MAX:
                    begun.pop(0).result()

            for name, chunk in chunks:
                pack = self._key(self._packs).rpartition("/")[2]
                places[name] = ChunkPlace(pack, len(filling), len(chunk))
                filling += chunk
                self.written_bytes += len(chunk)
                if len(filling) >= PACK_BYTES:
                    flush()
            if filling:
                flush()
            for writing in begun:
                writing.result()
        return places

    def _key(self, number: int) -> str:
        """The key of one of this session's own packs."""
        return f"{self._part}{FOLDER}/{self._token}-{number:06d}.pack"

    def publish(self, key: str, manifest: Manifest) -> None:
        """Write the manifest, if all its packs exist before and after. Raises `OSError`."""
        self._check(manifest)
        if time.monotonic() - self._begun_s > SESSION_S_MAX:
            raise StorageTrouble("the copy took so long that other writers may count this one as dead")
        self._may_be_named = True  # even if the write fails: the manifest may exist all the same
        self._place.write(key, encoded(manifest))
        try:
            self._check(manifest)
        except StorageTrouble:
            self._place.remove([key])
            raise

    def _check(self, manifest: Manifest) -> None:
        try:
            _check_there(self._part, manifest, self._place.listed())
        except Unsound as error:
            raise StorageTrouble(f"while it was copied, {error}") from None


def _sound_at(place: Storage, key: str) -> Manifest | None:
    """The manifest of a key. None: the key is not a manifest, is gone, or is unsound and will
    never be used.
    """
    if _MANIFEST.fullmatch(key) is None:
        return None
    try:
        return manifest_at(place, key)
    except NewerFormat as error:
        raise StorageTrouble(f"{key}: {error}", is_mistake=True) from None
    except (Unsound, FileNotFoundError):
        return None


# ---- old checkpoints -------------------------------------------------------------------------------------


def retain(place: Storage, keep: int, *, is_thorough: bool = False) -> tuple[list[int], int]:
    """Remove all checkpoints older than the newest `keep` that a run can resume from, and packs that none
    needs. Returns the removed steps and how many bytes of packs that frees. Manifests are removed before
    packs. Raises `OSError`.
    """
    listing = place.listed()
    every = steps_in(listing)
    usable: list[int] = []
    for kept in reversed(every):
        if len(usable) >= keep or kept.step in usable:
            continue
        if not fault_at(place, kept, listing, is_thorough=is_thorough):
            usable.append(kept.step)
    if not usable and every:
        raise DamagedCheckpoints(
            f"A run can resume from no checkpoint in {place.name}: nothing was removed.",
            hint=f"`holdfast checkpoint verify {shlex.quote(place.name)}` says what is wrong with them.",
        )
    held = held_steps(Path(place.name)) if isinstance(place, DirectoryStorage) else set()
    doomed = [
        kept for kept in every if len(usable) >= keep and kept.step < usable[-1] and kept.step not in held
    ]
    named: set[str] = set()
    for key in (key for kept in doomed for key in kept.present):
        if (manifest := _sound_at(place, key)) is not None:
            named |= {f"{_part_of(key)}{FOLDER}/{pack}" for pack, _ in manifest.packs}
    place.remove([key for kept in doomed for key in kept.present])
    parts = {_part_of(key) for key in listing if not key.startswith(WRITING)}
    freed = sum(collect(place, part, named) for part in sorted(parts))
    return sorted({kept.step for kept in doomed}), freed


def collect(place: Storage, part: str = "", named: Collection[str] = ()) -> int:
    """Remove packs of a part that no manifest and no writer needs. Returns how many bytes that frees. named:
    packs that were in use until now; without locks only these can be removed safely. Raises `OSError`.
    """
    with place.collecting(part) as lock, _Session(place, part) as session:
        if lock == "busy":
            return 0
        before = place.listed()
        there = {key for key in before if (told := _PACK.fullmatch(key)) and told["part"] == part}
        if lock == "none":
            there &= set(named)
        needed = _named(place, part, before, before)
        needed_by_notes, tokens = session.others()
        after = place.listed()
        needed |= needed_by_notes | _named(place, part, after, before)
        doomed = {key for key in there - needed if key.rpartition("/")[2].partition("-")[0] not in tokens}
        place.remove(doomed)
        return sum(before[key].size_bytes for key in doomed)


def _named(place: Storage, part: str, listing: Listing, seen: Listing) -> set[str]:
    """Packs that the part's manifests name. If `listing` is not `seen`, only those of its new manifests."""
    found: set[str] = set()
    for key, told in listing.items():
        if _part_of(key) != part or (listing is not seen and seen.get(key) == told):
            continue
        if (manifest := _sound_at(place, key)) is not None:
            found |= {f"{part}{FOLDER}/{pack}" for pack, _ in manifest.packs}
    return found
