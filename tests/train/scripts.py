"""Small training scripts for members in tests. Each writes what its run came to into a folder.

`<member>.json`: the digest of everything protected, and the loss of every step the member took part in.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast.train as hf

WIDTH = 24
Built = tuple[nn.Module, list[object], dict[str, Any]]
"""A model, what else is protected, and what protect() is told."""


def data(step: int, lane: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step * 1009 + lane)
    return torch.randn(6, WIDTH, generator=generator)


def plain() -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.Tanh(), nn.Dropout(0.2), nn.Linear(48, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    return model, [optimizer, scheduler], {"clip_norm": 0.5}


def batch_norm() -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH))
    return model, [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)], {}


class Gated(nn.Module):
    """Uses one of two branches, by lane, and one never; its head is tied to its stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.stem.weight
        self.left, self.right, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.branch = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.left if self.branch else self.right
        result: torch.Tensor = self.head(torch.tanh(branch(self.stem(x))))
        return result


def tied_and_unused() -> Built:
    model = Gated()
    groups: list[dict[str, Any]] = [
        {"params": [model.stem.weight], "lr": 0.02, "weight_decay": 0.1},
        {"params": [*model.left.parameters(), *model.right.parameters(), *model.never.parameters()]},
    ]
    return model, [torch.optim.AdamW(groups, lr=0.01, weight_decay=0.3)], {}


def accumulating() -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    return model, [optimizer, scheduler], {"accumulate": 2}


def double_and_scaled() -> Built:
    """float64 with a GradScaler, and an average of the weights that is updated at every commit."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)).double()
    average = torch.optim.swa_utils.AveragedModel(model)
    for parameter in average.parameters():
        parameter.requires_grad_(False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, [optimizer, scaler, average], {"on_commit": lambda: average.update_parameters(model)}


def half() -> Built:
    """Parameters in bfloat16, one frozen."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)).bfloat16()
    next(model.parameters()).requires_grad_(False)
    return model, [torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=0.01)], {}


BUILDERS: dict[str, Callable[[], Built]] = {
    builder.__name__: builder
    for builder in (plain, batch_norm, tied_and_unused, accumulating, double_and_scaled, half)
}


def train(build: str, folder: str, steps: int, lanes: int, checkpoint_every: int) -> None:
    """Train, and write down what it came to."""
    if checkpoint_every:
        os.environ["HOLDFAST_CHECKPOINTS"] = f"{folder}/checkpoints"
        os.environ["HOLDFAST_CHECKPOINT_EVERY"] = str(checkpoint_every)
    losses: dict[int, float] = {}
    with hf.join() as run:
        model, others, told = BUILDERS[build]()
        state = run.protect(model, *others, lanes=lanes, seed=1, **told)
        dtype = next(model.parameters()).dtype
        accumulate = told.get("accumulate", 1)
        for step in state.steps(steps):
            for lane in step.lanes:
                if isinstance(model, Gated):
                    model.branch = (lane.index + step.number) % 3 == 0
                x = data(step.number, lane.index).to(dtype)
                with torch.autocast("cpu", torch.bfloat16, enabled=build == "plain"):
                    for part in x.chunk(accumulate):
                        loss = (model(part) - part).float().square().mean() / accumulate
                        lane.backward(loss)
            step.commit()
            losses[step.number] = step.loss
        digest = state.digest()
        text = json.dumps({"digest": digest, "losses": losses})
        path = Path(folder) / f"{os.environ['HOLDFAST_MEMBER']}.json"
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)
