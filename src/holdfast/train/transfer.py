"""Copies state from the memories of some members to those of others, verified by the receivers.

The state is cut into pieces. Every member that has it sends a share of them, so several serve at once, and
continues computing meanwhile: nothing changes a state before the next commit, and no commit comes before the
receivers have it all. Headers that describe the pieces go through the coordinator, which knows its members;
the group carries only bytes. A receiver takes everything into separate memory, and loads it only when all of
it is right. A transfer that breaks off leaves the receiver as it was.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec
import torch

from holdfast.train import protected, skeleton
from holdfast.train.group import Group, GroupBroken, Work
from holdfast.train.protected import Protected

PIECE_BYTES = 16 << 20
"""How much one exchange sends: larger tensors are cut, smaller ones are sent together."""
PIECES_MAX = 128
"""Pieces grow rather than multiply: all of a source's are queued on its GPU before it computes again."""
SMALL_BYTES = 1 << 20
"""Smaller tensors are copied into one buffer to be sent; larger ones are sent from where they are."""
ROUNDS_UNDER_WAY = 2
"""How many pieces of each source are awaited at once, if a wait blocks the host."""
TAG = 1 << 20
"""Different from the reduction's tags, because a reduction may be under way at the same time."""
SKELETON_BYTES_MAX = 256 << 20
"""Limit for everything but the tensors: far more than a million of them take."""
WORD_BYTES = 4
"""Data are sent in whole words, because fingerprints are computed from words."""


class Numbers(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a script may ask of a step: its loss, the learning rate that its commit used, and the norm of its
    gradients if it was measured. None: unknown, as after a checkpoint. skipped: lanes that no member
    computed.
    """

    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    skipped: tuple[int, ...] = ()


class Header(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A source's description of what it sends. numbers: of the version's step. cut: a digest of how the state
    was cut into pieces. fingerprints: of everything that it sends except the skeleton.
    """

    version: int
    numbers: Numbers
    skeleton_bytes: int
    skeleton_digest: bytes
    cut: bytes
    fingerprints: tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """Which ranks send to which. Piece number i comes from source i modulo their number."""

    sources: tuple[int, ...]
    receivers: tuple[int, ...]

    def share(self, pieces: Sequence["_Piece"], source: int) -> list["_Piece"]:
        return list(pieces[self.sources.index(source) :: len(self.sources)])


def send(
    group: Group,
    route: Route,
    state: Protected,
    version: int,
    numbers: Numbers,
    tell: Callable[[bytes], None],
) -> list[Work]:
    """Begin to send this member's share. The state must not change until the receivers have it.

    tell: sends the receivers their header, through the coordinator. That comes first: while a GPU waits for a
    receiver, NCCL may delay everything that this process has yet to queue there, because it frees the
    previous communicator.
    """
    outline, tensors = skeleton.take_apart(state.tree())
    raws = [protected.memory_as_it_lies(tensor) for tensor in tensors]
    pieces = _pieces(raws, state.device)
    moving = {tensor.data_ptr() for buffer in state.moving if (tensor := buffer.tensor) is not None}
    # Now, and not while lanes are computed, which change some of these and change them back.
    outgoing = [piece.outgoing(raws, state.device, moving) for piece in route.share(pieces, group.rank)]
    header = Header(
        version=version,
        numbers=numbers,
        skeleton_bytes=len(outline),
        skeleton_digest=hashlib.sha256(outline).digest(),
        cut=_digest(pieces),
        fingerprints=protected.folded([protected.weights(one) for letters in outgoing for one in letters]),
    )
    if group.rank == route.sources[0]:
        letter = torch.frombuffer(bytearray(outline), dtype=torch.uint8).to(state.device)
        outgoing.insert(0, [letter])
    tell(msgspec.msgpack.encode(header))
    with group.along():
        return [
            group.exchange([(one, peer) for one in letters for peer in route.receivers], [], TAG)
            for letters in outgoing
        ]


def receive(group: Group, route: Route, state: Protected, headers: Sequence[bytes]) -> Header:
    """Adopt the state. headers: of each source. Raises `GroupBroken` and changes nothing if that fails."""
    told = [_decoded(header) for header in headers]
    outline = _outline(group, route.sources[0], told[0], state.device)
    tensors = _empty_like(outline, state.device)
    arriving = _Arriving(group, [protected.memory_as_it_lies(tensor) for tensor in tensors], state.device)
    if {header.cut for header in told} != {_digest(arriving.pieces)}:
        raise GroupBroken("members hold parts of the state on different kinds of devices")
    with group.along():
        for pieces in _rounds(route, arriving.pieces):
            arriving.take(pieces)
        arriving.complete()
    group.settle()
    for source, header in zip(route.sources, told, strict=True):
        if header.version != told[0].version or arriving.fingerprints(source) != header.fingerprints:
            raise GroupBroken(f"the state from rank {source} is not the one that was sent")
    state.put_back(skeleton.put_together(outline, tensors), as_it_lies=True)
    return told[0]


def _decoded(header: bytes) -> Header:
    try:
        return msgspec.msgpack.decode(header, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise GroupBroken("the header of a member's state cannot be read") from None


def _outline(group: Group, source: int, header: Header, device: torch.device) -> bytes:
    if not 0 < header.skeleton_bytes <= SKELETON_BYTES_MAX:
        raise GroupBroken(f"a member announced an outline of {header.skeleton_bytes} bytes")
    arriving = torch.empty(header.skeleton_bytes, dtype=torch.uint8, device=device)
    group.exchange([], [(arriving, source)], TAG).wait()
    group.settle()
    outline = protected.memory_of(arriving)
    if hashlib.sha256(outline).digest() != header.skeleton_digest:
        raise GroupBroken("the outline of the state that arrived is not the one that was sent")
    return outline


def _empty_like(outline: bytes, device: torch.device) -> list[torch.Tensor]:
    try:
        return skeleton.empty_like(outline, device)
    except skeleton.MalformedSkeleton as error:
        raise GroupBroken(f"the outline of the state cannot be read: {error}") from None


def _rounds(route: Route, pieces: Sequence["_Piece"]) -> Iterator[list[tuple[int, "_Piece"]]]:
    """One piece from each source at a time."""
    shares = [[(source, piece) for piece in route.share(pieces, source)] for source in route.sources]
    for together in zip_longest(*shares):
        yield [one for one in together if one is not None]


class _Arriving:
    """Pieces on their way here: weighed and put in place as they arrive."""

    def __init__(self, group: Group, raws: Sequence[torch.Tensor], device: torch.device) -> None:
        self._group = group
        self._raws = raws
        self._device = device
        self._under_way: deque[tuple[Work, list[tuple[int, _Piece, list[torch.Tensor]]]]] = deque()
        self._weights: dict[int, list[torch.Tensor]] = {}
        self.pieces = _pieces(raws, device)

    def take(self, pieces: Sequence[tuple[int, "_Piece"]]) -> None:
        expected = [(source, piece, piece.incoming(self._raws, self._device)) for source, piece in pieces]
        receives = [(one, source) for source, _, letters in expected for one in letters]
        self._under_way.append((self._group.exchange([], receives, TAG), expected))
        if len(self._under_way) > ROUNDS_UNDER_WAY:
            self._complete_first()

    def complete(self) -> None:
        while self._under_way:
            self._complete_first()

    def _complete_first(self) -> None:
        work, expected = self._under_way.popleft()
        work.wait()
        for source, piece, letters in expected:
            self._weights.setdefault(source, []).extend(map(protected.weights, letters))
            if piece.is_packed:
                piece.unpack(letters[0], self._raws)

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
    """What one exchange sends: packed into one buffer, or each stretch directly from and to its place in
    memory.
    """

    stretches: tuple[_Stretch, ...]
    is_packed: bool

    def outgoing(
        self, raws: Sequence[torch.Tensor], device: torch.device, moving: set[int]
    ) -> list[torch.Tensor]:
        """What to send. It is copied if it may change meanwhile, or begins in the middle of a word."""
        parts = [stretch.of(raws) for stretch in self.stretches]
        if self.is_packed:
            padding = torch.zeros(self._padding, dtype=torch.uint8, device=parts[0].device)
            return [torch.cat([*parts, padding]).to(device)]
        owners = [raws[stretch.tensor] for stretch in self.stretches]
        return [
            part.clone() if owner.data_ptr() in moving or part.storage_offset() % WORD_BYTES else part
            for part, owner in zip(parts, owners, strict=True)
        ]

    def incoming(self, raws: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        """The memory in which it arrives."""
        if not self.is_packed:
            return [stretch.of(raws) for stretch in self.stretches]
        return [torch.empty(self._size_bytes + self._padding, dtype=torch.uint8, device=device)]

    def unpack(self, arrived: torch.Tensor, raws: Sequence[torch.Tensor]) -> None:
        arrived = arrived.to(raws[self.stretches[0].tensor].device)
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


def _pieces(raws: Sequence[torch.Tensor], device: torch.device) -> list[_Piece]:
    """Cut the state into pieces, the same for equal states: first large tensors on the device, then small
    ones there, then those in main memory.
    """
    size_bytes = max(
        PIECE_BYTES, -(-sum(raw.numel() for raw in raws) // PIECES_MAX // WORD_BYTES) * WORD_BYTES
    )
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for number, raw in enumerate(raws):
        is_there = raw.device.type == device.type
        is_large = is_there and raw.numel() >= SMALL_BYTES and not raw.numel() % WORD_BYTES
        kinds.setdefault((is_there, is_large), []).append(number)
    return [
        piece
        for kind in ((True, True), (True, False), (False, False))
        for piece in _cut(
            [_Stretch(number, 0, raws[number].numel()) for number in kinds.get(kind, ())],
            size_bytes,
            is_packed=not kind[1],
        )
    ]


def _cut(stretches: Sequence[_Stretch], size_bytes: int, *, is_packed: bool) -> Iterator[_Piece]:
    together: list[_Stretch] = []
    taken_bytes = 0
    for stretch in stretches:
        for start in range(0, stretch.stop, size_bytes):
            part = _Stretch(stretch.tensor, start, min(stretch.stop, start + size_bytes))
            if together and taken_bytes + part.stop - part.start > size_bytes:
                yield _Piece(tuple(together), is_packed)
                together, taken_bytes = [], 0
            together.append(part)
            taken_bytes += part.stop - part.start
    if together:
        yield _Piece(tuple(together), is_packed)


def _digest(pieces: Sequence[_Piece]) -> bytes:
    return hashlib.sha256(repr(pieces).encode()).digest()
