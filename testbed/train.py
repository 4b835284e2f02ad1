"""What the testbed trains: a small model by `holdfast run`, whose software faults can be switched on.

A member reads samples from the mount without the page cache and keeps the newest on the disk of its node. It
also looks up a table that is mapped from there. How long kernels take is up to the installed software.

Files in a directory of faults switch them on: with `loader`, every member's loader stalls; with `gc`, members
collect garbage in turn, a second each; with `hang`, the member on the node that the file names stands still.
"""

import argparse
import contextlib
import errno
import gc
import json
import mmap
import os
import time
from pathlib import Path

import torch
from torch import nn

import holdfast.train as hf
from holdfast.train.data import MapData

WIDTH = 512
SAMPLE_BYTES = 64 << 10
BATCH = 4
LANES = 4
STEPS = 1_000_000
"""More than there is time for: the testbed ends the run."""
LOADER_STALL_S = 0.04
"""Of every sample."""
REPEATS = 32
"""Of every batch, so that a lane takes some ten milliseconds of a processor."""
GARBAGE_OBJECTS = 100_000
LOOKUPS = 1000
"""Of a lane, each in a page of its own."""
SPOOLED = 64
FULL_TRIES, FULL_PAUSE_S = 4, 0.01
"""How often and after which pause a sample is tried again for which the disk has no room."""
POLL_S = 0.05


class Samples:
    """A file as samples of one size, read from the device each time."""

    def __init__(self, path: Path, faults: Path, spool: "Spool") -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._count = path.stat().st_size // SAMPLE_BYTES
        self._stall = faults / "loader"
        self._spool = spool

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._stall.exists():
            time.sleep(LOADER_STALL_S)
        with mmap.mmap(-1, SAMPLE_BYTES) as buffer:  # aligned, as O_DIRECT wants it
            os.preadv(self._descriptor, [buffer], index * SAMPLE_BYTES)
            self._spool.keep(buffer[:])
            return torch.tensor(bytearray(buffer[:WIDTH]), dtype=torch.float32) / 255


class Spool:
    """The newest samples on the node's own disk. If that is full, tries again, and then does without."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0

    def keep(self, sample: bytes) -> None:
        for _ in range(FULL_TRIES):
            try:
                self._write(sample)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                time.sleep(FULL_PAUSE_S)
            else:
                return

    def _write(self, sample: bytes) -> None:
        file = self._folder / str(self._next)
        try:
            file.write_bytes(sample)
        except OSError:
            file.unlink(missing_ok=True)
            raise
        (self._folder / str(self._next - SPOOLED)).unlink(missing_ok=True)
        self._next += 1


class Table:
    """A file that is mapped and looked up here and there."""

    def __init__(self, path: Path) -> None:
        path.read_bytes()  # from now on it is in memory, for as long as there is enough
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._pages = len(self._mapped) // mmap.PAGESIZE

    def look_up(self, lane: hf.Lane) -> float:
        random = torch.Generator().manual_seed(lane.step * LANES + lane.index)
        pages = torch.randint(self._pages, (LOOKUPS,), generator=random)
        return float(sum(self._mapped[page * mmap.PAGESIZE] for page in pages.tolist()))


def wait_for_kernels(software: Path) -> None:
    """In the place of kernels on a GPU: the member waits, and its processor does not."""
    time.sleep(json.loads(software.read_bytes())["kernels_s"])


def hang(file: Path, node: str) -> None:
    """Stand still, if it is this node's turn."""
    with contextlib.suppress(FileNotFoundError):
        while file.read_text(encoding="ascii") == node:
            time.sleep(POLL_S)


def make_garbage() -> None:
    """Objects that only the collector can get rid of."""
    for _ in range(GARBAGE_OBJECTS):
        knot: list[object] = []
        knot.append(knot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--faults", type=Path, required=True)
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--software", type=Path, required=True)
    given = parser.parse_args()
    with hf.join() as run:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        state = run.protect(model, optimizer, lanes=LANES, seed=1)
        samples = Samples(given.samples, given.faults, Spool(given.spool))
        data = MapData(samples, batch_size=BATCH)
        table = Table(given.table)
        node = run.member.partition(".")[0]
        number = int(node.removeprefix("n"))
        collects = given.faults / "gc"
        for step in state.steps(STEPS):
            for lane in step.lanes:
                batch = data(lane)
                hang(given.faults / "hang", node)
                wait_for_kernels(given.software)
                inputs = batch.repeat(REPEATS, 1) + table.look_up(lane)
                lane.backward((model(inputs) - inputs).square().mean())
                if int(time.time()) % LANES == number and collects.exists():
                    make_garbage()
                    gc.collect()
            step.commit()


if __name__ == "__main__":
    main()
