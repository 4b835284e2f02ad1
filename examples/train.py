import sys

import torch
from torch.nn import Linear, ReLU, Sequential

import holdfast.train as hf

steps = int(sys.argv[1]) if sys.argv[1:] else 1500

with hf.join() as run:
    model = Sequential(Linear(64, 512), ReLU(), Linear(512, 1)).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    state = run.protect(model, optimizer, lanes=8, seed=1)
    for step in state.steps(steps):  # goes on where the run is, not at 0
        for lane in step.lanes:  # this member's share of the batch
            x = torch.randn(512, 64, device=run.device)  # the same numbers on every member
            lane.backward((model(x) - x.square().mean(1, keepdim=True)).square().mean())
        step.commit()  # clip, optimizer, scheduler
        if run.is_main and step.number % 50 == 0:
            print(f"step {step.number}: loss {step.loss:.5f}")
