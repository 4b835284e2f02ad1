"""Plain DDP, what overhead is measured against: no system at all."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from faultkit_model import SAMPLES, build
from model import batch
from progress import CommitLog, task


def main() -> None:
    given = task()
    commits = CommitLog(given.folder)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = build()
    replica = DistributedDataParallel(model)
    for step in range(1, given.steps + 1):
        optimizer.zero_grad()
        replica(*batch(step, rank, world, samples=SAMPLES)).backward()
        optimizer.step()
        commits.add(step, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
