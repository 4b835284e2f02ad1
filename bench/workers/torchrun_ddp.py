"""Peer: DDP under `torchrun --max-restarts`, with a checkpoint after every step."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from model import batch, build
from progress import CommitLog, load, save, task


def main() -> None:
    given = task()
    commits = CommitLog(given.folder)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
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


if __name__ == "__main__":
    main()
