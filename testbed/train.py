"""What the testbed trains: a small model by `holdfast run`, whose software faults can be switched on.

Samples are read from the mount without the page cache. Where a directory of faults has a file `loader`, every
member's loader stalls; with a file `gc`, members collect garbage in turn, a second each.
"""

import argparse
import gc
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
KERNELS_S = 0.04
"""Of every lane, in the place of kernels on a GPU: the member waits, and its processor does not."""
LOADER_STALL_S = 0.04
"""Of every sample."""
REPEATS = 32
"""Of every batch, so that a lane takes some ten milliseconds of a processor."""
GARBAGE_OBJECTS = 100_000


class Samples:
    """A file as samples of one size, read from the device each time."""

    def __init__(self, path: Path, faults: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._count = path.stat().st_size // SAMPLE_BYTES
        self._stall = faults / "loader"

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._stall.exists():
            time.sleep(LOADER_STALL_S)
        with mmap.mmap(-1, SAMPLE_BYTES) as buffer:  # aligned, as O_DIRECT wants it
            os.preadv(self._descriptor, [buffer], index * SAMPLE_BYTES)
            return torch.tensor(bytearray(buffer[:WIDTH]), dtype=torch.float32) / 255


def make_garbage() -> None:
    """Objects that only the collector can get rid of."""
    for _ in range(GARBAGE_OBJECTS):
        knot: list[object] = []
        knot.append(knot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--faults", type=Path, required=True)
    given = parser.parse_args()
    with hf.join() as run:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        state = run.protect(model, optimizer, lanes=LANES, seed=1)
        data = MapData(Samples(given.samples, given.faults), batch_size=BATCH)
        number = int(run.member.partition(".")[0].removeprefix("n"))
        collects = given.faults / "gc"
        for step in state.steps(STEPS):
            for lane in step.lanes:
                batch = data(lane)
                time.sleep(KERNELS_S)
                inputs = batch.repeat(REPEATS, 1)
                lane.backward((model(inputs) - inputs).square().mean())
                if int(time.time()) % LANES == number and collects.exists():
                    make_garbage()
                    gc.collect()
            step.commit()


if __name__ == "__main__":
    main()
