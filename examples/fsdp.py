"""The model sharded by FSDP2: `--shard N` members hold one copy of it together, a replica of N ranks.

holdfast run --nproc-per-node 4 --shard 2 examples/fsdp.py    # two replicas of two ranks each
"""

import sys

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn import Linear, ReLU, Sequential

import holdfast.train as hf

steps = int(sys.argv[1]) if sys.argv[1:] else 1000

with hf.join() as run:
    model = Sequential(Linear(64, 512), ReLU(), Linear(512, 512), ReLU(), Linear(512, 1)).to(run.device)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=run.mesh["shard"])
    fully_shard(model, mesh=run.mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)  # of the sharded parameters
    state = run.protect(model, optimizer, lanes=8, seed=1)
    for step in state.steps(steps):
        for lane in step.lanes:  # this rank's slices of the batch
            x = torch.randn(256, 64, device=run.device)
            lane.backward((model(x) - x.square().mean(1, keepdim=True)).square().mean())
        step.commit()
        if run.is_main and step.number % 50 == 0:
            print(f"step {step.number}: loss {step.loss:.5f}")
