"""Checkpoints for people: opens what a run kept, in any Python process without the run, and exports it.

Nothing in a checkpoint is executed: it holds tensors, numbers and strings, and is accepted only if its hashes
match.
"""

import contextlib
import hashlib
import secrets
import shlex
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.record.files import is_there
from holdfast.train.best import WEIGHTS
from holdfast.train.checkpoint import LOOKS_MAX, Loaded, read
from holdfast.train.chunks import DamagedCheckpoints, Unsound
from holdfast.train.copying import copy_newest
from holdfast.train.fetched import passing, troubles_told
from holdfast.train.kept import ACCESS_HINT, VERIFY_HINT, KeptStep, kept_steps, root_of
from holdfast.train.parts import joined_stages
from holdfast.train.place import DirectoryStorage, Storage
from holdfast.train.places import is_url, opened_place
from holdfast.train.whole_file import whole_file


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run after a step.

    loss: of that step. states: the state_dict() of everything that was given to protect(), in that order.
    Names are `model`, `average` (an `AveragedModel`), `optimizer`, `scheduler`, `scaler`, `best`, and for
    anything else its class; several of a kind are `model_0`, `model_1`. threads: the number that torch was
    told to use; None if unknown. place: its manifest. digest: of the state.
    """

    step: int
    loss: float | None
    lanes: int
    seed: int
    states: dict[str, dict[str, Any]]
    place: str
    digest: str
    threads: int | None = None

    @property
    def model(self) -> dict[str, Any]:
        """For `model.load_state_dict()`; only if exactly one model was protected."""
        return self._only("model")

    @property
    def optimizer(self) -> dict[str, Any]:
        """For `optimizer.load_state_dict()`; only if exactly one was protected."""
        return self._only("optimizer")

    def _only(self, name: str) -> dict[str, Any]:
        if name not in self.states:
            raise InputError(
                f"The checkpoint {self.place} has no part named {name!r}.",
                hint=f"Take one of these from .states: {', '.join(self.states)}.",
            )
        return self.states[name]


def load_checkpoint(
    path: Path | str, *, step: int | None = None, map_location: str | torch.device = "cpu"
) -> Checkpoint:
    """Open a checkpoint: a file, or the newest sound one of a run's directory or of s3://BUCKET/PREFIX. The
    last is first fetched into the directory for temporary files, and removed from there before this returns.

    step: choose the directory's checkpoint of this step. map_location: where its tensors are put. A damaged
    checkpoint in a directory is skipped with a warning, unless its step was requested.
    """
    if isinstance(path, str) and is_url(path):
        place = opened_place(path)
        with passing(Path(tempfile.gettempdir())) as directory:
            return load_fetched(
                place, directory, step, lambda said: warnings.warn(said, stacklevel=5), map_location
            )
    path = Path(path)
    for _ in range(LOOKS_MAX - 1):
        with contextlib.suppress(_Removed):  # its run removed it as old while it was read
            return _loaded(path, step, map_location)
    return _loaded(path, step, map_location)


def load_fetched(
    place: Storage,
    directory: Path,
    step: int | None,
    say: Callable[[str], None],
    map_location: str | torch.device = "cpu",
) -> Checkpoint:
    """Open the newest sound checkpoint of a place, or that of a step. It is fetched into an empty directory
    of this machine. say: reports skipped ones.
    """
    here = DirectoryStorage(directory)
    with troubles_told(place, here):
        kept, _ = copy_newest(place, step, here, say)
    found = load_checkpoint(directory, map_location=map_location)
    return msgspec.structs.replace(found, place=f"{place.name}/{kept.pattern}")


def _loaded(path: Path, step: int | None, map_location: str | torch.device) -> Checkpoint:
    try:
        if not path.is_dir():
            return _checkpoint(_first_sound([_File(path)], step, map_location))
        root = root_of(path)
        found = kept_steps(root)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint=ACCESS_HINT) from None
    if not found:
        raise InputError(
            f"There is no checkpoint in {root}.", hint="A run keeps them where its --checkpoints says."
        )
    steps = sorted({kept.step for kept in found})
    if step is not None and step not in steps:
        raise InputError(
            f"There is no checkpoint of step {step} in {root}.",
            hint=f"Available steps: {', '.join(map(str, steps))}.",
        )
    # An incomplete checkpoint is still being written, or its writers died.
    asked_for = [kept for kept in reversed(found) if step is None or kept.step == step]
    wanted = [kept for kept in asked_for if kept.is_complete] or asked_for
    return _checkpoint(_first_sound(wanted, step, map_location))


class _Removed(Exception):
    """A checkpoint no longer exists."""


class _File(msgspec.Struct, frozen=True):
    """A file that the caller named."""

    path: Path

    @property
    def place(self) -> str:
        return str(self.path)


def _first_sound(
    all_kept: Sequence[_File | KeptStep], step: int | None, map_location: str | torch.device
) -> Loaded:
    reasons: list[str] = []
    is_damaged = False
    for kept in all_kept:
        try:
            found = _opened(kept, step, map_location)
        except (OSError, Unsound) as error:
            if isinstance(kept, KeptStep) and kept.is_complete and not all(map(is_there, kept.paths)):
                raise _Removed from None
            reason = error.strerror if isinstance(error, OSError) else str(error)
            is_damaged = isinstance(error, Unsound) if not reasons else is_damaged
            reasons.append(f"The checkpoint {kept.place} cannot be read: {reason}.")
            continue
        for passed_over in reasons:
            warnings.warn(f"{passed_over} Using an older one.", stacklevel=3)
        return found
    first = all_kept[0]
    folder = first.path.parent if isinstance(first, _File) else first.paths[0].parents[first.ranks > 1]
    kind = DamagedCheckpoints if is_damaged else InputError
    raise kind(reasons[0], hint=VERIFY_HINT.format(shlex.quote(str(folder))))


def _opened(kept: _File | KeptStep, step: int | None, map_location: str | torch.device) -> Loaded:
    if isinstance(kept, _File):
        found = read(kept.path, step, map_location)
        if "shards" in found.state:
            raise InputError(
                f"The checkpoint {kept.place} is one rank's part of a sharded state.",
                hint="Name the directory that has the folders of all ranks.",
            )
        return found
    if kept.ranks == 1:
        return read(kept.paths[0], kept.step, map_location)
    if missing := kept.missing:
        raise Unsound(missing)
    whole = joined_stages(kept, lambda *_: None, lambda mesh: range(mesh.size("pp")), map_location)
    return whole[0] if len(whole) == 1 else _with_all_stages(whole)


def _with_all_stages(stages: Sequence[Loaded]) -> Loaded:
    """Merge the states of pipeline stages if their names differ; otherwise add each stage's number to the
    name.
    """
    states: dict[str, object] = {}
    for name, *of_stages in zip(*_columns(stages), strict=True):
        merged = {key: value for state in of_stages for key, value in state.items()}
        if len(merged) == sum(map(len, of_stages)):
            states[name] = merged
        else:
            states |= {f"{name}.pp{number}": state for number, state in enumerate(of_stages)}
    first = stages[0]
    return Loaded(
        step=first.step,
        state={**first.state, "names": list(states), "state": list(states.values())},
        place=first.place,
        digest=hashlib.sha256("".join(stage.digest for stage in stages).encode()).hexdigest(),
    )


def _columns(stages: Sequence[Loaded]) -> list[Any]:
    """The names of the protected things, and each stage's states."""
    return [stages[0].state.get("names", ()), *(stage.state["state"] for stage in stages)]


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
            threads=kept.get("threads"),
        )
    except KeyError as missing:
        raise InputError(
            f"The checkpoint {found.place} lacks {missing}: an older version of Holdfast wrote it.",
            hint="Continue its run for a step with this version, and open the checkpoint that it writes.",
        ) from None


KNOWN = ("step", "loss", "lanes", "seed", "threads", "digest")
"""Exported beside the states."""
HEADER_ALIGNMENT = 8
"""The tensors begin at a multiple of this, so that they can be mapped into memory."""
DTYPES_OF_SAFETENSORS = {
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
    """Export for `torch.load(path, weights_only=True)`: the states by name, and what is known of the step."""
    with whole_file(path) as file:
        torch.save(_named(checkpoint), file)


def to_dcp(checkpoint: Checkpoint, directory: Path) -> None:
    """Export for `torch.distributed.checkpoint.load`, with torch's own writer: the same contents as
    `to_torch`, under names such as `model.layers.0.weight`. directory: must be empty or not exist.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} is not an empty directory.", hint="Name one that does not exist yet.")
    part = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}.part")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is one process
            save(_named(checkpoint), checkpoint_id=part, no_dist=True)
        part.rename(directory)
    except OSError as error:
        raise InputError(
            f"Cannot write {directory}: {error.strerror}.",
            hint="Name a place with room that this user may write.",
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _named(checkpoint: Checkpoint) -> dict[str, Any]:
    known = {name: getattr(checkpoint, name) for name in KNOWN}
    return {**checkpoint.states, **{name: value for name, value in known.items() if value is not None}}


def to_safetensors(checkpoint: Checkpoint, path: Path, *, part: str, told: Mapping[str, str]) -> None:
    """Export the tensors of one part, usually a model's. told: additional metadata.

    The file has eight bytes with the length of a JSON header, the header, and the tensors' bytes in row-major
    order (github.com/huggingface/safetensors, "Format"). Tensors that share their memory are written once.
    The metadata say which name stands for which, as the library's own `save_model` does.
    """
    tensors, tied = _tensors(checkpoint, part)
    metadata = {"format": "pt", "step": str(checkpoint.step), "digest": checkpoint.digest, **told, **tied}
    header: dict[str, object] = {"__metadata__": metadata}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES_OF_SAFETENSORS[tensor.dtype],
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
    """The tensors with the largest types first, so that each is aligned; and the names that
    stand for others.
    """
    found: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[tuple[object, ...], str] = {}
    state = checkpoint.states[part]
    for name, value in (state[WEIGHTS] if part == "best" else state).items():
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES_OF_SAFETENSORS:
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
