"""State from one member's memory to another's, verified at the far end.

The receiver first takes everything into memory of its own and checks it against the sender's digest; only
then is it put in place. A transfer that breaks off leaves the receiver as it was.
"""

from collections.abc import Iterator, Sequence

import msgspec
import torch

from holdfast.train import protected
from holdfast.train.group import Group, GroupBroken
from holdfast.train.protected import Protected

PACK_BYTES = 16 << 20
"""Small tensors travel together up to this size; a larger one travels alone, from where it lies."""
HEADER_TAG, SKELETON_TAG, TENSORS_TAG = 1, 3, 5


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver must know to take the rest. loss: of the version's step."""

    skeleton_bytes: int
    digest: str
    version: int
    loss: float | None


HEADER_BYTES = 256


def send(group: Group, peer: int, state: Protected, version: int, loss: float | None) -> None:
    tree = state.tree()
    skeleton, tensors = protected.take_apart(tree)
    header = Header(skeleton_bytes=len(skeleton), digest=protected.digest(tree), version=version, loss=loss)
    device = state.device
    _send(group, peer, HEADER_TAG, _tensor(msgspec.json.encode(header).ljust(HEADER_BYTES), device))
    _send(group, peer, SKELETON_TAG, _tensor(skeleton, device))
    for pack in _packs(tensors):
        _send(group, peer, TENSORS_TAG, _packed(pack, device))


def receive(group: Group, peer: int, state: Protected) -> Header:
    """Take over the peer's state. Raises `GroupBroken` and changes nothing where that does not succeed."""
    device = state.device
    raw = _bytes(_receive(group, peer, HEADER_TAG, HEADER_BYTES, device))
    header = msgspec.json.decode(raw, type=Header)
    skeleton = _bytes(_receive(group, peer, SKELETON_TAG, header.skeleton_bytes, device))
    tensors = protected.empty_like(skeleton, device)
    for pack in _packs(tensors):
        size = sum(tensor.nbytes for tensor in pack)
        arrived = _receive(group, peer, TENSORS_TAG, size, device)
        start = 0
        for tensor in pack:
            protected.bytes_of(tensor).copy_(arrived[start : start + tensor.nbytes])
            start += tensor.nbytes
    tree = protected.put_together(skeleton, tensors)
    if protected.digest(tree) != header.digest:
        raise GroupBroken("the state that arrived is not the one that was sent")
    state.put_back(tree)
    return header


def _send(group: Group, peer: int, tag: int, tensor: torch.Tensor) -> None:
    if tensor.numel():
        group.exchange([(tensor, peer)], [], tag).wait()


def _receive(group: Group, peer: int, tag: int, size_bytes: int, device: torch.device) -> torch.Tensor:
    tensor = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    if size_bytes:
        group.exchange([], [(tensor, peer)], tag).wait()
    return tensor


def _packs(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Neighbouring tensors up to `PACK_BYTES` together; the same on both sides."""
    pack: list[torch.Tensor] = []
    size_bytes = 0
    for tensor in tensors:
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


def _tensor(data: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
