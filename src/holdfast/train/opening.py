"""Checkpoints for people: what a run kept, opened in any Python process without the run, and exported.

Nothing in a checkpoint is executed: it holds tensors, numbers and strings, and is believed only when its
SHA-256 agrees.
"""

import struct
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.train.best import WEIGHTS
from holdfast.train.checkpoint import DirectoryCheckpoints, Loaded, Unsound, read
from holdfast.train.whole_file import whole_file

LIST_HINT = "`holdfast checkpoint list` shows the ones there are, and which are sound."

ACCESS_HINT = "Grant this user read permission on the directory, and look whether its filesystem is mounted."


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a run had after a step.

    loss: of that step. states: the state_dict() of everything that was given to protect(), in that order.
    Names are `model`, `average` (an `AveragedModel`), `optimizer`, `scheduler`, `scaler`, `best`, and of
    anything else its class; several of a kind are `model_0`, `model_1`. place: the file. digest: its SHA-256.
    """

    step: int
    loss: float | None
    lanes: int
    seed: int
    states: dict[str, dict[str, Any]]
    place: str
    digest: str

    @property
    def model(self) -> dict[str, Any]:
        """For `model.load_state_dict()`; only where one model was protected."""
        return self._only("model")

    @property
    def optimizer(self) -> dict[str, Any]:
        """For `optimizer.load_state_dict()`; only where there was one."""
        return self._only("optimizer")

    def _only(self, name: str) -> dict[str, Any]:
        if name not in self.states:
            raise InputError(
                f"The checkpoint {self.place} has no part named {name!r}.",
                hint=f"Take from .states what you want of: {', '.join(self.states)}.",
            )
        return self.states[name]


def load_checkpoint(
    path: Path | str, *, step: int | None = None, map_location: str | torch.device = "cpu"
) -> Checkpoint:
    """Open a checkpoint: a file, or the newest sound one of a run's directory.

    step: of a directory's, the one of this step. map_location: where its tensors are put. One of a directory
    that is unsound is passed over with a warning, unless its step was asked for.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            return _from([path], step, map_location)
        kept = checkpoints_in(path)
        steps = kept.steps()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint=ACCESS_HINT) from None
    if not steps:
        raise InputError(
            f"There is no checkpoint in {kept.place}.", hint="A run keeps them where its --checkpoints says."
        )
    if step is not None and step not in steps:
        raise InputError(
            f"There is no checkpoint of step {step} in {kept.place}.",
            hint=f"There are those of {', '.join(map(str, steps))}.",
        )
    wanted = [step] if step is not None else reversed(steps)
    return _from([kept.path(each) for each in wanted], step, map_location)


def checkpoints_in(directory: Path) -> DirectoryCheckpoints:
    """Those of a directory, or of the run whose directory it is."""
    inner = directory / "checkpoints"
    # A reader changes nothing, and has no record to tell of.
    return DirectoryCheckpoints(inner if inner.is_dir() else directory, told=lambda *_, **__: None)


def _from(paths: Iterable[Path], step: int | None, map_location: str | torch.device) -> Checkpoint:
    """Of the first of them that is sound."""
    reasons: list[str] = []
    for path in paths:
        try:
            found = read(path, step, map_location)
        except (OSError, Unsound) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            reasons.append(f"The checkpoint {path} cannot be read: {reason}.")
            continue
        for passed_over in reasons:
            warnings.warn(f"{passed_over} An older one is taken.", stacklevel=3)
        return _checkpoint(found)
    raise InputError(reasons[0], hint=LIST_HINT)


def _checkpoint(found: Loaded) -> Checkpoint:
    kept: dict[str, Any] = found.state
    try:
        return Checkpoint(
            step=found.step,
            loss=kept["loss"],
            lanes=kept["lanes"],
            seed=kept["seed"],
            states=dict(zip(kept["names"], kept["state"], strict=True)),
            place=found.place,
            digest=found.digest,
        )
    except KeyError as missing:
        raise InputError(
            f"The checkpoint {found.place} holds no {missing}: an older Holdfast wrote it.",
            hint="Go on with its run for a step, under this Holdfast, and open what that writes.",
        ) from None


HEADER_ALIGNMENT = 8
"""The tensors begin at a multiple of it, so that they can be mapped into memory."""
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def to_torch(checkpoint: Checkpoint, path: Path) -> None:
    """For `torch.load(path, weights_only=True)`: the states by their names, and what is known of the step."""
    known = {name: getattr(checkpoint, name) for name in ("step", "loss", "lanes", "seed", "digest")}
    with whole_file(path) as file:
        torch.save({**checkpoint.states, **known}, file)


def to_safetensors(checkpoint: Checkpoint, path: Path, *, part: str, told: Mapping[str, str]) -> None:
    """The tensors of one part, a model's above all. told: what else goes into the metadata.

    Eight bytes with the length of a JSON header, the header, and the tensors' bytes in row-major order
    (github.com/huggingface/safetensors, "Format"). Tensors that share their memory are written once; which
    name stands for which is in the metadata, as the library's own `save_model` has it.
    """
    tensors, tied = _tensors(checkpoint, part)
    metadata = {"format": "pt", "step": str(checkpoint.step), "digest": checkpoint.digest, **told, **tied}
    header: dict[str, object] = {"__metadata__": metadata}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % HEADER_ALIGNMENT)
    with whole_file(path) as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


def _tensors(checkpoint: Checkpoint, part: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The largest types first, so that each is aligned; and which names stand for others of them."""
    found: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[tuple[object, ...], str] = {}
    state = checkpoint.states[part]
    for name, value in (state[WEIGHTS] if part == "best" else state).items():
        if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES:
            kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(
                f"{part}: {name} is a {kind}, which a safetensors file cannot hold.",
                hint="Export to a file that ends in .pt, which can hold all of it.",
            )
        identity = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and identity in names:
            tied[name] = names[identity]
            continue
        names[identity] = name
        found[name] = value
    return dict(sorted(found.items(), key=lambda item: -item[1].element_size())), tied
