"""Small training scripts for members in tests. Each writes what its run came to into a folder.

`<member>.json`: the digest of everything protected, and the loss of every step the member took part in.
"""

import json
import math
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


def noisy_milestones() -> Built:
    """Draws random numbers when it commits, and has a scheduler whose state holds a Counter."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 8])

    def shake() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)

    return model, [optimizer, scheduler], {"on_commit": shake}


class Tracking(nn.Module):
    """Assigns statistics of its own anew, beside BatchNorm's, and keeps a cache that is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.register_buffer("seen", torch.ones(WIDTH))
        self.register_buffer("cache", torch.zeros(6), persistent=False)
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = 0.9 * self.seen + 0.1 * x.abs().mean(0)
        self.cache = torch.zeros(len(x))
        result: torch.Tensor = self.inner(x) * self.seen
        return result


def averaged_norm() -> Built:
    """An average of a model whose buffers move; the average's own buffers move at each commit."""
    model = Tracking()
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for parameter in average.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    told = {"moving": ["0.seen"], "on_commit": lambda: average.update_parameters(model)}
    return model, [optimizer, average], told


class Overflowing(nn.Module):
    """In some lanes of some steps its loss is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) * (math.inf if x[0, 0] > 1.5 else 1.0)
        return result


def overflowing() -> Built:
    model = Overflowing()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    return model, [torch.optim.Adam(model.parameters(), lr=0.01), scaler], {"clip_norm": 1.0}


class Odd(nn.Module):
    """Parameters that are complex, double, empty, a single number, or not laid out row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.turn = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.linear.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.view(len(x), 3, 2, 4)).reshape(len(x), WIDTH)
        x = (self.turn * self.linear(x)).real * self.scale.float()
        return x + self.shift + self.empty.sum()


def odd() -> Built:
    model = Odd()
    return model, [torch.optim.AdamW(model.parameters(), lr=0.01)], {"clip_norm": 1.0}


def different() -> Built:
    """A model that every process builds otherwise."""
    last = nn.Linear(8, WIDTH)
    with torch.no_grad():
        last.weight[0, 0] = os.getpid()
    model = nn.Sequential(nn.Linear(WIDTH, 8), last)
    return model, [torch.optim.SGD(model.parameters(), lr=0.1)], {}


BUILDERS: dict[str, Callable[[], Built]] = {
    builder.__name__: builder
    for builder in (
        plain,
        batch_norm,
        tied_and_unused,
        accumulating,
        double_and_scaled,
        half,
        noisy_milestones,
        averaged_norm,
        overflowing,
        odd,
        different,
    )
}


def train(build: str, folder: str, steps: int, lanes: int, checkpoint_every: int, stop_after: int) -> None:
    """Train, and write down what it came to. stop_after: the step after which the script has seen enough."""
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
            if step.number == stop_after:
                break
        digest = state.digest()
        text = json.dumps({"digest": digest, "losses": losses})
        path = Path(folder) / f"{os.environ['HOLDFAST_MEMBER']}.json"
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)
