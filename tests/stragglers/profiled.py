"""Data-parallel training under PyTorch's profiler over gloo: FOLDER. Rank 1 of 3 is slow.

First in the forward pass, in which it computes more, then with its data, for which it sleeps; the traces are
in FOLDER/forward and FOLDER/data. How slow follows from how long plain steps take here, so that it shows on a
busy machine as well, and is in FOLDER/extra_s. The ranks are forks of one process: torch is loaded once.
"""

import importlib
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
PLAIN_STEPS = 8
EXTRA_S_MIN, EXTRA_S_MAX = 0.4, 3.0
EXTRA_OF_STEP = 5


def data_parallel() -> nn.Module:
    return nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)))


def extra_s() -> float:
    """A multiple of the slowest plain step of any rank, the same for all of them."""
    model, slowest_s = data_parallel(), 0.0
    for step in range(PLAIN_STEPS):
        began = time.monotonic()
        model(torch.randn(64, 32)).square().mean().backward()
        if step:  # the first one sets up what the others find
            slowest_s = max(slowest_s, time.monotonic() - began)
    slowest = torch.tensor(slowest_s, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return min(max(EXTRA_S_MIN, EXTRA_OF_STEP * slowest.item()), EXTRA_S_MAX)


def train(rank: int, folder: Path, extra_s: float) -> None:
    where = folder.name
    model = data_parallel()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, acc_events=True) as profiler:
        for _ in range(STEPS + 1):
            with record_function("data"):
                batch = torch.randn(64, 32)
                if where == "data" and rank == SLOW:
                    time.sleep(extra_s)
            with record_function("forward"):
                output = model(batch)
                until = time.monotonic() + (extra_s if where == "forward" and rank == SLOW else 0)
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
    slow_s = extra_s()
    if rank == SLOW:
        (folder / "extra_s").write_text(str(slow_s), encoding="utf-8")
    for where in ("forward", "data"):
        train(rank, folder / where, slow_s)
    dist.destroy_process_group()


def main() -> int:
    folder = Path(sys.argv[1])
    importlib.import_module("torch._dynamo")  # an optimizer's first step does, which takes as long as torch
    children = []
    for rank in range(RANKS):
        if not (child := os.fork()):
            run(rank, folder)
            return 0
        children.append(child)
    return max(os.waitpid(child, 0)[1] for child in children)


if __name__ == "__main__":
    sys.exit(main() and 1)
