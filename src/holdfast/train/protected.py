"""What a run protects: a model, its optimizers, schedulers and whatever else has a state, as one thing.

It can be compared, taken apart into tensors, sent, verified and put back bit by bit.
"""

import ctypes
import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.record.errors import InputError

FINGERPRINT_WORDS = 1 << 20
"""How many words are weighed at a time: bounds the memory it takes."""


@runtime_checkable
class Stateful(Protocol):
    """A scheduler, a GradScaler, an average of weights: anything that can say and take back what it is."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class Protected:
    """The things one run protects, in the order in which they were given."""

    def __init__(self, things: Sequence[object], moving: Sequence[str] = ()) -> None:
        self.models = [thing for thing in things if isinstance(thing, nn.Module)]
        self.optimizers = [thing for thing in things if isinstance(thing, Optimizer)]
        self.schedulers: list[Any] = [thing for thing in things if _is_scheduler(thing)]
        self.scaler: Any = next((thing for thing in things if isinstance(thing, torch.amp.GradScaler)), None)
        self._things = [thing for thing in things if isinstance(thing, Stateful)]
        if len(self._things) != len(things):
            stranger = next(thing for thing in things if not isinstance(thing, Stateful))
            raise InputError(
                f"protect() was given a {type(stranger).__name__}, which has no state_dict().",
                hint="Give it modules, optimizers, schedulers, things with state_dict and load_state_dict.",
            )
        if not self.models or not self.optimizers:
            raise InputError(
                "protect() needs a model and an optimizer.",
                hint="run.protect(model, optimizer, scheduler, lanes=8, seed=1)",
            )
        self.parameters = [parameter for parameter in self._parameters() if parameter.requires_grad]
        if not self.parameters:
            raise InputError(
                "No parameter of the protected model requires a gradient.",
                hint="Unfreeze what is to be trained before protect().",
            )
        self.buffers = dict(_named(self.models, lambda model: model.named_buffers()))
        self.moving = {name: self.buffers[name] for name in self._moving_names(moving)}

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def _parameters(self) -> Iterator[nn.Parameter]:
        """Each one once, tied ones too."""
        seen: set[int] = set()
        for model in self.models:
            for parameter in model.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def _moving_names(self, named: Sequence[str]) -> list[str]:
        for name in named:
            if name not in self.buffers:
                raise InputError(
                    f"protect(moving=...) names {name!r}, which is no buffer of the model.",
                    hint=f"Its buffers: {', '.join(self.buffers) or 'none'}.",
                )
        norms = [
            f"{prefix}{module_name}{'.' if module_name else ''}{name}"
            for prefix, model in _prefixed(self.models)
            for module_name, module in model.named_modules()
            if isinstance(module, nn.modules.batchnorm._NormBase)
            for name, buffer in module.named_buffers(recurse=False)
            if buffer is not None
        ]
        return list(dict.fromkeys([*norms, *named]))

    def tree(self) -> list[dict[str, Any]]:
        """The live state: tensors in it are the things' own, not copies."""
        return [thing.state_dict() for thing in self._things]

    def put_back(self, state: Sequence[dict[str, Any]]) -> None:
        for thing, part in zip(self._things, state, strict=True):
            thing.load_state_dict(part)
            if isinstance(thing, Optimizer):
                _restore_exactly(thing, part)

    def parts(self) -> dict[str, str]:
        """A digest of each part, by a name that a person recognises."""
        digests: dict[str, str] = {}
        for number, (thing, part) in enumerate(zip(self._things, self.tree(), strict=True)):
            name = f"{type(thing).__name__} {number}"
            if isinstance(thing, nn.Module):
                for key, value in part.items():
                    digests[f"{name}: {key}"] = digest(value)
            else:
                digests[name] = digest(part)
        return digests

    def digest(self) -> str:
        """Of every byte that is protected; equal exactly where the state is."""
        return digest(self.tree(), exact=True)


def _is_scheduler(thing: object) -> bool:
    return isinstance(
        thing, torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau
    )


def _prefixed(models: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """One model's names are its own; those of several are told apart by number."""
    return [("", models[0])] if len(models) == 1 else [(f"{i}.", model) for i, model in enumerate(models)]


def _named(
    models: Sequence[nn.Module], named: Callable[[nn.Module], Iterator[tuple[str, torch.Tensor]]]
) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, model in _prefixed(models):
        for name, tensor in named(model):
            yield prefix + name, tensor


def _restore_exactly(optimizer: Optimizer, part: dict[str, Any]) -> None:
    """load_state_dict casts state to the parameter's type; what was of another type comes back as it was."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, saved in part["state"].items():
        present = optimizer.state[parameters[index]]
        for key, value in saved.items():
            if isinstance(value, torch.Tensor) and present[key].dtype != value.dtype:
                present[key] = value.to(present[key].device, copy=True)


# ---- trees of tensors ------------------------------------------------------------------------------------


class _Place:
    """Stands for a tensor in the skeleton of a tree."""

    def __init__(self, number: int, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
        self.number = number
        self.dtype = dtype
        self.shape = shape
        self.device = device


def take_apart(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """A skeleton without tensors, and the tensors in the order of their places."""
    tensors: list[torch.Tensor] = []

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value.detach())
            return _Place(len(tensors) - 1, value.dtype, tuple(value.shape), value.device.type)
        if isinstance(value, dict):
            return type(value)((key, walk(item)) for key, item in value.items())
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(walk(item) for item in value)
        return value

    return pickle.dumps(walk(tree)), tensors


def empty_like(skeleton: bytes, device: torch.device) -> list[torch.Tensor]:
    """Tensors for every place of a skeleton, with whatever contents."""
    places: list[_Place] = []
    _walk_places(pickle.loads(skeleton), places.append)
    places.sort(key=lambda place: place.number)
    return [
        torch.empty(place.shape, dtype=place.dtype, device=device if place.device != "cpu" else "cpu")
        for place in places
    ]


def put_together(skeleton: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    return _walk_places(pickle.loads(skeleton), lambda place: tensors[place.number])


def _walk_places(value: Any, visit: Callable[[_Place], Any]) -> Any:
    if isinstance(value, _Place):
        return visit(value)
    if isinstance(value, dict):
        return type(value)((key, _walk_places(item, visit)) for key, item in value.items())
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_walk_places(item, visit) for item in value)
    return value


# ---- digests ---------------------------------------------------------------------------------------------


def digest(tree: Any, *, exact: bool = False) -> str:
    """Of structure and contents. exact: over the bytes themselves, on the host; otherwise over fingerprints
    of the tensors, which are computed where the tensors are.
    """
    skeleton, tensors = take_apart(tree)
    total = hashlib.sha256(skeleton_text(skeleton))
    for tensor in tensors:
        total.update(memory_of(tensor) if exact else str(fingerprint(tensor)).encode())
    return total.hexdigest()


def skeleton_text(skeleton: bytes) -> bytes:
    """The skeleton in a form that is the same for equal trees; pickles need not be."""
    described = _walk_places(
        pickle.loads(skeleton), lambda place: (str(place.dtype), place.shape, place.number)
    )
    return repr(described).encode()


def fingerprint(tensor: torch.Tensor) -> int:
    """64 bits that any change of a byte, or of the place of one, changes.

    Integer arithmetic: the same on every device and for every number of threads.
    """
    raw = bytes_of(tensor)
    whole = raw.numel() // 8 * 8
    total = sum((position + 1) * byte for position, byte in enumerate(raw[whole:].tolist()))
    words = raw[:whole].view(torch.int64)
    size = min(words.numel(), FINGERPRINT_WORDS)
    weights = torch.arange(1, 2 * size + 1, 2, dtype=torch.int64, device=tensor.device)
    for number, start in enumerate(range(0, words.numel(), FINGERPRINT_WORDS)):
        chunk = words[start : start + FINGERPRINT_WORDS]
        part = int((chunk * weights[: chunk.numel()]).sum().item())
        total = (total * 1_000_003 + part + number) % (1 << 64)
    return int(total)


def memory_of(tensor: torch.Tensor) -> bytes:
    """A copy of the tensor's bytes, from wherever they are; without numpy, which torch can do without."""
    raw = bytes_of(tensor.cpu())
    return ctypes.string_at(raw.data_ptr(), raw.numel())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes as a flat tensor, without a copy where it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
