"""Data-parallel training under PyTorch's profiler over gloo: FOLDER. Rank 1 of 3 is slow.

First in the forward pass, in which it computes more, then with its data, for which it sleeps; the traces are
in FOLDER/forward and FOLDER/data. The ranks are forks of one process, so that torch is loaded once.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

RANKS = 3
SLOW = 1
STEPS = 4
EXTRA_S = 0.04


def train(rank: int, folder: Path) -> None:
    where = folder.name
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, acc_events=True) as profiler:
        for _ in range(STEPS + 1):
            with record_function("data"):
                batch = torch.randn(64, 32)
                if where == "data" and rank == SLOW:
                    time.sleep(EXTRA_S)
            with record_function("forward"):
                output = model(batch)
                until = time.monotonic() + (EXTRA_S if where == "forward" and rank == SLOW else 0)
                while time.monotonic() < until:
                    torch.mm(torch.ones(256, 256), torch.ones(256, 256))
            with record_function("backward"):
                output.square().mean().backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"trace-{rank}.json"))


def run(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    for where in ("forward", "data"):
        train(rank, folder / where)
    dist.destroy_process_group()


def main() -> int:
    folder = Path(sys.argv[1])
    children = []
    for rank in range(RANKS):
        if not (child := os.fork()):
            run(rank, folder)
            return 0
        children.append(child)
    return max(os.waitpid(child, 0)[1] for child in children)


if __name__ == "__main__":
    sys.exit(main() and 1)
