"""`holdfast bench checkpoint`: what it takes to write and to read a checkpoint, on one machine and its disk.

Each figure is a ratio against something that anyone can measure beside it: a plain file of the same bytes,
written from one end to the other and synced, or read after it left the page cache; `torch.save`; and
`torch.distributed.checkpoint`. They take turns, and a ratio is the median over the turns, so that what else
the machine does meets all of them.
"""

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
import torch

from holdfast.cli.record import json_option
from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.chunks import CHUNK_BYTES, FOLDER, name_of

STATE_BYTES = 512 << 20
TURNS = 5
TENSORS = 32
LORA_SHARE = 0.01
"""Of the state, what training with low-rank adapters changes."""
RATIO_MIN = 0.8
BLOCK_BYTES = 1 << 20


class CheckpointBench(msgspec.Struct, frozen=True, kw_only=True):
    """write_ratio, read_ratio      bandwidth of a save until it is durable and read back, and of a load that
                                 compares every byte, by that of a plain file with fsync, and from the disk
    hash_ratio                   bandwidth of the hash on one core, by that of writing the file
    incremental_ratio_lora, _dense
                                 bytes that a save writes where 1 % of the state has changed, and where all
                                 has, by the bytes of the state
    torch_save_ratio, dcp_ratio  time of a save by that of torch.save with fsync, and of DCP's save
    state_bytes                  of the state; seconds are medians
    """

    write_ratio: float
    read_ratio: float
    hash_ratio: float
    incremental_ratio_lora: float
    incremental_ratio_dense: float
    torch_save_ratio: float
    dcp_ratio: float
    state_bytes: int
    save_s: float
    load_s: float
    file_write_s: float
    file_read_s: float
    torch_save_s: float
    dcp_save_s: float


class CheckpointTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one turn."""

    save_s: float
    load_s: float
    file_write_s: float
    file_read_s: float
    torch_save_s: float
    dcp_save_s: float
    hash_s: float


@click.command("checkpoint")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="On the disk to measure.  [default: that of temporary files]",
)
@click.option(
    "--state-mb", type=click.IntRange(min=1), default=STATE_BYTES >> 20, show_default=True, help="In MiB."
)
@json_option
def command(directory: Path | None, state_mb: int, as_json: bool) -> None:
    """Write and read checkpoints: against a plain file, torch.save and DCP; what a small change writes."""
    bench = measure(directory, state_mb << 20)
    click.echo(msgspec.json.format(msgspec.json.encode(bench)).decode() if as_json else table(bench))


def measure(
    directory: Path | None = None, state_bytes: int = STATE_BYTES, turns: int = TURNS
) -> CheckpointBench:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as folder:
        root = Path(folder)
        state = _state(state_bytes)
        found = [_turn(root / str(number), state) for number in range(turns)]
        lora, dense = _written(root / "lora", state, LORA_SHARE), _written(root / "dense", state, 1.0)

    def ratio(of: Callable[[CheckpointTurn], float]) -> float:
        return median(map(of, found))

    return CheckpointBench(
        write_ratio=ratio(lambda one: one.file_write_s / one.save_s),
        read_ratio=ratio(lambda one: one.file_read_s / one.load_s),
        hash_ratio=ratio(lambda one: one.file_write_s / one.hash_s),
        incremental_ratio_lora=lora,
        incremental_ratio_dense=dense,
        torch_save_ratio=ratio(lambda one: one.save_s / one.torch_save_s),
        dcp_ratio=ratio(lambda one: one.save_s / one.dcp_save_s),
        state_bytes=state_bytes,
        save_s=ratio(lambda one: one.save_s),
        load_s=ratio(lambda one: one.load_s),
        file_write_s=ratio(lambda one: one.file_write_s),
        file_read_s=ratio(lambda one: one.file_read_s),
        torch_save_s=ratio(lambda one: one.torch_save_s),
        dcp_save_s=ratio(lambda one: one.dcp_save_s),
    )


def _state(size_bytes: int) -> dict[str, Any]:
    """Tensors without a pattern, none of which is like another."""
    generator = torch.Generator().manual_seed(1)
    count = max(1, size_bytes // 4 // TENSORS)
    return {f"tensor {number}": torch.rand(count, generator=generator) for number in range(TENSORS)}


def _deaf(*_: object, **__: object) -> None:
    """Nobody listens."""


def _turn(folder: Path, state: dict[str, torch.Tensor]) -> CheckpointTurn:
    folder.mkdir()
    kept = DirectoryCheckpoints(folder / "kept", told=_deaf)
    plain = folder / "plain"
    memories = [memoryview(tensor.view(torch.uint8).numpy()) for tensor in state.values()]
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
    return CheckpointTurn(
        save_s=save_s,
        load_s=load_s,
        file_write_s=file_write_s,
        file_read_s=file_read_s,
        torch_save_s=torch_save_s,
        dcp_save_s=dcp_save_s,
        hash_s=hash_s,
    )


def _seconds(work: Callable[[], object]) -> float:
    os.sync()  # what was before is not to be waited for in it
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
    """All of it into memory, as who wants to use it does."""
    memory = memoryview(torch.empty(path.stat().st_size, dtype=torch.uint8).numpy())
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
    """Of the state, what the fourth save writes, where such a share has changed before each."""
    kept = DirectoryCheckpoints(folder, told=_deaf)
    changing = {name: tensor.clone() for name, tensor in state.items()}
    for step in range(1, 5):
        saved = kept.save(step, changing)
        left = round(share * sum(tensor.numel() for tensor in changing.values()))
        for tensor in changing.values():
            tensor[:left] += 1
            left = max(0, left - tensor.numel())
    return saved.written_bytes / saved.size_bytes


def table(bench: CheckpointBench) -> str:
    """The result for people, a ratio a line."""
    wanted = f"at least {RATIO_MIN} wanted"
    rows = (
        ("write : plain file's", bench.write_ratio, f"until durable and read back; {wanted}"),
        ("read : plain file's", bench.read_ratio, f"every byte compared; {wanted}"),
        ("hash : plain write's", bench.hash_ratio, "bandwidth on one core"),
        ("written, 1 % changed", bench.incremental_ratio_lora, "of the state"),
        ("written, all changed", bench.incremental_ratio_dense, "of the state"),
        ("time : torch.save's", bench.torch_save_ratio, "with fsync, which torch.save does not do"),
        ("time : DCP's", bench.dcp_ratio, "in one process"),
    )
    lines = [f"{name:<24}{ratio:>8.3f}   {note}" for name, ratio, note in rows]
    return "\n".join([f"a state of {bench.state_bytes / 1e6:,.0f} MB", *lines])
