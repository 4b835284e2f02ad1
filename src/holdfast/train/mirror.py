"""What one rank keeps of another, where the model has no second replica: enough to make its part again.

Each rank's part has a mirror in the memory of another rank, of another node where there is one: its state of
some step, and its share of the summed gradients of every step since. The gradients arrive before anybody
commits their step, so whoever takes a lost rank's place gets the state, does the same optimizer steps and is
where the others are: nobody goes back. What is kept lies in main memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import msgspec
import torch

from holdfast.train import skeleton
from holdfast.train.group import Group, GroupBroken, Transfer
from holdfast.train.protected import bytes_of, memory_of
from holdfast.train.transfer import SKELETON_BYTES_MAX, Numbers

EVERY = 8
"""Steps from one state to the next, unless the script says otherwise. Gradients, which travel at every step,
are a third of its size; so many steps are done again at most."""
TAG = 1 << 23
FLATS_MAX = 1 << 16
ROUND_BYTES = 64 << 20
"""What travels in one exchange, so that a GPU needs little memory for what arrives."""


class Keeps(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a rank has of another: of which rail, the step of the state, and the last step it has all of."""

    rail: int
    version: int
    last: int

    def covers(self, rail: int, version: int) -> bool:
        return self.rail == rail and self.version <= version <= self.last


@dataclass
class _KeptStep:
    """flats: as bytes."""

    flats: list[torch.Tensor]
    numbers: Numbers | None = None


@dataclass
class Mirror:
    """This rank's. every: steps from one state to the next. partner, ward: the rails that keep it, and that
    it keeps.
    """

    every: int = EVERY
    partner: int = 0
    ward: int = -1
    needed: frozenset[int] = frozenset()
    _version: int = 0
    _outline: bytes = b""
    _tensors: list[torch.Tensor] = field(default_factory=list)
    _steps: dict[int, _KeptStep] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)
    _spare: list[list[torch.Tensor]] = field(default_factory=list)
    _leaving: list[Any] = field(default_factory=list)

    def begin(self, rail: int, offset: int, ranks: int, needed: frozenset[int]) -> None:
        """A generation of one replica begins. needed: the rails of which the mirror lacks something."""
        self.partner = (rail + offset) % ranks
        ward = (rail - offset) % ranks
        if ward != self.ward:
            self.clear()
        self.ward, self.needed = ward, needed
        self._sizes, self._leaving = [], []

    def clear(self) -> None:
        self.ward, self._version, self._outline, self._tensors = -1, 0, b"", []
        self._steps, self._spare = {}, []

    @property
    def keeps(self) -> Keeps | None:
        if not self._outline:
            return None
        last = self._version
        while (kept := self._steps.get(last + 1)) is not None and kept.numbers is not None:
            last += 1
        return Keeps(rail=self.ward, version=self._version, last=last)

    def note(self, step: int, numbers: Numbers) -> None:
        """The step was committed. What is kept beyond it was not, and is of no use."""
        if step in self._steps and (self._steps[step].numbers is None or numbers.loss is not None):
            self._steps[step].numbers = numbers
        self._drop([number for number in self._steps if number > step])
        self._leaving = []

    def _drop(self, steps: Sequence[int]) -> None:
        """Their memory is used again: to touch fresh memory takes longer than to fill it."""
        self._spare += [self._steps.pop(number).flats for number in steps]

    # ---- before every commit -------------------------------------------------------------------------------

    def reflect(self, group: Group, tree: Any, step: int, flats: Sequence[torch.Tensor]) -> None:
        """Bring this rank's part of the step to its partner, and keep the ward's. tree: the state before the
        step. Raises `GroupBroken`, and then what was kept stays.
        """
        is_due = (step - 1) % self.every == 0
        is_sent, is_kept = (is_due or rail in self.needed for rail in (group.rank, self.ward))
        if is_sent or is_kept:
            self._renew(group, tree, step - 1, is_sent=is_sent, is_kept=is_kept)
        self.needed = frozenset()
        if not self._sizes:
            self._sizes = self._swapped(group, [flat.nbytes for flat in flats], flats[0].device)
            self._spare = []
        came = self._spare.pop() if self._spare else self._fresh(is_pinned=flats[0].is_cuda)
        _in_rounds(group, [(flat, self.partner) for flat in flats], [(flat, self.ward) for flat in came])
        self._drop([step] if step in self._steps else [])
        self._steps[step] = _KeptStep(came)

    def _fresh(self, *, is_pinned: bool) -> list[torch.Tensor]:
        """Main memory for the ward's flats."""
        return [torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned) for size in self._sizes]

    def _swapped(self, group: Group, numbers: list[int], device: torch.device) -> list[int]:
        """The ward's numbers, for this rank's. Stages of a pipeline have different numbers of them."""
        own = torch.tensor([len(numbers), *numbers], device=device)
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
        device = _device_of(group)
        sends = [(_as_bytes(outline, device), self.partner)] if is_sent else []
        sizes = torch.tensor([len(outline)], device=device)
        theirs = torch.empty_like(sizes)
        _exchange(group, [(sizes, self.partner)] * is_sent, [(theirs, self.ward)] * is_kept)
        length = int(theirs) if is_kept else 0
        if not 0 <= length <= SKELETON_BYTES_MAX:
            raise GroupBroken(f"a rank told of an outline of {length} bytes")
        came = torch.empty(length, dtype=torch.uint8, device=device)
        _exchange(group, sends, [(came, self.ward)] * is_kept)
        found = memory_of(came) if is_kept else b""
        arriving = _empty(found, torch.device("cpu")) if is_kept else []
        self._leaving = [bytes_of(tensor) for tensor in tensors]  # until it has left
        _in_rounds(
            group,
            [(tensor, self.partner) for tensor in self._leaving],
            [(bytes_of(tensor), self.ward) for tensor in arriving],
        )
        if is_kept:
            group.settle()  # only what has come all right takes the place of what is there
            self._version, self._outline, self._tensors = version, found, arriving
            self._drop([number for number in self._steps if number <= version])

    # ---- a lost rank's place is taken ----------------------------------------------------------------------

    def give(self, group: Group, peer: int, device: torch.device) -> None:
        """Send all that is kept to who has the ward's place. Raises `GroupBroken`."""
        flats = [flat for _, kept in sorted(self._steps.items()) for flat in kept.flats]
        told = _Told(
            version=self._version,
            outline=self._outline,
            sizes=[flat.numel() for flat in flats],
            numbers=[kept.numbers or Numbers() for _, kept in sorted(self._steps.items())],
        )
        letter = _as_bytes(msgspec.msgpack.encode(told), device)
        _exchange(group, [(torch.tensor([letter.numel()], device=device), peer)], [])
        _exchange(group, [(letter, peer)], [])
        leaving = [bytes_of(tensor) for tensor in (*self._tensors, *flats)]
        _in_rounds(group, [(tensor, peer) for tensor in leaving], [])
        group.settle()


class _Told(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What comes: the state of `version`, and the flats of the steps behind it, with their numbers. sizes: of
    those, in bytes.
    """

    version: int
    outline: bytes
    sizes: list[int]
    numbers: list[Numbers]


@dataclass(frozen=True, kw_only=True)
class Reflection:
    """A part as its mirror had it: the state of `version`, and for each step after it the sum's flats."""

    version: int
    tree: Any
    steps: list[tuple[list[torch.Tensor], Numbers]]


def take(group: Group, peer: int, dtypes: Sequence[torch.dtype], device: torch.device) -> Reflection:
    """What `give` sends. dtypes: of the flats of one step. Raises `GroupBroken`."""
    length = torch.empty(1, dtype=torch.int64, device=device)
    _exchange(group, [], [(length, peer)])
    if not 0 < int(length) <= SKELETON_BYTES_MAX:
        raise GroupBroken(f"a rank told of an outline of {int(length)} bytes")
    letter = torch.empty(int(length), dtype=torch.uint8, device=device)
    _exchange(group, [], [(letter, peer)])
    try:
        told = msgspec.msgpack.decode(memory_of(letter), type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise GroupBroken("what a rank told of its mirror cannot be read") from None
    tensors = _empty(told.outline, torch.device("cpu"))
    flats = [
        torch.empty(size, dtype=torch.uint8).view(dtypes[number % len(dtypes)])
        for number, size in enumerate(told.sizes)
    ]
    _in_rounds(group, [], [(bytes_of(tensor), peer) for tensor in (*tensors, *flats)])
    group.settle()
    steps = [flats[first : first + len(dtypes)] for first in range(0, len(flats), len(dtypes))]
    return Reflection(
        version=told.version,
        tree=skeleton.put_together(told.outline, tensors),
        steps=list(zip(steps, told.numbers, strict=True)),
    )


def _empty(outline: bytes, device: torch.device) -> list[torch.Tensor]:
    """On the device, whatever the outline says."""
    try:
        made = skeleton.empty_like(outline, torch.device("cpu"))
    except skeleton.MalformedSkeleton as error:
        raise GroupBroken(f"the outline of a mirrored state cannot be read: {error}") from None
    return [torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for tensor in made]


def _device_of(group: Group) -> torch.device:
    """Where tensors must be to travel: on the GPU where the group is NCCL's."""
    if not group.is_ordered:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _as_bytes(data: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def _in_rounds(group: Group, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
    """Both in rounds of bounded size: the other ends cut alike. What is received may be in main memory, and
    is there when the group has settled; what is sent must stay until then.
    """
    device = _device_of(group)
    for outgoing, incoming in zip_longest(_rounds(sends), _rounds(receives), fillvalue=()):
        with group.along():
            arriving = [
                (place if place.device.type == device.type else torch.empty_like(place, device=device), peer)
                for place, peer in incoming
            ]
            # In main memory there is room for a whole part, on a device only for what is on its way.
            outgoing = [(piece.to(device), peer) for piece, peer in outgoing]
            group.exchange(outgoing, arriving, TAG, is_kept=False).wait()
            for (place, _), (came, _) in zip(incoming, arriving, strict=True):
                if place is not came:
                    place.copy_(came, non_blocking=True)


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
    with group.along():
        work = group.exchange(sends, receives, TAG)
    work.wait()
    group.settle()
