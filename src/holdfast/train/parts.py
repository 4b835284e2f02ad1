"""The parts of a sharded state's checkpoints: which of them make up a step, and how to cut them anew.

Each rank of a replica keeps its part in a folder of its own, `shard-1-of-4`; a rank that has everything keeps
it in the directory itself. For every tensor that is cut, a part says where its piece lies in the whole. So a
run can resume with another number of ranks: each rank reads the parts one after the other, and takes its own
pieces.
"""

import copy
import hashlib
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.run.mesh import RANKS_MAX, MeshShape
from holdfast.train.checkpoint import (
    Candidate,
    CheckpointListener,
    DirectoryCheckpoints,
    Loaded,
    Mark,
    Saved,
    State,
    read,
)
from holdfast.train.chunks import DamagedCheckpoints, Unsound
from holdfast.train.holds import held_steps
from holdfast.train.kept import KeptStep, folder_of, kept_steps, usable_steps
from holdfast.train.manifest_file import ALL, Share, read_manifest
from holdfast.train.shards import Extent, TreePath, Wanted, extent_of, sharded_in
from holdfast.train.storage_budget import StorageBudget

OWN = RANKS_MAX + 1
"""The preference of parts that fit this run's ranks as they are; that of others is their number of ranks."""
UNNAMED_S_MAX = 86_400.0
"""Without locks, a pack that no manifest names after this time was left by a writer that died."""


# ---- how a part describes itself -------------------------------------------------------------------------


class CutTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of which a part has a piece. path: its place in the state. shape: of the whole."""

    path: TreePath
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


class PartNote(msgspec.Struct, frozen=True):
    """How a part belongs to the whole. rail: of its rank. cut: the cut tensors of each protected thing; all
    other tensors are whole. history: the attempt that made this step; a run that went back makes steps again,
    and parts of two attempts do not form a checkpoint. whole: the last step of which its writer knew that all
    parts were durable; 0 if none.
    """

    mesh: MeshShape
    rail: int
    cut: tuple[tuple[CutTensor, ...], ...]
    history: str = ""
    whole: int = 0


def described(
    mesh: MeshShape, rail: int, states: Sequence[Any], history: str, whole: int
) -> dict[str, object]:
    """The note that a part carries. states: those of the protected things, with their sharded tensors."""
    cut = tuple(
        tuple(
            CutTensor(path, tuple(tensor.shape), extent_of(tensor).offsets)
            for path, tensor in sharded_in(state)
        )
        for state in states
    )
    note: dict[str, object] = msgspec.to_builtins(PartNote(mesh, rail, cut, history, whole))
    return note


def _note(found: Loaded) -> PartNote:
    """The note of a part. In a file that has everything, nothing is cut."""
    told = found.state.get("shards")
    states = found.state.get("state")
    if not isinstance(states, list):
        raise Unsound("it holds no usable state")
    if told is None:
        return PartNote(MeshShape(), 0, ((),) * len(states))
    try:
        note = msgspec.convert(told, PartNote)
    except msgspec.ValidationError as error:
        raise Unsound(f"what it says of its parts cannot be used: {error}") from None
    if any(size < 1 for _, size in note.mesh.sizes):
        raise Unsound(f"it says that its mesh is {note.mesh}")
    if len(note.cut) != len(states):
        raise Unsound(f"it says how {len(note.cut)} states are cut, but holds {len(states)}")
    return note


# ---- listing parts ---------------------------------------------------------------------------------------


def prune(directory: Path, keep: int) -> tuple[list[int], int]:
    """Remove all checkpoints older than the newest `keep` that a run can resume from, and chunks that none
    needs. Returns the removed steps and how many bytes of chunks that frees. Raises `OSError`.
    """
    every = kept_steps(directory)
    usable = usable_steps(every, keep)
    if not usable and every:
        raise DamagedCheckpoints(
            f"A run can resume from no checkpoint in {directory}: nothing was removed.",
            hint=f"`holdfast checkpoint verify {shlex.quote(str(directory))}` says what is wrong with them.",
        )
    held = held_steps(directory)
    doomed = [
        kept for kept in every if len(usable) >= keep and kept.step < usable[-keep] and kept.step not in held
    ]
    freed = 0
    for folder in {path.parent for kept in every for path in kept.paths}:
        steps = {kept.step for kept in doomed if folder in {path.parent for path in kept.paths}}
        store = _kept_in(folder)
        store.forget_shares(usable[-1])
        freed += store.remove(steps, unnamed_s=UNNAMED_S_MAX)
    return sorted({kept.step for kept in doomed}), freed


def _kept_in(folder: Path) -> DirectoryCheckpoints:
    # A reader changes nothing, and has no record to write to.
    return DirectoryCheckpoints(folder, told=lambda *_, **__: None)


class RunCheckpoints(DirectoryCheckpoints):
    """A run's checkpoints, as one of its ranks writes and reads them: its own part, and its pieces of parts
    that another number of ranks kept.
    """

    def __init__(
        self,
        directory: Path,
        *,
        mesh: MeshShape,
        rail: int,
        wanted: Wanted,
        told: CheckpointListener,
        budget: StorageBudget | None = None,
    ) -> None:
        super().__init__(folder_of(directory, rail, mesh.ranks), told=told, budget=budget)
        self._ranks = mesh.ranks
        self._root = directory
        self._kept: dict[Mark, KeptStep] = {}
        self._mesh = mesh
        self._rail = rail
        self._wanted = wanted

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        note = state.get("shards")
        if isinstance(note, dict):
            folders = [folder_of(self._root, rail, self._mesh.ranks) for rail in range(self._mesh.ranks)]
            seen = set.intersection(*(set(_kept_in(folder).steps()) for folder in folders))
            before = max((each for each in seen if each < step), default=0)
            state = {**state, "shards": {**note, "whole": max(note["whole"], before)}}
        return super().save(step, state, share)

    def _candidates(self) -> list[Candidate]:
        """With this number of ranks: all own parts, because other ranks may see the rest. Else only complete
        steps.
        """
        ranks = self._mesh.ranks
        self._kept = {
            (kept.step, OWN if kept.ranks == ranks else kept.ranks): kept
            for kept in kept_steps(self._root)
            if (kept.there[self._rail] if kept.ranks == ranks else kept.is_complete)
        }
        return [
            Candidate(mark, str(self.path(mark[0])) if mark[1] == OWN else self._kept[mark].place)
            for mark in sorted(self._kept, reverse=True)
        ]

    def _open(self, candidate: Candidate) -> Loaded:
        kept = self._kept[candidate.mark]
        if kept.ranks == self._mesh.ranks:
            found = read(kept.paths[self._rail], kept.step)
            if kept.ranks == 1:
                return msgspec.structs.replace(found, preference=OWN)
            note = _note(found)
            if note.mesh == self._mesh:
                return msgspec.structs.replace(found, preference=OWN, history=note.history, whole=note.whole)
            if not kept.is_complete:
                raise Unsound(f"it has another mesh, and some of its {kept.ranks} parts are missing")
        (joined,) = joined_stages(kept, self._wanted, self._own_stage)
        return msgspec.structs.replace(joined, preference=candidate.mark[1])

    def _own_stage(self, mesh: MeshShape) -> tuple[int]:
        """The stage of that mesh whose parts this rank needs."""
        stages, own = mesh.size("pp"), self._mesh.size("pp")
        if stages != own:
            raise InputError(
                f"The checkpoints in {self._root} have {stages} pipeline stages, but this run has {own}.",
                hint="Continue with as many, or begin anew in another directory (--checkpoints).",
            )
        return (self._mesh.place(self._rail)["pp"],)

    def _usable(self, steps: set[int]) -> set[int]:
        """The steps that all ranks have whose parts are kept here."""
        folders = [folder_of(self._root, rail, self._mesh.ranks) for rail in range(self._mesh.ranks)]
        others = [of for folder in folders if (of := set(_kept_in(folder).steps()))]
        # Parts of two attempts at a step do not form a checkpoint.
        return {
            step
            for step in steps.intersection(*others)
            if len({_history(path) for folder in folders if (path := _kept_in(folder).path(step)).exists()})
            < 2
        }


def _history(manifest: Path) -> str:
    try:
        return _history_of(manifest, manifest.stat().st_mtime_ns)
    except (OSError, Unsound):
        return ""


@lru_cache(1 << 12)
def _history_of(manifest: Path, _written_ns: int) -> str:
    return read_manifest(manifest).history


# ---- parts put together ----------------------------------------------------------------------------------


def joined_stages(
    kept: KeptStep,
    wanted: Wanted,
    stages_of: Callable[[MeshShape], Iterable[int]],
    map_location: str | torch.device = "cpu",
) -> list[Loaded]:
    """The parts of a step as if one rank had written them, for each of these pipeline stages. Only one part
    at a time is in memory. Raises `Unsound` or `OSError`.
    """
    parts = {0: read(kept.paths[0], kept.step, map_location)}
    mesh = _note(parts[0]).mesh
    if mesh.ranks != kept.ranks:
        raise Unsound(f"it says that it is of {mesh.ranks} parts instead of {kept.ranks}")
    found = []
    for stage in stages_of(mesh):
        joining = _Joining(mesh, wanted)
        for rail, path in enumerate(kept.paths):
            part = parts.pop(rail, None)
            if mesh.place(rail)["pp"] == stage:
                joining.add(rail, part or read(path, kept.step, map_location))
        found.append(joining.whole(kept.step, kept.place))
    return found


class _Target:
    """A wanted piece, filled as parts arrive."""

    def __init__(self, extent: Extent, like: torch.Tensor) -> None:
        self.extent = extent
        self.tensor = torch.empty(extent.sizes, dtype=like.dtype, device=like.device)
        self._seen: set[Extent] = set()
        self._missing = self.tensor.numel()

    def take(self, piece: torch.Tensor, extent: Extent) -> None:
        """Copy what of the piece belongs here. Several ranks may have the same piece."""
        if extent in self._seen:
            return
        self._seen.add(extent)
        begins = [max(one, other) for one, other in zip(extent.offsets, self.extent.offsets, strict=True)]
        ends = [min(one, other) for one, other in zip(_ends(extent), _ends(self.extent), strict=True)]
        if all(begin < end for begin, end in zip(begins, ends, strict=True)):
            into = self.tensor[_slices(begins, ends, self.extent.offsets)]
            into.copy_(piece[_slices(begins, ends, extent.offsets)])
            self._missing -= into.numel()

    @property
    def is_full(self) -> bool:
        return self._missing == 0


class _Joining:
    """The state of one stage, joined from the parts of its ranks."""

    def __init__(self, mesh: MeshShape, wanted: Wanted) -> None:
        self._mesh = mesh
        self._wanted = wanted
        self._first: dict[str, Any] | None = None
        self._history = ""
        self._states: list[Any] = []
        self._targets: dict[tuple[int, TreePath], _Target] = {}
        self._tied: dict[tuple[object, ...], _Target] = {}
        self._digest = hashlib.sha256()

    def add(self, rail: int, part: Loaded) -> None:
        note = _note(part)
        if note.mesh != self._mesh or note.rail != rail:
            raise Unsound(f"{part.place} does not belong to the same parts as the others")
        pieces: dict[tuple[int, TreePath], tuple[torch.Tensor, Extent]] = {}
        states: Any = part.state["state"]
        for number, cut in enumerate(note.cut):
            for each in cut:
                tensor = _at(states[number], each.path)
                pieces[number, each.path] = tensor, _checked(tensor, each)
        if self._first is None:
            self._first, self._history = part.state, note.history
            shapes = {(number, each.path): each.shape for number, cut in enumerate(note.cut) for each in cut}
            self._states = [self._begun(number, (), state, shapes) for number, state in enumerate(states)]
        elif note.history != self._history:
            raise Unsound(f"{part.place} is of another attempt at this step than the parts beside it")
        elif pieces.keys() != self._targets.keys():
            raise Unsound(f"{part.place} holds other tensors than the parts beside it")
        for key, (piece, extent) in pieces.items():
            self._targets[key].take(piece, extent)
        self._digest.update(bytes.fromhex(part.digest))

    def whole(self, step: int, place: str) -> Loaded:
        assert self._first is not None
        for (_, path), target in self._targets.items():
            if not target.is_full:
                raise Unsound(_gaps(path))
        state = {**self._first, "state": self._states}
        state.pop("shards", None)
        return Loaded(step=step, state=state, place=place, digest=self._digest.hexdigest())

    def _begun(
        self,
        number: int,
        path: TreePath,
        tree: Any,
        shapes: dict[tuple[int, TreePath], tuple[int, ...]],
    ) -> Any:
        """The state with targets for the tensors that are cut, and the wanted pieces of all others."""
        if isinstance(tree, torch.Tensor):
            shape = shapes.get((number, path))
            if shape is None:
                extent = self._wanted(number, path, tuple(tree.shape))
                return tree if extent is None else tree[_slices(*_span(extent))].clone()
            # The first rank's piece is at least as large as any other.
            if math.prod(shape) > tree.numel() * self._mesh.ranks:
                raise Unsound(_gaps(path))
            extent = self._wanted(number, path, shape) or Extent((0,) * len(shape), shape)
            identity = (tree.data_ptr(), tree.shape, tree.dtype, shape, extent)
            target = self._tied.get(identity) if tree.numel() else None
            if target is None:
                target = self._tied[identity] = _Target(extent, tree)
            self._targets[number, path] = target
            return target.tensor
        if isinstance(tree, dict):
            twin = copy.copy(tree)
            for key, value in tree.items():
                twin[key] = self._begun(number, (*path, key), value, shapes)
            return twin
        if type(tree) in (list, tuple):
            return type(tree)(
                self._begun(number, (*path, index), each, shapes) for index, each in enumerate(tree)
            )
        return tree


def _at(tree: Any, path: TreePath) -> torch.Tensor:
    try:
        for key in path:
            tree = tree[key]
    except (KeyError, IndexError, TypeError):
        tree = None
    if not isinstance(tree, torch.Tensor):
        raise Unsound(f"it has no tensor {'.'.join(map(str, path))}, which it says is cut")
    return tree


def _checked(tensor: torch.Tensor, told: CutTensor) -> Extent:
    extent = Extent(told.offsets, tuple(tensor.shape))
    fits = len(told.offsets) == len(told.shape) == tensor.dim() and all(
        begin >= 0 and end <= size
        for begin, end, size in zip(told.offsets, _ends(extent), told.shape, strict=True)
    )
    if not fits:
        raise Unsound(f"its piece of {'.'.join(map(str, told.path))} lies outside the whole")
    return extent


def _gaps(path: TreePath) -> str:
    return f"its parts leave gaps in {'.'.join(map(str, path))}"


def _ends(extent: Extent) -> Iterator[int]:
    return (begin + size for begin, size in zip(*extent, strict=True))


def _span(extent: Extent) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    return extent.offsets, tuple(_ends(extent)), (0,) * len(extent.offsets)


def _slices(begins: Sequence[int], ends: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        slice(begin - zero, end - zero) for begin, end, zero in zip(begins, ends, origin, strict=True)
    )
