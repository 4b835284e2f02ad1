"""The skeleton of a state: everything but the tensors' contents, as typed data and never a pickle.

The type of every part is stored with it, from a fixed list, so that a Counter stays a Counter, and nothing is
ever built that is not on the list. A place stands for each tensor, with its type, shape and layout. The
receiver of a skeleton checks it before it allocates any memory for it.
"""

import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from holdfast.record.errors import InputError

DEPTH_MAX = 64
TENSOR_BYTES_MAX = 1 << 48
"""The largest address."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_THEMSELVES = frozenset((type(None), bool, str, bytes, float))
_INT64 = range(-(1 << 63), 1 << 63)
_FACTORIES: dict[str, Callable[[], Any] | None] = {
    "": None,
    "bool": bool,
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "set": set,
    "str": str,
    "tuple": tuple,
}
_METADATA = "_metadata"
"""The attribute that a module's state_dict() sets beside its items."""


class MalformedSkeleton(ValueError):
    """Bytes that are not a valid skeleton."""


class TensorPlace(msgspec.Struct, frozen=True, array_like=True):
    """Stands for a tensor. stride: None if it does not fill its memory."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    device: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def empty(self, device: torch.device) -> torch.Tensor:
        """An uninitialized tensor with its layout, because kernels depend on the layout."""
        if self.device == "cpu":
            device = torch.device("cpu")
        dtype = DTYPES[self.dtype]
        if self.stride is None:
            return torch.empty(self.shape, dtype=dtype, device=device)
        return torch.empty_strided(self.shape, self.stride, dtype=dtype, device=device)


def take_apart(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """A skeleton without tensors, and the tensors in the order of their places."""
    tensors: list[torch.Tensor] = []
    return msgspec.msgpack.encode(_plain(tree, tensors, 0)), tensors


def places_of(skeleton: bytes) -> list[TensorPlace]:
    """The places of its tensors, in the order of their numbers. Raises `MalformedSkeleton`."""
    places: list[TensorPlace] = []
    _rebuilt(skeleton, places.append)
    places.sort(key=lambda place: place.number)
    if [place.number for place in places] != list(range(len(places))):
        raise MalformedSkeleton("places are missing or occur twice")
    return places


def empty_like(skeleton: bytes, device: torch.device) -> list[torch.Tensor]:
    """Uninitialized tensors for all places of a skeleton."""
    return [place.empty(device) for place in places_of(skeleton)]


def put_together(skeleton: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    """The tree, with the tensors in its places."""
    return _rebuilt(skeleton, lambda place: tensors[place.number])


def described(skeleton: bytes) -> bytes:
    """The skeleton as text that is the same for equal trees, whatever devices their tensors are on."""
    return repr(_described(_rebuilt(skeleton, lambda place: place))).encode()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory, in any order."""
    return tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


# ---- into plain data -------------------------------------------------------------------------------------


def _plain(value: Any, tensors: list[torch.Tensor], depth: int) -> Any:
    """None, numbers, text and bytes stand for themselves; everything else is a list that begins with its
    type.
    """
    if depth > DEPTH_MAX:
        raise InputError(f"A state_dict() is nested more than {DEPTH_MAX} deep.", hint=_HINT)
    if type(value) in _THEMSELVES:
        return value
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        tensors.append(tensor)
        return ["tensor", *_place(len(tensors) - 1, tensor)]
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, int):
        return int(value) if int(value) in _INT64 else ["int", str(int(value))]
    if isinstance(value, float):
        return float(value)

    def all_plain(items: Any) -> list[Any]:
        return [_plain(item, tensors, depth + 1) for item in items]

    if isinstance(value, torch.Size):
        return ["size", *value]
    if type(value) in (list, tuple):
        return [type(value).__name__, *all_plain(value)]
    if type(value) in (set, frozenset):
        return [type(value).__name__, *sorted(all_plain(value), key=msgspec.msgpack.encode)]
    if type(value) is deque:
        return ["deque", value.maxlen, *all_plain(value)]
    if isinstance(value, dict) and type(value) in (dict, OrderedDict, Counter, defaultdict):
        kind = _kind_of_dict(value)
        return [*all_plain(kind), *all_plain(part for pair in value.items() for part in pair)]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    return _plain_numpy(value)


def _kind_of_dict(value: dict[Any, Any]) -> list[Any]:
    """Its type, and what it has beside its items."""
    if type(value) is OrderedDict:
        return ["ordered", getattr(value, _METADATA, None)]
    if type(value) is defaultdict:
        for name, factory in _FACTORIES.items():
            if value.default_factory is factory:
                return ["default", name]
        raise _refused(value.default_factory)
    return ["counter" if type(value) is Counter else "dict"]


def _plain_numpy(value: Any) -> Any:
    """Arrays and numbers of numpy, which a script may use, but Holdfast does not need."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        raise _refused(value)
    array = numpy.ascontiguousarray(value)
    if array.dtype.hasobject or array.dtype.fields or array.dtype.kind not in "biufcSU":
        raise _refused(value)
    kind = "array" if type(value) is numpy.ndarray else "scalar"
    return [kind, array.dtype.str, [] if kind == "scalar" else list(value.shape), array.tobytes()]


def _place(number: int, tensor: torch.Tensor) -> tuple[Any, ...]:
    """A `TensorPlace` as it is stored."""
    stride = tensor.stride() if is_dense(tensor) else None
    return number, _NAMES[tensor.dtype], tuple(tensor.shape), stride, tensor.device.type


_HINT = "States are made of tensors, numbers, strings and containers of them."


def _refused(value: object) -> InputError:
    name = getattr(value, "__name__", "") or type(value).__name__
    return InputError(
        f"A state_dict() holds a value that cannot be sent to another member: {name}.",
        hint=_HINT,
    )


# ---- and back --------------------------------------------------------------------------------------------


def _rebuilt(skeleton: bytes, visit: Callable[[TensorPlace], Any]) -> Any:
    """The tree with the results of `visit` in its places. Raises `MalformedSkeleton`."""
    try:
        return _build(msgspec.msgpack.decode(skeleton), visit, 0)
    except MalformedSkeleton:
        raise
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError, RuntimeError) as error:
        raise MalformedSkeleton(str(error)) from None


def _build(plain: Any, visit: Callable[[TensorPlace], Any], depth: int) -> Any:
    if not isinstance(plain, list):
        if isinstance(plain, dict) or depth > DEPTH_MAX:
            raise MalformedSkeleton("not a value of a skeleton")
        return plain
    kind, *parts = plain
    if kind == "tensor":
        return visit(_checked(msgspec.convert(parts, TensorPlace)))
    if kind in _LEAVES:
        return _LEAVES[kind](*parts)
    if depth > DEPTH_MAX:
        raise MalformedSkeleton("nested too deep")
    items = [_build(part, visit, depth + 1) for part in parts]
    return _CONTAINERS[kind](items)


def _checked(place: TensorPlace) -> TensorPlace:
    """Raise unless its layout fills exactly the memory that its elements take."""
    if place.dtype not in DTYPES or any(length < 0 for length in place.shape):
        raise MalformedSkeleton("no such tensor")
    numel = math.prod(place.shape)
    if numel * DTYPES[place.dtype].itemsize > TENSOR_BYTES_MAX:
        raise MalformedSkeleton("a tensor larger than any memory")
    if place.stride is None:
        return place
    if len(place.stride) != len(place.shape) or any(step < 0 for step in place.stride):
        raise MalformedSkeleton("a layout of another shape")
    reach = 1 + sum((length - 1) * step for length, step in zip(place.shape, place.stride, strict=True))
    if numel and reach != numel:
        raise MalformedSkeleton("a layout with holes")
    return place


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(items[0::2], items[1::2], strict=True))


def _ordered(items: list[Any]) -> OrderedDict[Any, Any]:
    metadata, *rest = items
    found = OrderedDict(_pairs(rest))
    if metadata is not None:
        setattr(found, _METADATA, metadata)
    return found


def _from_numpy(kind: str) -> Callable[[str, list[int], bytes], Any]:
    def build(dtype: str, shape: list[int], memory: bytes) -> Any:
        import numpy as np

        found = np.dtype(dtype)
        if found.kind not in "biufcSU":
            raise MalformedSkeleton("not an array of numbers or text")
        array = np.frombuffer(memory, dtype=found).reshape(shape).copy()
        return array if kind == "array" else array[()]

    return build


_LEAVES: dict[str, Callable[..., Any]] = {
    "int": int,
    "complex": complex,
    "dtype": lambda name: DTYPES[name],
    "device": torch.device,
    "size": lambda *lengths: torch.Size(lengths),
    "array": _from_numpy("array"),
    "scalar": _from_numpy("scalar"),
}
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": lambda items: deque(items[1:], maxlen=items[0]),
    "dict": lambda items: dict(_pairs(items)),
    "ordered": _ordered,
    "counter": lambda items: Counter(dict(_pairs(items))),
    "default": lambda items: defaultdict(_FACTORIES[items[0]], _pairs(items[1:])),
}


# ---- as text ---------------------------------------------------------------------------------------------


def _described(value: Any) -> Any:
    if isinstance(value, TensorPlace):
        return f"torch.{value.dtype}", value.shape, value.number
    if isinstance(value, dict):
        return [(_described(key), _described(item)) for key, item in value.items()]
    if type(value) in (list, tuple):
        return type(value)(map(_described, value))
    if type(value) in _TEXT:
        return value
    # Its repr() may contain an ellipsis, or items in any order.
    return type(value).__qualname__, msgspec.msgpack.encode(_plain(value, [], 0))


_TEXT = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
