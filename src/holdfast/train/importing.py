"""Makes checkpoints from files of other programs: safetensors, torch, and torch's distributed checkpoints.

What a file lacks, such as the optimizer's state beside a model's weights, comes from another checkpoint.
"""

import copy
import math
import struct
import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.train.best import WEIGHTS
from holdfast.train.checkpoint import DirectoryCheckpoints, Saved
from holdfast.train.opening import DTYPES_OF_SAFETENSORS, KNOWN, Checkpoint

KEEP_ALL = 1 << 62
HEADER_BYTES_MAX = 100 << 20
"""The limit of the safetensors library."""
_WANTED = ("step", "lanes", "seed", "threads")
_DTYPES = {name: dtype for dtype, name in DTYPES_OF_SAFETENSORS.items()}


class ImportedStates(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a file: states by name, and what it says of the step."""

    states: dict[str, dict[str, Any]]
    known: dict[str, Any]


def from_torch(path: Path) -> ImportedStates:
    """A file that `holdfast checkpoint export` wrote, or one with a state_dict() under each name."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint="Name a file that exists.") from None
    except Exception:  # torch raises many types for files that are not its own
        raise InputError(
            f"{path} is damaged, was not written by torch.save(), or holds more than plain values.",
            hint="Save state_dict()s in a plain dict with torch.save().",
        ) from None
    if not isinstance(found, dict):
        raise InputError(
            f"{path} holds a {type(found).__name__} instead of a dict.",
            hint='Save {"model": model.state_dict(), "optimizer": optimizer.state_dict()}.',
        )
    return ImportedStates(
        states={name: state for name, state in found.items() if isinstance(state, dict)},
        known={name: found[name] for name in KNOWN if name in found},
    )


def from_dcp(directory: Path, like: Checkpoint) -> ImportedStates:
    """Read a directory of `torch.distributed.checkpoint` that has the states of another checkpoint, by name.
    Its metadata are a pickle, which torch loads.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    states: dict[str, Any] = copy.deepcopy(like.states)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is one process
        try:
            reader = FileSystemReader(directory)
            there = reader.read_metadata().state_dict_metadata
            states |= {name: getattr(like, name) for name in KNOWN if name in there}
            load(states, storage_reader=reader, no_dist=True)
        except (Exception, CheckpointException) as error:  # CheckpointException is not an Exception
            causes = [str(error), *map(str, getattr(error, "failures", {}).values())]
            raise InputError(
                f"torch.distributed.checkpoint cannot load {directory}: {' '.join(causes).splitlines()[0]}",
                hint="Name a directory with the same states as the checkpoint of --like.",
            ) from None
    return ImportedStates(
        states={name: states[name] for name in like.states},
        known={name: states[name] for name in KNOWN if name in there},
    )


def from_safetensors(path: Path, part: str, like: Checkpoint) -> ImportedStates:
    """The tensors of one part; everything else comes from another checkpoint."""
    if part not in like.states:
        raise InputError(
            f"The checkpoint {like.place} has no part named {part!r}.",
            hint=f"Name with --part one of: {', '.join(like.states)}.",
        )
    try:
        tensors = read_safetensors(path.read_bytes())
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint="Name a file that exists.") from None
    except MalformedTensors as error:
        raise InputError(
            f"{path} is not a sound safetensors file: {error}.", hint="Export or download it again."
        ) from None
    before = like.states[part]
    state = dict(before[WEIGHTS] if part == "best" else before)
    for name, tensor in state.items():
        found = tensors.get(name)
        if (
            found is None
            or not isinstance(tensor, torch.Tensor)
            or (found.shape, found.dtype) != (tensor.shape, tensor.dtype)
        ):
            raise InputError(
                f"{path} has no {name} that fits {part} of {like.place}.",
                hint="Import the weights of the same model, in the same types.",
            )
        state[name] = found
    return ImportedStates(states={part: {**before, WEIGHTS: state} if part == "best" else state}, known={})


class MalformedTensors(ValueError):
    """Bytes that are not a valid safetensors file."""


def read_safetensors(raw: bytes) -> dict[str, torch.Tensor]:
    """The tensors by name; a tied tensor appears under each of its names. Raises `MalformedTensors`."""
    try:
        return _tensors(raw)
    except (ValueError, LookupError, TypeError, RuntimeError, struct.error, msgspec.MsgspecError) as error:
        raise MalformedTensors(str(error)) from None


def _tensors(raw: bytes) -> dict[str, torch.Tensor]:
    (length,) = struct.unpack_from("<Q", raw)
    if length > min(HEADER_BYTES_MAX, len(raw) - 8):
        raise ValueError("its header is longer than the file")
    header = msgspec.json.decode(raw[8 : 8 + length], type=dict[str, dict[str, Any]])
    tied = header.pop("__metadata__", {})
    body = bytearray(raw[8 + length :])
    found = {}
    for name, told in header.items():
        begin, end = told["data_offsets"]
        dtype, shape = _DTYPES[told["dtype"]], told["shape"]
        if not 0 <= begin <= end <= len(body) or math.prod(shape) * dtype.itemsize != end - begin:
            raise ValueError(f"{name} does not fit its place")
        flat = (
            torch.frombuffer(body, dtype=torch.uint8, count=end - begin, offset=begin)
            if end > begin
            else None
        )
        found[name] = (torch.empty(0, dtype=dtype) if flat is None else flat.clone().view(dtype)).view(shape)
    return found | {name: found[of] for name, of in tied.items() if of in found}


def keep_imported(found: ImportedStates, like: Checkpoint | None, directory: Path) -> Saved:
    """Save the imported states in a directory, for a run to resume from."""
    known = {name: getattr(like, name) for name in KNOWN} if like is not None else {}
    known |= found.known
    missing = [name for name in _WANTED if type(known.get(name)) is not int]
    if missing:
        raise InputError(
            f"The import does not say its {missing[0]}, without which a run cannot resume from it.",
            hint="Name with --like a checkpoint of the run that is to resume, which has it.",
        )
    states = {**(like.states if like is not None else {}), **found.states}
    kept = {
        **{name: known[name] for name in ("lanes", "seed", "threads")},
        "version": known["step"],
        "loss": known.get("loss"),
        "names": list(states),
        "state": list(states.values()),
    }
    store = DirectoryCheckpoints(directory, told=lambda *_, **__: None, keep=KEEP_ALL)
    return store.save(known["step"], kept)
