"""Peer: torchft, a replica group for each process.

Without spares a killed group is started again by its supervisor and healed from a peer's memory, and the
others go on without it meanwhile. With spares, further groups run along and a lost one's part falls to one of
them. torchft's own DDP wrapper dies with an assertion when an operation of gloo fails (0.2.0), so gradients
go through `Manager.allreduce`, in one piece.
"""

import os
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from model import Gpt, batch, build
from progress import CommitLog, Task, task

torchft = import_module("torchft")

OPERATION_TIMEOUT = timedelta(milliseconds=500)
"""Bounds the recovery: a group that waits for a living one is not woken. Several steps long."""
QUORUM_TIMEOUT = timedelta(seconds=60)


def managed_by(given: Task, group: Any, model: Gpt, optimizer: torch.optim.Optimizer, store: Any) -> Any:
    """torchft's manager of this replica group."""

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    modes = torchft.manager.WorldSizeMode
    return torchft.Manager(
        pg=group,
        load_state_dict=load,
        state_dict=state,
        min_replica_size=given.members if given.spares else 1,
        world_size_mode=modes.FIXED_WITH_SPARES if given.spares else modes.DYNAMIC,
        timeout=OPERATION_TIMEOUT,
        quorum_timeout=QUORUM_TIMEOUT,
        heartbeat_interval=timedelta(milliseconds=50),
        init_sync=False,  # every process builds the same bits
        replica_id=f"group_{os.environ['REPLICA_GROUP_ID']}",
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        store_addr="127.0.0.1",
        store_port=store.port,
    )


def main() -> None:
    given = task()
    commits = CommitLog(given.folder)
    model, optimizer = build()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = torchft.ProcessGroupGloo(timeout=OPERATION_TIMEOUT)
    manager = managed_by(given, group, model, optimizer, store)
    managed = torchft.Optimizer(manager, optimizer)
    while (step := manager.current_step()) < given.steps:
        managed.zero_grad()
        rank, world = manager.participating_rank() or 0, manager.num_participants()
        model(*batch(step + 1, rank, world)).backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        manager.allreduce(flat).wait()
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
        managed.step()
        if manager.current_step() > step:
            commits.add(step + 1, group.size())
    manager.shutdown()


if __name__ == "__main__":
    main()
