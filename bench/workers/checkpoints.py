"""One process that writes and reads checkpoints, and beside them what they are held against, by turns.

Writes down the seconds of each turn, and what saves after a change wrote.
"""

import argparse
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.chunks import CHUNK_BYTES, FOLDER, name_of
from holdfast.train.manifest import memory_of

TENSORS = 32
LORA_SHARE = 0.01
"""Of the state, what training with low-rank adapters changes."""
BLOCK_BYTES = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--state-bytes", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    state = _state(given.state_bytes)
    found = {
        "turns": [_turn(given.directory / str(number), state) for number in range(given.turns)],
        "lora": _written(given.directory / "lora", state, LORA_SHARE),
        "dense": _written(given.directory / "dense", state, 1.0),
    }
    given.result.write_text(json.dumps(found))


def _state(size_bytes: int) -> dict[str, torch.Tensor]:
    """Tensors without a pattern, none of which is like another."""
    generator = torch.Generator().manual_seed(1)
    count = max(1, size_bytes // 4 // TENSORS)
    return {f"tensor {number}": torch.rand(count, generator=generator) for number in range(TENSORS)}


def _deaf(*_: object, **__: object) -> None:
    """Ignore the message."""


def _turn(folder: Path, state: dict[str, torch.Tensor]) -> dict[str, float]:
    folder.mkdir()
    kept = DirectoryCheckpoints(folder / "kept", told=_deaf)
    plain = folder / "plain"
    memories = [memory_of(tensor) for tensor in state.values()]
    file_write_s = _seconds(lambda: _write(plain, memories))
    save_s = _seconds(lambda: kept.save(1, state))
    torch_save_s = _seconds(lambda: _torch_save(state, folder / "all.pt"))
    dcp_save_s = _seconds(lambda: _dcp_save(state, folder / "dcp"))
    hash_s = _seconds(lambda: [name_of(chunk) for memory in memories for chunk in _cut(memory, CHUNK_BYTES)])
    packs = list((folder / "kept" / FOLDER).glob("*.pack"))
    _forget(plain, *packs)
    file_read_s = _seconds(lambda: _read(plain))
    load_s = _seconds(kept.newest)
    shutil.rmtree(folder)
    return {
        "save_s": save_s,
        "load_s": load_s,
        "file_write_s": file_write_s,
        "file_read_s": file_read_s,
        "torch_save_s": torch_save_s,
        "dcp_save_s": dcp_save_s,
        "hash_s": hash_s,
    }


def _seconds(work: Callable[[], object]) -> float:
    os.sync()  # so that the timing does not wait for earlier writes
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _cut(memory: memoryview, size: int) -> list[memoryview]:
    return [memory[begin : begin + size] for begin in range(0, len(memory), size)]


def _write(path: Path, memories: list[memoryview]) -> None:
    with path.open("wb", buffering=0) as file:
        for memory in memories:
            for block in _cut(memory, BLOCK_BYTES):
                file.write(block)
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    """Read the whole file into memory, as a user of it does."""
    memory = memory_of(torch.empty(path.stat().st_size, dtype=torch.uint8))
    with path.open("rb", buffering=0) as file:
        for block in _cut(memory, BLOCK_BYTES):
            file.readinto(block)


def _forget(*paths: Path) -> None:
    """What is read next comes from the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _torch_save(state: dict[str, torch.Tensor], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _dcp_save(state: dict[str, torch.Tensor], directory: Path) -> None:
    """Syncs its files by itself."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(dict(state), checkpoint_id=directory, no_dist=True)


def _written(folder: Path, state: dict[str, torch.Tensor], share: float) -> float:
    """The share of the state that the fourth save writes, if this share changes before each save."""
    kept = DirectoryCheckpoints(folder, told=_deaf)
    changing = {name: tensor.clone() for name, tensor in state.items()}
    for step in range(1, 5):
        saved = kept.save(step, changing)
        left = round(share * sum(tensor.numel() for tensor in changing.values()))
        for tensor in changing.values():
            tensor[:left] += 1
            left = max(0, left - tensor.numel())
    return saved.written_bytes / saved.size_bytes


if __name__ == "__main__":
    main()
