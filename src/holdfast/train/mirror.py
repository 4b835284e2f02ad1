"""If the model has no second replica: what one rank keeps of another, enough to rebuild its part.

Each rank's part has a mirror in the memory of another rank, on another node if there is one: its state at
some step, and its share of the summed gradients of every step since. The gradients arrive before any rank
commits their step. So a member that takes a lost rank's place receives the state, repeats the optimizer steps
and is where the others are; no rank goes back. Mirrors are in main memory and are sent from there over TCP,
because NCCL's kernels would take turns with the model's.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import msgspec
import torch

from holdfast.train import skeleton
from holdfast.train.group import Group, GroupBroken, Transfer, Work
from holdfast.train.protected import bytes_of, memory_of
from holdfast.train.transfer import SKELETON_BYTES_MAX, Numbers

EVERY = 8
"""Steps from one state to the next, unless the script says otherwise; at most this many steps are repeated.
Gradients, which are sent at every step, are a third of its size.
"""
TAG = 1 << 23
FLATS_MAX = 1 << 16
ROUND_BYTES = 16 << 20
"""How much one exchange sends, and one copy takes from a device."""
ROUNDS_UNDER_WAY = 2
"""While one round is sent, the next is copied from the device."""
CPU = torch.device("cpu")


class Keeps(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a rank has of another: the rail, the step of the state, and the last step that is complete."""

    rail: int
    version: int
    last: int

    def covers(self, rail: int, version: int) -> bool:
        return self.rail == rail and self.version <= version <= self.last


@dataclass
class _KeptStep:
    """The flats of one step, as bytes."""

    flats: list[torch.Tensor]
    numbers: Numbers | None = None


class _Conveyance:
    """Moves large data between ranks, in rounds of bounded size; the other ends use the same rounds. Data on
    a device go through staging buffers in main memory.
    """

    def __init__(self) -> None:
        self._stages: list[torch.Tensor] = []

    def move(self, group: Group, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Return when everything is sent and received. Raises `GroupBroken`."""
        under_way: deque[Work] = deque()
        rounds = zip_longest(_rounds(sends), _rounds(receives), fillvalue=())
        for number, (outgoing, incoming) in enumerate(rounds):
            if len(under_way) == ROUNDS_UNDER_WAY:
                under_way.popleft().wait()
            leaving = self._brought(outgoing, number % ROUNDS_UNDER_WAY)
            under_way.append(group.exchange(leaving, incoming, TAG, is_kept=False))
        for work in under_way:
            work.wait()

    def _brought(self, pieces: Sequence[Transfer], stage: int) -> Sequence[Transfer]:
        """The pieces in main memory, copied to a staging buffer if they are on a device."""
        if all(piece.device == CPU for piece, _ in pieces):
            return pieces
        if not self._stages:
            self._stages = [
                torch.empty(ROUND_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(ROUNDS_UNDER_WAY)
            ]
        found, start = [], 0
        for piece, peer in pieces:
            place = self._stages[stage][start : start + piece.numel()]
            found.append((place.copy_(piece, non_blocking=True), peer))
            start += piece.numel()
        torch.cuda.current_stream().record_event().synchronize()
        return found


@dataclass
class Mirror:
    """This rank's mirror. every: steps from one state to the next. partner, ward: the rail that keeps this
    rank's part, and the rail whose part this rank keeps.
    """

    every: int = EVERY
    partner: int = 0
    ward: int = -1
    needed: frozenset[int] = frozenset()
    _version: int = 0
    _outline: bytes = b""
    _tensors: list[torch.Tensor] = field(default_factory=list)
    _replaced: list[torch.Tensor] = field(default_factory=list)
    _steps: dict[int, _KeptStep] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)
    _spare: list[list[torch.Tensor]] = field(default_factory=list)
    _conveyance: _Conveyance = field(default_factory=_Conveyance)

    def begin(self, rail: int, offset: int, ranks: int, needed: frozenset[int]) -> None:
        """A generation of one replica begins. needed: the rails whose mirror is incomplete."""
        self.partner = (rail + offset) % ranks
        ward = (rail - offset) % ranks
        if ward != self.ward:
            self.clear()
        self.ward, self.needed = ward, needed
        self._sizes = []

    def clear(self) -> None:
        self.ward, self._version, self._outline, self._tensors = -1, 0, b"", []
        self._steps, self._spare, self._replaced = {}, [], []

    @property
    def keeps(self) -> Keeps | None:
        if not self._outline:
            return None
        last = self._version
        while (kept := self._steps.get(last + 1)) is not None and kept.numbers is not None:
            last += 1
        return Keeps(rail=self.ward, version=self._version, last=last)

    def note(self, step: int, numbers: Numbers) -> None:
        """The step was committed. Anything kept beyond it was not, and is useless."""
        if step in self._steps and (self._steps[step].numbers is None or numbers.loss is not None):
            self._steps[step].numbers = numbers
        self._drop([number for number in self._steps if number > step])

    def _drop(self, steps: Sequence[int]) -> None:
        """Drop these steps and reuse their memory: touching fresh memory takes longer than filling it."""
        self._spare += [self._steps.pop(number).flats for number in steps]

    # ---- before every commit -------------------------------------------------------------------------------

    def reflect(self, group: Group, tree: Any, step: int, flats: Sequence[torch.Tensor]) -> None:
        """Send this rank's part of the step to its partner, and keep the ward's. group: the replica's ranks,
        for tensors in main memory. tree: the state before the step. Raises `GroupBroken`; what was kept
        before then stays.
        """
        is_due = (step - 1) % self.every == 0
        is_sent, is_kept = (is_due or rail in self.needed for rail in (group.rank, self.ward))
        if is_sent or is_kept:
            self._renew(group, tree, step - 1, is_sent=is_sent, is_kept=is_kept)
        self.needed = frozenset()
        if not self._sizes:
            self._sizes = self._swapped(group, [flat.nbytes for flat in flats])
            self._spare = []
        came = self._spare.pop() if self._spare else _places(self._sizes)
        self._conveyance.move(
            group, [(flat, self.partner) for flat in flats], [(flat, self.ward) for flat in came]
        )
        self._drop([step] if step in self._steps else [])
        self._steps[step] = _KeptStep(came)

    def _swapped(self, group: Group, numbers: list[int]) -> list[int]:
        """Swap numbers: send this rank's, return the ward's. Stages of a pipeline have different numbers of
        them.
        """
        own = torch.tensor([len(numbers), *numbers])
        count = torch.empty_like(own[:1])
        _exchange(group, [(own[:1], self.partner)], [(count, self.ward)])
        if not 0 <= int(count) <= FLATS_MAX:
            raise GroupBroken(f"a rank told of {int(count)} buckets")
        theirs = own.new_empty(int(count))
        _exchange(group, [(own[1:], self.partner)], [(theirs, self.ward)])
        found: list[int] = theirs.tolist()
        return found

    def _renew(self, group: Group, tree: Any, version: int, *, is_sent: bool, is_kept: bool) -> None:
        outline, tensors = skeleton.take_apart(tree) if is_sent else (b"", [])
        sends = [(_as_bytes(outline), self.partner)] if is_sent else []
        sizes = torch.tensor([len(outline)])
        theirs = torch.empty_like(sizes)
        _exchange(group, [(sizes, self.partner)] * is_sent, [(theirs, self.ward)] * is_kept)
        length = int(theirs) if is_kept else 0
        if not 0 <= length <= SKELETON_BYTES_MAX:
            raise GroupBroken(f"a rank told of an outline of {length} bytes")
        came = torch.empty(length, dtype=torch.uint8)
        _exchange(group, sends, [(came, self.ward)] * is_kept)
        found = memory_of(came) if is_kept else b""
        arriving = _empty(found) if is_kept else []
        if _shapes(arriving) == _shapes(self._replaced):  # reuse touched memory, as with steps
            arriving = self._replaced
        self._conveyance.move(
            group,
            [(tensor, self.partner) for tensor in tensors],
            [(bytes_of(tensor), self.ward) for tensor in arriving],
        )
        if is_kept:  # replace the old state only by one that arrived completely
            self._replaced, self._tensors = self._tensors, arriving
            self._version, self._outline = version, found
            self._drop([number for number in self._steps if number <= version])

    # ---- taking a lost rank's place ------------------------------------------------------------------------

    def give(self, group: Group, peer: int) -> None:
        """Send everything kept to the member that takes the ward's place. Raises `GroupBroken`."""
        flats = [flat for _, kept in sorted(self._steps.items()) for flat in kept.flats]
        told = _Told(
            version=self._version,
            outline=self._outline,
            sizes=[flat.numel() for flat in flats],
            numbers=[kept.numbers or Numbers() for _, kept in sorted(self._steps.items())],
        )
        letter = _as_bytes(msgspec.msgpack.encode(told))
        _exchange(group, [(torch.tensor([letter.numel()]), peer)], [])
        _exchange(group, [(letter, peer)], [])
        self._conveyance.move(group, [(tensor, peer) for tensor in (*self._tensors, *flats)], [])


class _Told(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What `give` sends: the state of `version`, and the flats of the steps after it, with their numbers.
    sizes: of the flats, in bytes.
    """

    version: int
    outline: bytes
    sizes: list[int]
    numbers: list[Numbers]


@dataclass(frozen=True, kw_only=True)
class Reflection:
    """A part as its mirror had it: the state of `version`, and the sum's flats for each step after it."""

    version: int
    tree: Any
    steps: list[tuple[list[torch.Tensor], Numbers]]


def take(group: Group, peer: int, dtypes: Sequence[torch.dtype]) -> Reflection:
    """Receive what `give` sends. dtypes: of the flats of one step. Raises `GroupBroken`."""
    length = torch.empty(1, dtype=torch.int64)
    _exchange(group, [], [(length, peer)])
    if not 0 < int(length) <= SKELETON_BYTES_MAX:
        raise GroupBroken(f"a rank told of an outline of {int(length)} bytes")
    letter = torch.empty(int(length), dtype=torch.uint8)
    _exchange(group, [], [(letter, peer)])
    try:
        told = msgspec.msgpack.decode(memory_of(letter), type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise GroupBroken("what a rank told of its mirror cannot be read") from None
    tensors = _empty(told.outline)
    flats = [flat.view(dtypes[number % len(dtypes)]) for number, flat in enumerate(_places(told.sizes))]
    _Conveyance().move(group, [], [(bytes_of(tensor), peer) for tensor in (*tensors, *flats)])
    steps = [flats[first : first + len(dtypes)] for first in range(0, len(flats), len(dtypes))]
    return Reflection(
        version=told.version,
        tree=skeleton.put_together(told.outline, tensors),
        steps=list(zip(steps, told.numbers, strict=True)),
    )


def _empty(outline: bytes) -> list[torch.Tensor]:
    """Empty tensors for an outline, in main memory whatever device it names."""
    try:
        made = skeleton.empty_like(outline, CPU)
    except skeleton.MalformedSkeleton as error:
        raise GroupBroken(f"the outline of a mirrored state cannot be read: {error}") from None
    return [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in made]


def _shapes(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, torch.Size]]:
    return [(tensor.dtype, tensor.shape) for tensor in tensors]


def _places(sizes: Sequence[int]) -> list[torch.Tensor]:
    return [torch.empty(size, dtype=torch.uint8) for size in sizes]


def _as_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _rounds(transfers: Sequence[Transfer]) -> list[Sequence[Transfer]]:
    found: list[Sequence[Transfer]] = []
    together: list[Transfer] = []
    taken_bytes = 0
    for tensor, peer in transfers:
        for piece in torch.split(bytes_of(tensor), ROUND_BYTES) if tensor.numel() else ():
            if together and taken_bytes + piece.numel() > ROUND_BYTES:
                found.append(together)
                together, taken_bytes = [], 0
            together.append((piece, peer))
            taken_bytes += piece.numel()
    return [*found, together] if together else found


def _exchange(group: Group, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
    group.exchange(sends, receives, TAG, is_kept=False).wait()
