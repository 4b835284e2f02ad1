"""State from the memories of some members to those of others, verified at the far end.

It is cut into pieces. Whoever has the state sends its share of them, so several serve at once, and goes on
computing while they travel: nothing changes a state before the next commit, and no commit comes before the
receivers have it all. What each piece must be is told through the coordinator, which knows its members; the
group carries only bytes. A receiver takes everything into memory of its own and puts it in place when all of
it is right. A transfer that breaks off leaves the receiver as it was.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec
import torch

from holdfast.train import protected
from holdfast.train.group import Group, GroupBroken, Work
from holdfast.train.protected import Protected

PIECE_BYTES = 16 << 20
"""A larger tensor is cut; smaller ones travel together up to this size."""
ROUNDS_UNDER_WAY = 2
"""So many pieces of each source are awaited at once where a wait holds up the host."""
TAG = 1 << 20
"""Not one of the reduction's, which may be under way at the same time."""
WORD_BYTES = 4
"""Pieces are made of whole words, which their fingerprints are computed of."""


class Header(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one source tells of what it sends. loss: of the version's step. fingerprints: of its pieces."""

    version: int
    loss: float | None
    skeleton_bytes: int
    skeleton_digest: bytes
    fingerprints: tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """Who sends to whom, by rank. Piece number i comes from source i modulo their number."""

    sources: tuple[int, ...]
    receivers: tuple[int, ...]

    def share(self, pieces: Sequence["_Piece"], source: int) -> list["_Piece"]:
        return list(pieces[self.sources.index(source) :: len(self.sources)])


@dataclass(frozen=True)
class Serving:
    """What is on its way from here. header: for the receivers, by way of the coordinator."""

    header: bytes
    works: list[Work]


def send(group: Group, route: Route, state: Protected, version: int, loss: float | None) -> Serving:
    """Begin to send this member's share. The state must stay as it is until the receivers have it."""
    skeleton, tensors = protected.take_apart(state.tree())
    raws = [protected.bytes_of(tensor) for tensor in tensors]
    moving = {tensor.data_ptr() for buffer in state.moving if (tensor := buffer.tensor) is not None}
    # Now, and not while lanes are computed, which move some of these and move them back.
    share = route.share(_pieces(raws), group.rank)
    packed = [piece.packed(raws, state.device, moving) for piece in share]
    header = Header(
        version=version,
        loss=loss,
        skeleton_bytes=len(skeleton),
        skeleton_digest=hashlib.sha256(skeleton).digest(),
        fingerprints=protected.folded([protected.weights(memory) for memory in packed]),
    )
    if group.rank == route.sources[0]:
        packed.insert(0, torch.frombuffer(bytearray(skeleton), dtype=torch.uint8).to(state.device))
    with group.along():
        works = [group.exchange([(one, peer) for peer in route.receivers], [], TAG) for one in packed]
    return Serving(msgspec.msgpack.encode(header), works)


def receive(group: Group, route: Route, state: Protected, headers: Sequence[bytes]) -> Header:
    """Take over the state. headers: of each source. Raises `GroupBroken` and changes nothing where that does
    not succeed.
    """
    told = [_decoded(header) for header in headers]
    skeleton = _outline(group, route.sources[0], told[0], state.device)
    tensors = protected.empty_like(skeleton, state.device)
    arriving = _Arriving(group, [protected.bytes_of(tensor) for tensor in tensors], state.device)
    with group.along():
        for pieces in _rounds(route, arriving.pieces):
            arriving.take(pieces)
        arriving.complete()
    group.settle()
    for source, header in zip(route.sources, told, strict=True):
        if header.version != told[0].version or arriving.fingerprints(source) != header.fingerprints:
            raise GroupBroken(f"the state that came from rank {source} is not the one that was sent")
    state.put_back(protected.put_together(skeleton, tensors))
    return told[0]


def _decoded(header: bytes) -> Header:
    try:
        return msgspec.msgpack.decode(header, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise GroupBroken("what a member told of its state cannot be read") from None


def _outline(group: Group, source: int, header: Header, device: torch.device) -> bytes:
    arriving = torch.empty(header.skeleton_bytes, dtype=torch.uint8, device=device)
    group.exchange([], [(arriving, source)], TAG).wait()
    group.settle()
    skeleton = protected.memory_of(arriving)
    if hashlib.sha256(skeleton).digest() != header.skeleton_digest:  # it is unpickled, which trusts it
        raise GroupBroken("the outline of the state that arrived is not the one that was sent")
    return skeleton


def _rounds(route: Route, pieces: Sequence["_Piece"]) -> Iterator[list[tuple[int, "_Piece"]]]:
    """One piece from each source at a time."""
    shares = [[(source, piece) for piece in route.share(pieces, source)] for source in route.sources]
    for together in zip_longest(*shares):
        yield [one for one in together if one is not None]


class _Arriving:
    """Pieces on their way here: weighed and put where they belong as they come."""

    def __init__(self, group: Group, raws: Sequence[torch.Tensor], device: torch.device) -> None:
        self._group = group
        self._raws = raws
        self._device = device
        self._under_way: deque[tuple[Work, list[tuple[int, _Piece, torch.Tensor]]]] = deque()
        self._weights: dict[int, list[torch.Tensor]] = {}
        self.pieces = _pieces(raws)

    def take(self, pieces: Sequence[tuple[int, "_Piece"]]) -> None:
        expected = [(source, piece, piece.room(self._raws, self._device)) for source, piece in pieces]
        work = self._group.exchange([], [(room, source) for source, _, room in expected], TAG)
        self._under_way.append((work, expected))
        if len(self._under_way) > ROUNDS_UNDER_WAY:
            self._complete_first()

    def complete(self) -> None:
        while self._under_way:
            self._complete_first()

    def _complete_first(self) -> None:
        work, expected = self._under_way.popleft()
        work.wait()
        for source, piece, room in expected:
            self._weights.setdefault(source, []).append(protected.weights(room))
            piece.unpack(room, self._raws)

    def fingerprints(self, source: int) -> tuple[int, ...]:
        return protected.folded(self._weights.get(source, []))


@dataclass(frozen=True)
class _Stretch:
    """Some bytes of one tensor."""

    tensor: int
    start: int
    stop: int

    def of(self, raws: Sequence[torch.Tensor]) -> torch.Tensor:
        return raws[self.tensor][self.start : self.stop]


@dataclass(frozen=True)
class _Piece:
    """What travels together. A stretch that is alone travels from where it lies to where it belongs."""

    stretches: tuple[_Stretch, ...]

    def packed(self, raws: Sequence[torch.Tensor], device: torch.device, moving: set[int]) -> torch.Tensor:
        """The bytes on the device of the group: a copy where they lie elsewhere, or may move meanwhile."""
        alone = self._alone(raws, device)
        if alone is not None and raws[self.stretches[0].tensor].data_ptr() not in moving:
            return alone
        parts = [stretch.of(raws) for stretch in self.stretches]
        parts.append(torch.zeros(self._padding, dtype=torch.uint8, device=parts[0].device))
        return torch.cat(parts).to(device)

    def room(self, raws: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
        """Where the bytes arrive: in the tensor itself, or in memory for all of them."""
        alone = self._alone(raws, device)
        if alone is not None:
            return alone
        return torch.empty(self._size_bytes + self._padding, dtype=torch.uint8, device=device)

    def unpack(self, room: torch.Tensor, raws: Sequence[torch.Tensor]) -> None:
        if self._alone(raws, room.device) is not None:
            return
        arrived = room.to(raws[self.stretches[0].tensor].device)
        start = 0
        for stretch in self.stretches:
            part = stretch.of(raws)
            part.copy_(arrived[start : start + part.numel()])
            start += part.numel()

    @property
    def _size_bytes(self) -> int:
        return sum(stretch.stop - stretch.start for stretch in self.stretches)

    @property
    def _padding(self) -> int:
        return -self._size_bytes % WORD_BYTES

    def _alone(self, raws: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor | None:
        """The one stretch of tensor memory that this piece is, where it can travel as it is."""
        only = self.stretches[0].of(raws)
        is_whole = len(self.stretches) == 1 and not self._padding and not only.storage_offset() % WORD_BYTES
        return only if is_whole and only.device == device else None


def _pieces(raws: Sequence[torch.Tensor]) -> list[_Piece]:
    """The same for equal states: first what is on the device, then what is in main memory."""
    pieces: list[_Piece] = []
    for is_host in (False, True):
        numbers = [number for number, raw in enumerate(raws) if (raw.device.type == "cpu") == is_host]
        pieces += _cut([_Stretch(number, 0, raws[number].numel()) for number in numbers])
    return pieces


def _cut(stretches: Sequence[_Stretch]) -> Iterator[_Piece]:
    together: list[_Stretch] = []
    size_bytes = 0
    for stretch in stretches:
        for start in range(0, stretch.stop, PIECE_BYTES):
            part = _Stretch(stretch.tensor, start, min(stretch.stop, start + PIECE_BYTES))
            if together and size_bytes + part.stop - part.start > PIECE_BYTES:
                yield _Piece(tuple(together))
                together, size_bytes = [], 0
            together.append(part)
            size_bytes += part.stop - part.start
    if together:
        yield _Piece(tuple(together))
