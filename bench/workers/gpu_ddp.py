"""Peer of `holdfast bench gpu`: DDP under `torchrun --max-restarts`, with a checkpoint after every step.

On NCCL where there is a GPU. Ranks share it: each poses as a host of its own, as Holdfast's members do there,
and they exchange through NCCL's sockets on the loopback address.
"""

import argparse
import os
from pathlib import Path

RANK = os.environ.get("RANK", "0")
os.environ.update(NCCL_HOSTID=f"bench-{RANK}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from gpu_model import CLIP_NORM, LANES, SIZES, Size, build, device_here, rows, wait  # noqa: E402
from progress import CommitLog, load, save  # noqa: E402


def share(size: Size, step: int, device: torch.device) -> torch.Tensor:
    """This rank's part of the same batch, in one pass: DDP needs no lanes."""
    rank, each = dist.get_rank(), LANES // dist.get_world_size()
    return torch.cat([rows(size, step, lane, device) for lane in range(rank * each, (rank + 1) * each)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--spares", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=list(SIZES), default="124m")
    given = parser.parse_args()
    size, commits, device = SIZES[given.size], CommitLog(given.folder), device_here()
    is_on_gpu = device.type == "cuda"
    if is_on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if is_on_gpu else "gloo")
    model, optimizer = build(size, device)
    step = load(given.folder, model, optimizer)
    replica = DistributedDataParallel(model, device_ids=[0] if is_on_gpu else None)
    while step < given.steps:
        step += 1
        optimizer.zero_grad()
        replica(share(size, step, device)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        wait(device)
        if dist.get_rank() == 0:
            save(given.folder, step, model, optimizer)
        commits.add(step, dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
