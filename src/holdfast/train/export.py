"""A checkpoint's states as files that other programs open: safetensors, or what `torch.load` takes.

A safetensors file is eight bytes with the length of a JSON header, the header, and the tensors' bytes in
row-major order (github.com/huggingface/safetensors, "Format"). Tensors that share their memory are written
once; which name stands for which is in the header's metadata, as the library's own `save_model` has it.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.train.best import WEIGHTS
from holdfast.train.opening import Checkpoint
from holdfast.train.whole_file import whole_file

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
    known = {
        "step": checkpoint.step,
        "loss": checkpoint.loss,
        "lanes": checkpoint.lanes,
        "seed": checkpoint.seed,
        "digest": checkpoint.digest,
    }
    with whole_file(path) as file:
        torch.save({**checkpoint.states, **known}, file)


def to_safetensors(checkpoint: Checkpoint, path: Path, *, part: str, told: Mapping[str, str]) -> None:
    """The tensors of one part, a model's above all. told: what else goes into the metadata."""
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
