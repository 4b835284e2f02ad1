"""State from one member's memory to another's, verified at the far end.

The receiver first takes everything into memory of its own and checks it against the sender's digest; only
then is it put in place. A transfer that breaks off leaves the receiver as it was.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Self

import msgspec
import torch

from holdfast.train import protected
from holdfast.train.group import Group, GroupBroken, Work
from holdfast.train.protected import Protected

PACK_BYTES = 16 << 20
"""Small tensors travel together up to this size; a larger one travels alone, from where it lies."""
PACKS_UNDER_WAY = 2
TAG = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a receiver must know to take the rest. loss: of the version's step."""

    skeleton_bytes: int
    skeleton_digest: str
    digest: str
    version: int
    loss: float | None


HEADER_BYTES = 256
"""Of which the first two say how many of the others count."""


def send(group: Group, peer: int, state: Protected, version: int, loss: float | None) -> None:
    skeleton, tensors = protected.take_apart(state.tree())
    header = Header(
        skeleton_bytes=len(skeleton),
        skeleton_digest=_sha256(skeleton),
        digest=protected.digest_of(skeleton, tensors),
        version=version,
        loss=loss,
    )
    device = state.device
    packs = (_packed(pack, device) for pack in _packs(tensors))
    with _Pipeline() as pipeline:
        for packed in chain((_tensor(_framed(header), device), _tensor(skeleton, device)), packs):
            pipeline.add(group.exchange([(packed, peer)], [], TAG))


def receive(group: Group, peer: int, state: Protected) -> Header:
    """Take over the peer's state. Raises `GroupBroken` and changes nothing where that does not succeed."""
    device = state.device
    header = _unframed(protected.memory_of(_receive(group, peer, HEADER_BYTES, device)))
    skeleton = protected.memory_of(_receive(group, peer, header.skeleton_bytes, device))
    if _sha256(skeleton) != header.skeleton_digest:  # it is unpickled, which trusts it
        raise GroupBroken("the outline of the state that arrived is not the one that was sent")
    tensors = protected.empty_like(skeleton, device)
    with _Pipeline() as pipeline:
        for pack in _packs(tensors):
            arriving = torch.empty(_size_bytes(pack), dtype=torch.uint8, device=device)
            work = group.exchange([], [(arriving, peer)], TAG)
            pipeline.add(work, partial(_unpack, arriving, pack))
    if protected.digest_of(skeleton, tensors) != header.digest:
        raise GroupBroken("the state that arrived is not the one that was sent")
    state.put_back(protected.put_together(skeleton, tensors))
    return header


def _framed(header: Header) -> bytes:
    """Not as JSON, which has no word for a loss that is infinite or not a number."""
    encoded = msgspec.msgpack.encode(header)
    return (len(encoded).to_bytes(2, "big") + encoded).ljust(HEADER_BYTES)


def _unframed(data: bytes) -> Header:
    try:
        return msgspec.msgpack.decode(data[2 : 2 + int.from_bytes(data[:2], "big")], type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise GroupBroken("what arrived is not the beginning of a state") from None


class _Pipeline:
    """A few packs under way at once: the next one is prepared while the last one travels."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[Work, Callable[[], None] | None]] = deque()

    def add(self, work: Work, then: Callable[[], None] | None = None) -> None:
        self._under_way.append((work, then))
        if len(self._under_way) > PACKS_UNDER_WAY:
            self._complete()

    def _complete(self) -> None:
        work, then = self._under_way.popleft()
        work.wait()
        if then is not None:
            then()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while self._under_way and kind is None:
            self._complete()


def _receive(group: Group, peer: int, size_bytes: int, device: torch.device) -> torch.Tensor:
    tensor = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    group.exchange([], [(tensor, peer)], TAG).wait()
    return tensor


def _unpack(arrived: torch.Tensor, pack: Sequence[torch.Tensor]) -> None:
    start = 0
    for tensor in pack:
        protected.bytes_of(tensor).copy_(arrived[start : start + tensor.nbytes])
        start += tensor.nbytes


def _size_bytes(pack: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in pack)


def _packs(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Neighbouring tensors up to `PACK_BYTES` together; the same on both sides."""
    pack: list[torch.Tensor] = []
    size_bytes = 0
    for tensor in tensors:
        if not tensor.nbytes:
            continue
        if pack and size_bytes + tensor.nbytes > PACK_BYTES:
            yield pack
            pack, size_bytes = [], 0
        pack.append(tensor)
        size_bytes += tensor.nbytes
    if pack:
        yield pack


def _packed(pack: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    parts = [protected.bytes_of(tensor).to(device) for tensor in pack]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _tensor(data: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
