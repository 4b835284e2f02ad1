"""A plain torchrun script, which knows nothing of Holdfast: it saves and finds its checkpoints itself.

holdfast run --nproc-per-node 4 examples/ddp.py    # in place of torchrun; started again if a worker fails
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Linear, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel

steps = int(sys.argv[1]) if sys.argv[1:] else 1500
checkpoint = Path(sys.argv[2] if sys.argv[2:] else "ddp.pt")

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")

torch.manual_seed(1)
model = Sequential(Linear(64, 512), ReLU(), Linear(512, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
done = 0
if checkpoint.exists():
    saved = torch.load(checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["step"]
parallel = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)

for step in range(done + 1, steps + 1):
    torch.manual_seed(step * dist.get_world_size() + rank)  # data of its own on every rank
    x = torch.randn(1024, 64, device=device)
    loss = (parallel(x) - x.square().mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step % 50 == 0 or step == steps):
        print(f"step {step}: loss {loss.item():.5f}")
        part = checkpoint.with_suffix(".part")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, part)
        part.replace(checkpoint)  # so a killed worker leaves the old one or the new one

dist.destroy_process_group()
