"""What a run protects: a model, its optimizers, schedulers and everything else with a state, as one object.

It can be compared, taken apart into tensors, sent, verified and restored bit by bit.
"""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.record.errors import InputError
from holdfast.train import shards
from holdfast.train.best import Best
from holdfast.train.skeleton import described, is_dense, take_apart

FINGERPRINT_WORDS = 1 << 15
"""How many words are weighed together; their products stay in a core's cache."""
FINGERPRINT_ROWS = {"cpu": 1, "cuda": 64}
"""How many such rows are processed at once: a GPU needs more work at a time."""


@runtime_checkable
class Stateful(Protocol):
    """Anything that can save and load its state: a scheduler, a GradScaler, an average of weights."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class Buffer:
    """A buffer by its place: forward may put another tensor there."""

    name: str
    module: nn.Module
    key: str

    @property
    def tensor(self) -> torch.Tensor | None:
        return self.module._buffers[self.key]

    @property
    def is_persistent(self) -> bool:
        """Whether it is part of the state; other buffers are caches."""
        return self.key not in self.module._non_persistent_buffers_set

    def put(self, tensor: torch.Tensor) -> None:
        self.module._buffers[self.key] = tensor


class Protected:
    """The things that a run protects, in the order in which they were given."""

    def __init__(self, things: Sequence[object], moving: Sequence[str] = ()) -> None:
        self.models = [thing for thing in things if isinstance(thing, nn.Module)]
        self.optimizers = [thing for thing in things if isinstance(thing, Optimizer)]
        self.schedulers: list[Any] = [thing for thing in things if _is_scheduler(thing)]
        scalers: list[Any] = [thing for thing in things if isinstance(thing, torch.amp.GradScaler)]
        self.scaler: Any = scalers[0] if scalers else None
        self._things = [thing for thing in things if isinstance(thing, Stateful)]
        if len(self._things) != len(things):
            stranger = next(thing for thing in things if not isinstance(thing, Stateful))
            raise InputError(
                f"protect() was given a {type(stranger).__name__}, which has no state_dict().",
                hint="Give it modules, optimizers, schedulers, things with state_dict and load_state_dict.",
            )
        if not self.models or not self.optimizers or len(scalers) > 1:
            raise InputError(
                "protect() needs a model and an optimizer, and takes at most one GradScaler.",
                hint="run.protect(model, optimizer, scheduler, lanes=8, seed=1)",
            )
        _check_kinds(self.models, self.optimizers)
        self.parameters = [parameter for parameter in self._parameters() if parameter.requires_grad]
        _check_parameters(self.parameters)
        self.is_sharded = any(map(shards.is_sharded, self.parameters))
        """Whether this process has only a part of some parameter."""
        self._known = set(map(id, self.parameters))
        self._optimized = _optimized_by(self.optimizers)
        self._check_optimized()
        self.buffers = list(_buffers(self.models))
        self.moving = self._moving(moving)

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def _parameters(self) -> Iterator[nn.Parameter]:
        """Each parameter once, tied ones too."""
        seen: set[int] = set()
        for model in self.models:
            for parameter in model.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def _strangers(self, optimized: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [one for one in optimized if one.requires_grad and id(one) not in self._known]

    def _check_optimized(self) -> None:
        """Raise unless all optimized parameters are reduced; otherwise members would diverge."""
        strangers = self._strangers(self._optimized)
        if strangers:
            shape = tuple(strangers[0].shape)
            raise InputError(
                f"An optimizer has a parameter, of shape {shape}, that is in no protected model.",
                hint="Give protect() every module whose parameters are optimized; a parameter by itself "
                "goes into an nn.ParameterList.",
            )

    def check_unchanged(self) -> None:
        """Raise if parameters changed since protect(): a member that joins later has only those."""
        present = _optimized_by(self.optimizers)
        if len(present) != len(self._optimized):
            raise InputError(
                "An optimizer was given other parameters after protect().",
                hint="Give it all of them before; a learning rate of 0 lets them wait.",
            )
        if self._strangers(present):
            raise InputError(
                "A parameter was unfrozen after protect().",
                hint="Unfreeze it before; a learning rate of 0 lets it wait.",
            )

    def _moving(self, named: Sequence[str]) -> list[Buffer]:
        known = {buffer.name for buffer in self.buffers}
        for name in named:
            if name not in known:
                raise InputError(
                    f"protect(moving=...) names {name!r}, which is not a buffer of the model.",
                    hint=f"Its buffers: {', '.join(sorted(known)) or 'none'}.",
                )
        moving = [
            buffer
            for buffer in self.buffers
            if buffer.name in named or isinstance(buffer.module, nn.modules.batchnorm._NormBase)
        ]
        for buffer in moving:
            if not buffer.is_persistent:
                raise InputError(
                    f"The moving buffer {buffer.name!r} is not in the model's state_dict().",
                    hint="Register it with persistent=True: a member that joins later needs it.",
                )
        return moving

    def names(self) -> list[str]:
        """The name of each thing, as a user would look for it: `model`, `optimizer`, or its class.

        Several of a kind have numbers, from 0, in the order in which they were given.
        """
        kinds = [_kind(thing) for thing in self._things]
        numbers = dict.fromkeys(kinds, -1)
        names = []
        for kind in kinds:
            numbers[kind] += 1
            names.append(f"{kind}_{numbers[kind]}" if kinds.count(kind) > 1 else kind)
        return names

    def states(self) -> list[dict[str, Any]]:
        """The live state: its tensors are the things' own, not copies."""
        return [thing.state_dict() for thing in self._things]

    def tree(self) -> list[dict[str, Any]]:
        """The same, with the local parts of sharded tensors."""
        found = self.states()
        return [shards.locals_of(part) for part in found] if self.is_sharded else found

    def wanted(self) -> shards.Wanted:
        """A function that tells which piece this process has of a tensor in a state."""
        # An optimizer has no state yet; its state of a parameter will be cut like the parameter.
        parameters = {
            number: _optimized_by([thing])
            for number, thing in enumerate(self._things)
            if isinstance(thing, Optimizer)
        }
        sharded = {
            (number, path): tensor
            for number, state in enumerate(self.states())
            for path, tensor in shards.sharded_in(state)
        }

        def find(number: int, path: shards.TreePath, shape: tuple[int, ...]) -> shards.Extent | None:
            tensor = sharded.get((number, path))
            if number in parameters and len(path) > 1 and path[0] == "state" and isinstance(path[1], int):
                (tensor,) = parameters[number][path[1] : path[1] + 1] or (None,)
                if not shape or tensor is None or tuple(tensor.shape) != shape:
                    return None
            if tensor is None or not shards.is_sharded(tensor):
                return None
            if tuple(tensor.shape) != shape:
                raise InputError(
                    f"The checkpoint does not fit what is protected: {'.'.join(map(str, path))} has shape "
                    f"{shape} there but {tuple(tensor.shape)} here.",
                    hint="Continue with the same model and optimizer, or begin anew in another directory "
                    "(--checkpoints).",
                )
            return shards.extent_of(tensor)

        return find

    def put_back(self, state: Sequence[dict[str, Any]], *, as_it_lies: bool = False) -> None:
        """Load a state. as_it_lies: its tensors are on the same devices as in the process that made it."""
        for thing, part in zip(self._things, state, strict=True):
            if self.is_sharded and isinstance(thing, nn.Module):
                part = shards.model_state(part, thing.state_dict())
            elif self.is_sharded and isinstance(thing, Optimizer):
                part = shards.optimizer_state(part, _optimized_by([thing]))
            thing.load_state_dict(part)
            if isinstance(thing, Optimizer):
                _restore_exactly(thing, part, as_it_lies)

    def parts(self) -> dict[str, str]:
        """A digest of each part, by a name that a user recognises."""
        parts: dict[str, Any] = {}
        for number, (thing, part) in enumerate(zip(self._things, self.tree(), strict=True)):
            name = f"{type(thing).__name__} {number}"
            if isinstance(thing, nn.Module):
                parts |= {f"{name}: {key}": value for key, value in part.items()}
            else:
                parts[name] = part
        return dict(zip(parts, digests(list(parts.values())), strict=True))

    def digest(self) -> str:
        """A hash of every protected byte: equal for equal states and, but for chance, only for these."""
        return digest(self.tree())


def _optimized_by(optimizers: Sequence[Optimizer]) -> list[torch.Tensor]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [parameter for group in groups for parameter in group["params"]]


def _kind(thing: object) -> str:
    if isinstance(thing, torch.optim.swa_utils.AveragedModel):
        return "average"
    if isinstance(thing, nn.Module):
        return "model"
    if isinstance(thing, Optimizer):
        return "optimizer"
    if isinstance(thing, torch.amp.GradScaler):
        return "scaler"
    if isinstance(thing, Best):
        return "best"
    return "scheduler" if _is_scheduler(thing) else type(thing).__name__


def _is_scheduler(thing: object) -> bool:
    return isinstance(
        thing, torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau
    )


def _check_kinds(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    for model in models:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise InputError(
                f"protect() was given a {type(model).__name__}, which reduces gradients itself.",
                hint="Give it the module inside, and call that in the lanes.",
            )
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
            raise InputError(
                f"{type(optimizer).__name__} cannot be used: a step computes gradients once, and dense ones.",
                hint="Take another optimizer.",
            )


def _check_parameters(parameters: Sequence[nn.Parameter]) -> None:
    if not parameters:
        raise InputError(
            "No parameter of the protected model requires a gradient.",
            hint="Unfreeze the parameters to be trained before protect().",
        )
    if any(nn.parameter.is_lazy(parameter) or parameter.is_meta for parameter in parameters):
        raise InputError(
            "The protected model has parameters without values.",
            hint="A lazy module gets its values in a first forward pass, one on `meta` by to_empty().",
        )
    devices = sorted({str(parameter.device) for parameter in parameters})
    if len(devices) > 1:
        raise InputError(
            f"The protected model is on several devices: {', '.join(devices)}.",
            hint="Put all of it on run.device before protect().",
        )


def _buffers(models: Sequence[nn.Module]) -> Iterator[Buffer]:
    """Each buffer once. With several models, a number is put before the name."""
    seen: set[int] = set()
    for number, model in enumerate(models):
        prefix = f"{number}." if len(models) > 1 else ""
        for module_name, module in model.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield Buffer(f"{prefix}{module_name}{'.' if module_name else ''}{key}", module, key)


def _restore_exactly(optimizer: Optimizer, part: dict[str, Any], as_it_lies: bool) -> None:
    """Restore the types and devices that load_state_dict changes: it casts state to the parameter's type, and
    moves it to the parameter's device.
    """
    parameters = _optimized_by([optimizer])
    for index, saved in part["state"].items():
        if not isinstance(index, int):  # some optimizers also keep shared state, which is not cast
            continue
        present = optimizer.state[parameters[index]]
        for key, value in saved.items():
            if not isinstance(value, torch.Tensor):
                continue
            device = value.device if as_it_lies else present[key].device
            if (present[key].dtype, present[key].device) != (value.dtype, device):
                present[key] = value.to(device, copy=True)


# ---- digests ---------------------------------------------------------------------------------------------


def digest(tree: Any) -> str:
    """A digest of structure and contents. It covers fingerprints of the tensors, computed where the tensors
    are: a cryptographic hash of them would take minutes instead of a fraction of a second.
    """
    return digests([tree])[0]


def digests(trees: Sequence[Any]) -> list[str]:
    """Digests of several trees: the host waits for a device once, and not for every tensor."""
    apart = [take_apart(tree) for tree in trees]
    prints = iter(fingerprints([tensor for _, tensors in apart for tensor in tensors]))
    found = []
    for skeleton, tensors in apart:
        total = hashlib.sha256(described(skeleton))
        for _ in tensors:
            total.update(str(next(prints)).encode())
        found.append(total.hexdigest())
    return found


def fingerprint(tensor: torch.Tensor) -> int:
    """64 bits that change with any one word of 32 bits and whenever two change places.

    Integer arithmetic: the same on every device and for every number of threads. Words of 32 bits have
    weights of 32, so that no bit of a product is lost: a sign counts as much as any other bit.
    """
    return fingerprints([tensor])[0]


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The fingerprint of each tensor, on whichever device it is."""
    found = [0] * len(tensors)
    places: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(number)
    for numbers in places.values():
        raws = [bytes_of(tensors[number]) for number in numbers]
        folds = folded([weights(_whole_words(raw)) for raw in raws], [_rest(raw) for raw in raws])
        for number, fold in zip(numbers, folds, strict=True):
            found[number] = fold
    return found


def _whole_words(raw: torch.Tensor) -> torch.Tensor:
    words = raw[: raw.numel() // 4 * 4]
    return words.clone() if words.storage_offset() % 4 else words  # it must be aligned to a word


def _rest(raw: torch.Tensor) -> int:
    """The bytes after the last whole word, as a number."""
    rest = raw[raw.numel() // 4 * 4 :]
    return sum(byte << 8 * position for position, byte in enumerate(rest.tolist())) if len(rest) else 0


def weights(raw: torch.Tensor) -> torch.Tensor:
    """The weighed sums of a fingerprint, on the tensor's own device, from bytes that are whole words."""
    return _weighed(raw.view(torch.int32))


def folded(weights_of: Sequence[torch.Tensor], rests: Sequence[int] | None = None) -> tuple[int, ...]:
    """The fingerprints of several pieces of one device's memory, which the host waits for once.

    rests: the remainder of each beyond whole words.
    """
    if not weights_of:
        return ()
    numbers = iter(torch.cat(list(weights_of)).tolist())
    totals = []
    for one, total in zip(weights_of, rests or [0] * len(weights_of), strict=True):
        for part in islice(numbers, len(one)):
            total = (total * 1_000_003 + part + 1) % (1 << 64)
        totals.append(total)
    return tuple(totals)


def _weighed(words: torch.Tensor) -> torch.Tensor:
    """The weighed sum of every `FINGERPRINT_WORDS` words."""
    size = min(words.numel(), FINGERPRINT_WORDS)
    numbers = torch.arange(1, size + 1, dtype=torch.int64, device=words.device)
    weights = (numbers * 2_654_435_761) & 0xFFFF_FFFF  # Knuth's multiplier: far apart, and no two alike
    full = words.numel() // FINGERPRINT_WORDS * FINGERPRINT_WORDS
    rows = words[:full].view(-1, FINGERPRINT_WORDS)
    rest = words[full:]
    sums = [(rest * weights[: rest.numel()]).sum().reshape(1)]
    at_once = FINGERPRINT_ROWS[words.device.type]
    starts = range(0, len(rows), at_once)
    sums += [(rows[start : start + at_once] * weights).sum(dim=1) for start in starts]
    return torch.cat(sums)


def memory_of(tensor: torch.Tensor) -> bytes:
    """A copy of the tensor's bytes, from any device; without numpy, which torch does not need."""
    raw = bytes_of(tensor.cpu())
    return ctypes.string_at(raw.data_ptr(), raw.numel())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes as a flat tensor, without a copy if it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def memory_as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its memory in memory order, without a copy if its elements fill it."""
    if tensor.is_contiguous() or not is_dense(tensor):
        return bytes_of(tensor)
    flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)
