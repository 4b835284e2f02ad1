"""A process that trains a GPT and takes snapshots of it, as a member does, and another one that restores it.

Writes down the figures of `holdfast bench snapshot`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gpu_model import SIZES, Size, build, device_here, rows, wait
from holdfast.run import memory
from holdfast.run.memory import HeldMemory
from holdfast.train.manifest import lay_out, size_of
from holdfast.train.manifest_file import Share
from holdfast.train.protected import Protected
from holdfast.train.snapshots import MemorySnapshots

SAMPLES = 20
"""Of 1,024 tokens: a step takes about as long as one of a large run's."""
WARM_STEPS = 3
EVERY = 10
COPY_BYTES = 2 << 30
COPY_BYTES_CPU = 64 << 20
COPIES = 3
POLL_S = 0.005


class Deaf:
    """Hears only what went wrong."""

    def kept(self, step: int, stall_ns: int, size_bytes: int) -> None:
        """It is whole."""

    def failed(self, step: int, place: str, reason: str) -> None:
        raise SystemExit(f"{place}: {reason}")


class Trainer:
    """Plain steps, and what a snapshot has to know of them."""

    def __init__(self, size: Size, device: torch.device, held: memory.SlotFiles) -> None:
        self.device = device
        self._size = size
        self.model, self.optimizer = build(size, device)
        self._protected = Protected([self.model, self.optimizer])
        self.snapshots = MemorySnapshots(held, 0, node="n0", device=device, told=Deaf(), every=EVERY)
        self._step = 0

    def state(self) -> dict[str, object]:
        return {"version": self._step, "state": self._protected.tree()}

    def put_back(self, state: dict[str, Any]) -> None:
        self._protected.put_back(state["state"])

    def step(self) -> float:
        """Seconds of forward and backward, as the host sees them unless it waits."""
        self._step += 1
        begun = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        self.model(rows(self._size, self._step, 0, self.device)).backward()
        passed = time.perf_counter() - begun
        self.snapshots.hold_back()
        self.optimizer.step()
        return passed

    def snap(self) -> float:
        """Seconds that the host waited."""
        return self.snapshots.take(self._step, self.state(), Share(0, 1, "bench")) / 1e9

    def until_whole(self) -> None:
        while self.snapshots.is_busy:
            time.sleep(POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--size", default="")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--restore", action="store_true")
    given = parser.parse_args()
    device = device_here()
    size = SIZES[given.size or ("1.3b" if device.type == "cuda" else "small")]
    if device.type == "cuda" and not given.size:
        size = replace(size, context=1024, samples=SAMPLES)
    found = restore(size, device) if given.restore else measure(given, size, device)
    given.result.write_text(json.dumps(found))


def measure(given: argparse.Namespace, size: Size, device: torch.device) -> dict[str, Any]:
    held = HeldMemory(1)
    trainer = Trainer(size, device, held.slots)
    for _ in range(WARM_STEPS):
        trainer.step()
    wait(device)
    state_bytes = size_of(trainer.state())
    out_s, in_s = (seconds * state_bytes for seconds in plain_copies(device))
    trainer.snap()  # makes the memory ready
    trainer.until_whole()
    alone_s = min(alone(trainer) for _ in range(COPIES))
    passes_s = median(passes(trainer) for _ in range(EVERY))
    turns = [(steps(trainer, snapped=False), steps(trainer, snapped=True)) for _ in range(given.rounds)]
    extra_s = median(snapped - plain for plain, snapped in turns)
    plain_s = median(plain for plain, _ in turns)
    forced_s = max(0.0, alone_s - passes_s) if device.type == "cuda" else out_s
    begun = time.perf_counter()
    trainer.snap()
    trainer.until_whole()
    whole_s = time.perf_counter() - begun
    restored = restored_elsewhere(given, held)
    return {
        "stall_ms": 1e3 * (extra_s - forced_s),
        "d2h_ratio": out_s / alone_s,
        "h2d_ratio": in_s / restored["used_s"],
        "overhead_ratio": extra_s / plain_s,
        "torch_save_stall_s": torch_save_s(trainer, given.directory / "all.pt"),
        "dcp_async_stall_s": dcp_async_s(trainer, given.directory),
        "host_bytes": trainer.snapshots.host_bytes,
        "state_bytes": state_bytes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "step_s": plain_s / EVERY,
        "copy_s": alone_s,
        "forced_s": forced_s,
        "whole_s": whole_s,
        **{name: value for name, value in restored.items() if name != "used_s"},
    }


def plain_copies(device: torch.device) -> tuple[float, float]:
    """Seconds a byte, from the device to pinned memory and back; on a CPU from memory to memory."""
    is_cuda = device.type == "cuda"
    count = COPY_BYTES if is_cuda else COPY_BYTES_CPU
    there = torch.zeros(count, dtype=torch.uint8, device=device)
    here = torch.zeros(count, dtype=torch.uint8, pin_memory=is_cuda)

    def copied(target: Tensor, source: Tensor) -> float:
        return min(timed(device, lambda: target.copy_(source, non_blocking=True)) for _ in range(COPIES))

    return copied(here, there) / count, copied(there, here) / count


def timed(device: torch.device, work: Callable[[], object]) -> float:
    wait(device)
    begun = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begun


def alone(trainer: Trainer) -> float:
    """Seconds of the copy while nothing else happens."""
    wait(trainer.device)
    stalled_s = trainer.snap()
    trainer.until_whole()
    copied_s = trainer.snapshots.copied_s
    return stalled_s if copied_s is None else copied_s


def passes(trainer: Trainer) -> float:
    """Seconds of forward and backward on the device."""
    wait(trainer.device)
    begun = time.perf_counter()
    passed_s = trainer.step()
    wait(trainer.device)
    # On a GPU the host is far ahead: most of the step's time is that of the passes.
    return time.perf_counter() - begun if trainer.device.type == "cuda" else passed_s


def steps(trainer: Trainer, *, snapped: bool) -> float:
    """Seconds of ten steps, with a snapshot before the first or without."""
    trainer.until_whole()

    def work() -> None:
        if snapped:
            trainer.snap()
        for _ in range(EVERY):
            trainer.step()

    return timed(trainer.device, work)


def restored_elsewhere(given: argparse.Namespace, held: HeldMemory) -> dict[str, float]:
    result = given.result.with_name("restored.json")
    words = ("--size", given.size, "--result", str(result), "--restore")
    subprocess.run(
        (sys.executable, __file__, *words),
        env={**os.environ, memory.VARIABLE: held.told},
        pass_fds=held.descriptors,
        check=True,
    )
    found: dict[str, float] = json.loads(result.read_text())
    return found


def restore(size: Size, device: torch.device) -> dict[str, float]:
    trainer = Trainer(size, device, memory.given(os.environ))
    found = trainer.snapshots.newest()
    assert found is not None
    put_back_s = timed(device, lambda: trainer.put_back(found.state))
    times = trainer.snapshots.times
    return {
        "used_s": times.copied_s if device.type == "cuda" else times.compared_s,
        "restore_s": times.whole_s,
        "restore_compare_s": times.compared_s,
        "restore_pin_s": times.pinned_s,
        "restore_copy_s": times.copied_s,
        "restore_put_back_s": put_back_s,
    }


def torch_save_s(trainer: Trainer, path: Path) -> float:
    took_s = timed(trainer.device, lambda: torch.save(trainer.state(), path))
    path.unlink()
    return took_s


def dcp_async_s(trainer: Trainer, directory: Path) -> float:
    """Until it returns: what it has not copied by then must not be changed."""
    from torch import distributed
    from torch.distributed.checkpoint.state_dict_saver import async_save

    distributed.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    tensors = {str(number): tensor for number, tensor in enumerate(lay_out(trainer.state()).tensors)}
    writing: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        took_s = timed(
            trainer.device,
            lambda: writing.append(async_save(tensors, checkpoint_id=str(directory / "dcp"))),
        )
        writing[0].result()
    distributed.destroy_process_group()
    return took_s


if __name__ == "__main__":
    main()
