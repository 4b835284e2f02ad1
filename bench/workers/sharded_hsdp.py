"""Peer of `holdfast bench sharded`: the same GPT under torchrun, with HSDP or FSDP2.

HSDP is `fully_shard` over a mesh of two dimensions, FSDP2 over one. Without `--turns` it writes a checkpoint
with torch.distributed.checkpoint after every step, from which `torchrun --max-restarts` goes on. Ranks that
share a GPU pose as hosts of their own, as Holdfast's members do there.
"""

import argparse
import os
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

RANK = os.environ.get("RANK", "0")
os.environ.update(NCCL_HOSTID=f"bench-{RANK}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.utils.deterministic as deterministic  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import save  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from gpu_model import CLIP_NORM, SIZES, device_here, rows, wait  # noqa: E402
from progress import CommitLog  # noqa: E402
from sharded_model import Meter, build_sharded, rank_here, shard_bytes  # noqa: E402
from turns import WARM_UP_STEPS, Turns  # noqa: E402

NEWEST = "newest"
KEPT = 2
"""Checkpoints: the newest, and the one before it while that is written."""


class Rank:
    """One process of the run, with its part of the model."""

    def __init__(self, given: argparse.Namespace, device: torch.device) -> None:
        world = dist.get_world_size()
        shape = (world // given.shard, given.shard) if world > given.shard else (given.shard,)
        names = ("replicate", "shard")[-len(shape) :]
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        self._size, self._device = SIZES[given.size], device
        self.model, self.optimizer = build_sharded(self._size, device, mesh)

    def make(self, step: int) -> None:
        self.model(rows(self._size, step, dist.get_rank(), self._device)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        wait(self._device)

    def save(self, folder: Path, step: int) -> None:
        """Whole or not at all: the name of the newest is written last."""
        save(self._state(), checkpoint_id=folder / f"step-{step}")
        if dist.get_rank() == 0:
            unfinished = folder / f"{NEWEST}.unfinished"
            unfinished.write_text(str(step), encoding="ascii")
            unfinished.replace(folder / NEWEST)
            rmtree(folder / f"step-{step - KEPT}", ignore_errors=True)

    def load(self, folder: Path) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        if not (folder / NEWEST).exists():
            return 0
        step = int((folder / NEWEST).read_text(encoding="ascii"))
        state = self._state()
        load(state, checkpoint_id=folder / f"step-{step}")
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts)
        return step

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def train(rank: Rank, given: argparse.Namespace) -> None:
    commits, checkpoints = CommitLog(given.folder), given.folder / "checkpoints"
    step = rank.load(checkpoints)
    while step < given.steps:
        step += 1
        rank.make(step)
        rank.save(checkpoints, step)
        commits.add(step, dist.get_world_size())


def take_turns(rank: Rank, meter: Meter, given: argparse.Namespace) -> None:
    turns = Turns(given.folder, given.turns, rank_here())
    for step in range(WARM_UP_STEPS):
        meter.begin_steps()
        rank.make(step)
    turns.tell({"peak_bytes": meter.peak_bytes(), "shard_bytes": shard_bytes(rank.model)})
    for number in count():
        if not turns.await_begin(number):
            return
        for step in range(given.block):
            rank.make(number * given.block + step)
        turns.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--spares", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--shard", type=int, required=True, help="Ranks of a replica.")
    parser.add_argument("--turns", default="", help="Make steps when it is this name's turn.")
    parser.add_argument("--block", type=int, default=1, help="Steps of a turn.")
    given = parser.parse_args()
    device = device_here()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # Holdfast's kernels: what they cost is not what is compared
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    if given.turns:
        meter = Meter(device)
        take_turns(Rank(given, device), meter, given)
    else:
        train(Rank(given, device), given)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
