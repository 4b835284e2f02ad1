"""Models that are sharded over `run.mesh`, built as a script would, and the digest of their results."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import holdfast.train as hf
from holdfast.train.protected import digest

WIDTH = 24
HIDDEN = 37
"""Not a multiple of any number of ranks: parts of a parameter have different sizes, and some are empty."""
Built = tuple[nn.Module, list[object], dict[str, Any]]


class Layer(nn.Module):
    """Has a parameter of one row, of which all ranks but the first have nothing."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        result: torch.Tensor = x + self.gain * self.dropout(self.down(hidden))
        return result


class Stack(nn.Module):
    """Layers one after the other; `twice`: their insides are computed again in the backward pass."""

    def __init__(self, layers: int = 3, *, hidden: int = HIDDEN, twice: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(hidden) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.twice = twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.twice else layer(x)
        result: torch.Tensor = self.head(x)
        return result


def shard(run: hf.Run, model: Stack, **told: Any) -> None:
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh["shard"], **told)
    fully_shard(model, mesh=run.mesh["shard"], **told)


def with_adamw(model: nn.Module, **told: Any) -> Built:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **told)
    return model, [optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.9)], {"clip_norm": 0.5}


def sharded(run: hf.Run) -> Built:
    model = Stack()
    shard(run, model)
    return with_adamw(model)


def unsharded(run: hf.Run) -> Built:
    return with_adamw(Stack())


def sharded_twice(run: hf.Run) -> Built:
    """Activation checkpointing, with parameters that stay whole after the forward pass. No fused optimizer:
    on CPUs its rounding depends on where a shard ends.
    """
    model = Stack(twice=True)
    shard(run, model, reshard_after_forward=False)
    return with_adamw(model)


def sharded_half(run: hf.Run) -> Built:
    model = Stack()
    shard(run, model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return with_adamw(model)


def sharded_in_part(run: hf.Run) -> Built:
    """The head is on every rank, whole, and tied to nothing; two groups of parameters."""
    model = Stack()
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh["shard"])
    groups: list[dict[str, Any]] = [
        {"params": [*model.layers.parameters()]},
        {"params": [*model.head.parameters()], "lr": 0.02},
    ]
    return model, [torch.optim.AdamW(groups, lr=0.01)], {"clip_norm": 0.5}


def narrow(run: hf.Run) -> Built:
    """As large as the tensor parallel ones."""
    return with_adamw(Stack(hidden=32))


def tensor_parallel(run: hf.Run) -> Built:
    model = Stack(hidden=32)
    for layer in model.layers:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, run.mesh["tp"], plan, src_data_rank=None)
    return with_adamw(model, foreach=False)  # torch allows foreach only for parameters of one kind


def sharded_and_tensor_parallel(run: hf.Run) -> Built:
    model, _, _ = tensor_parallel(run)
    assert isinstance(model, Stack)
    shard(run, model)
    return with_adamw(model)


class Tied(Stack):
    """The head is the transpose of the stem itself: one parameter in two places."""

    def __init__(self) -> None:
        super().__init__(2)
        self.stem = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.stem.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.stem(x))


def sharded_tied(run: hf.Run) -> Built:
    model = Tied()
    shard(run, model)
    return with_adamw(model, foreach=True)


def sharded_accumulating(run: hf.Run) -> Built:
    model, others, told = sharded(run)
    return model, others, {**told, "accumulate": 2}


def sharded_compiled(run: hf.Run) -> Built:
    model = Stack()
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    shard(run, model)
    return with_adamw(model)


def sharded_from_meta(run: hf.Run) -> Built:
    """Built without memory, sharded, and then filled one parameter at a time."""
    with torch.device("meta"):
        model = Stack()
    shard(run, model)
    model.to_empty(device=run.device)
    with torch.no_grad():
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            whole = torch.randn(parameter.shape) / WIDTH
            part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(part.to_local())
    return with_adamw(model)


def sharded_average(run: hf.Run) -> Built:
    """A second, sharded model that follows the first one's weights."""
    model, others, told = sharded(run)
    average = Stack()
    shard(run, average)
    average.requires_grad_(False)

    def follow() -> None:
        for own, other in zip(average.parameters(), model.parameters(), strict=True):
            own.lerp_(other.detach(), 0.1)

    return model, [*others, average], {**told, "on_commit": follow}


def sharded_by_norm(run: hf.Run) -> Built:
    """An optimizer that needs the norm of whole tensors, as LARS and Muon do."""
    model, _, _ = sharded(run)

    class ByNorm(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.div_(parameter.grad.norm().full_tensor())
            return super().step(closure)

    return model, [ByNorm(model.parameters(), lr=0.01)], {}


SHARDED: dict[str, Callable[[hf.Run], Built]] = {
    builder.__name__: builder
    for builder in (
        sharded,
        unsharded,
        narrow,
        sharded_twice,
        sharded_half,
        sharded_in_part,
        sharded_tied,
        sharded_accumulating,
        sharded_compiled,
        sharded_from_meta,
        sharded_average,
        sharded_by_norm,
        tensor_parallel,
        sharded_and_tensor_parallel,
    )
}


def whole_digest(model: nn.Module, others: list[object]) -> str:
    """The digest of the whole model and optimizer, however they are cut: every rank gathers them."""

    def whole(tensor: Any) -> Any:
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    optimizer = next(other for other in others if isinstance(other, torch.optim.Optimizer))
    state = optimizer.state_dict()["state"]
    return digest(
        [
            {name: whole(tensor) for name, tensor in model.state_dict().items()},
            [{key: whole(value) for key, value in noted.items()} for _, noted in sorted(state.items())],
        ]
    )
