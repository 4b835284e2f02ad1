"""Reduce-scatter over the ranks of one replica: run.mesh's, in the order of lanes, and gloo's or NCCL's.

In turn, in the same processes. Rank 0 writes the seconds of each.
"""

import argparse
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

import holdfast.train as hf
from gpu_model import wait

SIZE_BYTES = 64 << 20
"""Of what each rank has; it keeps the sum of its share."""
WARM_UP_ROUNDS = 2
TIMEOUT = timedelta(seconds=60)


def peer(folder: Path, rank: int, size: int, device: torch.device) -> Any:
    """Made directly: the default group is run.mesh's."""
    store = FileStore(str(folder / "store"), size)
    if device.type != "cuda":
        return ProcessGroupGloo(store, rank, size, TIMEOUT)
    return dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())


def reduced_by(group: Any, output: torch.Tensor, source: torch.Tensor) -> None:
    """With the method's name of this torch."""
    way = getattr(group, "reduce_scatter_single", None) or group._reduce_scatter_base
    way(output, source, dist.ReduceScatterOptions()).wait()


def alternate(run: hf.Run, folder: Path, rounds: int) -> list[tuple[float, float]]:
    ours: Any = run.mesh.get_group()
    rank, size, device = ours.rank(), ours.size(), run.device
    theirs = peer(folder, rank, size, device)
    source = torch.full((SIZE_BYTES // 4,), float(rank + 1), device=device)
    output = torch.empty(source.numel() // size, device=device)

    def timed_s(way: Callable[[], None]) -> float:
        theirs.barrier().wait()
        wait(device)
        begun = time.monotonic()
        way()
        wait(device)
        took_s = time.monotonic() - begun
        if not bool((output == size * (size + 1) / 2).all()):
            raise ValueError("the sum is wrong")
        output.zero_()
        return took_s

    pairs = []
    for number in range(WARM_UP_ROUNDS + rounds):
        contest = [lambda: reduced_by(ours, output, source), lambda: reduced_by(theirs, output, source)]
        if number % 2:
            pairs.append((timed_s(contest[0]), timed_s(contest[1])))
        else:
            second_s = timed_s(contest[1])
            pairs.append((timed_s(contest[0]), second_s))
    return pairs[WARM_UP_ROUNDS:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    given = parser.parse_args()
    with hf.join() as run:
        mesh = run.mesh["shard"]
        model = torch.nn.Linear(8, 8).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = run.protect(model, optimizer, lanes=mesh.size(), seed=1)
        for step in state.steps(1):
            pairs = alternate(run, given.folder, given.rounds)
            for lane in step.lanes:
                lane.backward(model(torch.ones(1, 8, device=run.device)).sum())
            step.commit()
    if mesh.get_local_rank() == 0:
        (given.folder / "pairs.json").write_text(json.dumps(pairs), encoding="ascii")


if __name__ == "__main__":
    main()
