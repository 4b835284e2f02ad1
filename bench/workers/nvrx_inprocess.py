"""Peer: DDP inside nvidia-resiliency-ext's in-process restart, with a reserve rank, and a checkpoint a step.

A fault restarts the wrapped function in the processes that are left, and a reserve rank takes the lost one's
place. The library cannot wake a rank that waits in gloo for a living one, so the group's timeout bounds the
recovery; a shorter one than here interrupts the first steps after it and costs a further restart.
"""

import os
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from model import batch, build
from progress import CommitLog, Task, load, save, task

inprocess = import_module("nvidia_resiliency_ext.inprocess")
import_module("torch._dynamo")  # DDP would do so in the first step; interrupted there, it stays half a module

GROUP_TIMEOUT = timedelta(seconds=1)
STORE_PORT = "BENCH_STORE_PORT"


def wrapped(given: Task, commits: CommitLog, store: Any) -> Any:
    """The training function with the library around it, at the shortest intervals that it survives here."""

    @inprocess.Wrapper(  # type: ignore[untyped-decorator]
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(given.members), inprocess.rank_assignment.FillGaps()
        ),
        monitor_thread_interval=timedelta(milliseconds=50),
        monitor_process_interval=timedelta(milliseconds=50),
        progress_watchdog_interval=timedelta(milliseconds=100),
        last_call_wait=timedelta(milliseconds=10),
        heartbeat_interval=timedelta(milliseconds=500),
        heartbeat_timeout=timedelta(seconds=10),
    )
    def train(call: inprocess.CallWrapper = None) -> None:  # type: ignore[name-defined]
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        keys = PrefixStore(f"restart {call.iteration}", store)
        dist.init_process_group("gloo", store=keys, rank=rank, world_size=world, timeout=GROUP_TIMEOUT)
        model, optimizer = build()
        step = load(given.folder, model, optimizer)
        replica = DistributedDataParallel(model)
        while step < given.steps:
            step += 1
            optimizer.zero_grad()
            replica(*batch(step, rank, world)).backward()
            optimizer.step()
            if rank == 0:
                save(given.folder, step, model, optimizer)
            commits.add(step, world)
        dist.destroy_process_group()

    return train


def main() -> None:
    given = task()
    port, holds_it = int(os.environ[STORE_PORT]), os.environ["RANK"] == "0"
    store = TCPStore("127.0.0.1", port, is_master=holds_it, wait_for_workers=False)
    wrapped(given, CommitLog(given.folder), store)()


if __name__ == "__main__":
    main()
