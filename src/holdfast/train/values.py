"""Small values that members exchange between steps: typed, bounded, and never a pickle.

The type of a value is sent with it, so that a tuple stays a tuple, and a tensor keeps its type and shape.
"""

from typing import Any

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.train.protected import memory_of

VALUE_BYTES_MAX = 1 << 20
"""Limit for one value. It goes through the coordinator to every member; weights and images take
other ways.
"""
DEPTH_MAX = 32
_INT64 = range(-(1 << 63), 1 << 63)
_HINT = "Values are None, bool, int, float, str, bytes, small tensors, and lists, tuples and dicts of them."

_LIST, _TUPLE, _DICT, _TENSOR, _LARGE_INT = "l", "t", "d", "x", "i"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def encode(value: object) -> bytes:
    """Encode a value. Raises `InputError` if it cannot be sent."""
    data = msgspec.msgpack.encode(_plain(value, 0))
    if len(data) > VALUE_BYTES_MAX:
        raise InputError(
            f"A value of {len(data)} bytes is too large to send to other members; {VALUE_BYTES_MAX} fit.",
            hint="Pass small values to functions of run: numbers and names. Weights are sent anyway.",
        )
    return data


def decode(data: bytes, device: torch.device) -> Any:
    """Decode a value. device: where to put tensors that were on a GPU."""
    return _rebuilt(msgspec.msgpack.decode(data), device)


def _plain(value: object, depth: int) -> object:
    if depth > DEPTH_MAX:
        raise InputError(f"A value is nested more than {DEPTH_MAX} deep.", hint=_HINT)
    if value is None or isinstance(value, bool | str | bytes):
        return value
    if isinstance(value, int):
        return int(value) if int(value) in _INT64 else [_LARGE_INT, str(int(value))]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value)
    if type(value) is list:
        return [_LIST, *(_plain(item, depth + 1) for item in value)]
    if type(value) is tuple:
        return [_TUPLE, *(_plain(item, depth + 1) for item in value)]
    if type(value) is dict:
        pairs = [(_plain(key, depth + 1), _plain(item, depth + 1)) for key, item in value.items()]
        return [_DICT, *(part for pair in pairs for part in pair)]
    raise InputError(f"A {type(value).__name__} cannot be sent to other members.", hint=_HINT)


def _plain_tensor(tensor: torch.Tensor) -> list[object]:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise InputError("A sparse, quantized or meta tensor cannot be sent to other members.", hint=_HINT)
    if tensor.numel() * tensor.element_size() > VALUE_BYTES_MAX:
        raise InputError(
            f"A tensor of {tuple(tensor.shape)} is too large to be sent to other members: it takes more than"
            f" {VALUE_BYTES_MAX} bytes.",
            hint="Reduce it first, for example to its mean.",
        )
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    is_elsewhere = tensor.device.type != "cpu"
    return [_TENSOR, name, list(tensor.shape), memory_of(tensor), is_elsewhere]


def _rebuilt(plain: Any, device: torch.device) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, *parts = plain
    if kind == _LARGE_INT:
        return int(parts[0])
    if kind == _TENSOR:
        name, shape, memory, is_elsewhere = parts
        flat = torch.empty(len(memory), dtype=torch.uint8)
        if memory:
            flat = torch.frombuffer(bytearray(memory), dtype=torch.uint8)
        tensor = flat.view(_DTYPES[name]).reshape(shape)
        return tensor.to(device) if is_elsewhere else tensor
    items = [_rebuilt(part, device) for part in parts]
    if kind == _DICT:
        return dict(zip(items[0::2], items[1::2], strict=True))
    return tuple(items) if kind == _TUPLE else items
