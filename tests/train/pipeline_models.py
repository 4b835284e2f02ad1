"""Models that are cut into the stages of a pipeline, and one that is not, built as a script would."""

import os
import signal
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import holdfast.train as hf
from holdfast.train.protected import digest

WIDTH = 24
LAYERS = 5
"""Stages have different numbers of layers, and the last one also has a parameter of another type."""
MICROBATCHES = 4
ROWS = 3
"""Rows of a microbatch."""
DIGEST_BYTES = 32
Built = tuple[nn.Module, list[object], dict[str, Any]]


class PipedLayer(nn.Module):
    """has_chance: with dropout, and with buffers that move. dtype: of its gain."""

    def __init__(self, *, has_chance: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, dtype=dtype))
        self.norm = nn.BatchNorm1d(WIDTH) if has_chance else nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 38)
        self.down = nn.Linear(38, WIDTH)
        self.dropout = nn.Dropout(0.1 if has_chance else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))
        result: torch.Tensor = x + self.gain.float() * hidden
        return result


class Part(nn.Module):
    """Some layers, by their numbers in the whole."""

    def __init__(self, layers: dict[int, PipedLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


class Piped(nn.Module):
    """One process's part of the model. schedule: None if that is all of it. deaths: `forward 5` or `backward
    5`, the pass in which the process dies.
    """

    def __init__(self, parts: list[Part], group: Any = None) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.group = group
        self.schedule: Any = None
        self.deaths: Collection[str] = ()
        self.passes = 0
        parts[0].register_forward_hook(self._count)

    def _count(self, _part: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.passes += 1
        self._die_in(f"forward {self.passes}")
        if f"backward {self.passes}" in self.deaths:
            spot = f"backward {self.passes}"
            output.register_hook(lambda _: self._die_in(spot))  # type: ignore[no-untyped-call]

    def _die_in(self, spot: str) -> None:
        if spot in self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    def compute(self, lane: hf.Lane, x: torch.Tensor) -> None:
        if self.schedule is not None:
            lane.pipeline(self.schedule, x, target=x.roll(1, 0))
            return
        for part, target in zip(x.chunk(MICROBATCHES), x.roll(1, 0).chunk(MICROBATCHES), strict=True):
            for module in self.parts:
                part = module(part)
            lane.backward(loss_of(part, target) / MICROBATCHES)

    def digest(self, optimizer: Any) -> str:
        """The digest of all stages, layer by layer, however they are cut."""
        found = torch.zeros((LAYERS, DIGEST_BYTES), dtype=torch.uint8)
        for part in self.parts:
            assert isinstance(part, Part)
            for number, layer in part.layers.items():
                states = [layer.state_dict(), *(optimizer.state[one] for one in layer.parameters())]
                text = digest([{key: whole(value) for key, value in sorted(one.items())} for one in states])
                found[int(number)] = torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
        if self.group is not None:
            found = found.to(next(self.parameters()).device)
            dist.all_reduce(found, group=self.group)
        return bytes(found.flatten().tolist()).hex()


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def build(
    run: hf.Run,
    schedule: Any,
    *,
    each: int = 1,
    has_chance: bool = False,
    cut: Callable[[Part], None] = lambda _: None,
    last: torch.dtype = torch.float64,
) -> Built:
    """each: how many stages a process has. cut: cuts a stage further. last: the type of the last gain."""
    dtypes = [torch.float32] * (LAYERS - 1) + [last]
    layers = [PipedLayer(has_chance=has_chance, dtype=dtype) for dtype in dtypes]
    if schedule is None:
        return with_adamw(Piped([Part(dict(enumerate(layers)))]), accumulate=MICROBATCHES)
    group = run.mesh.get_group("pp")
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    count = ranks * each
    numbers = range(rank, count, ranks)
    parts = [
        Part({index: layer for index, layer in enumerate(layers) if index * count // LAYERS == number})
        for number in numbers
    ]
    for part in parts:
        cut(part)
    model = Piped(parts, group)
    border = torch.empty(ROWS, WIDTH, device="meta", requires_grad=True)
    stages: Any = [
        PipelineStage(part, number, count, run.device, input_args=border, output_args=border, group=group)
        for part, number in zip(parts, numbers, strict=True)
    ]
    model.schedule = schedule(stages if each > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    return with_adamw(model)


def with_adamw(model: nn.Module, **told: Any) -> Built:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    return model, [optimizer, plateau], {"clip_norm": 0.5, **told}


def unpiped(run: hf.Run) -> Built:
    """One process has the whole model."""
    return build(run, None)


def piped(run: hf.Run) -> Built:
    return build(run, Schedule1F1B)


def piped_gpipe(run: hf.Run) -> Built:
    return build(run, ScheduleGPipe)


def piped_interleaved(run: hf.Run) -> Built:
    return build(run, ScheduleInterleaved1F1B, each=2)


def piped_by_chance(run: hf.Run) -> Built:
    """Dropout, and BatchNorm, whose statistics move from microbatch to microbatch."""
    return build(run, Schedule1F1B, has_chance=True)


def piped_sharded(run: hf.Run) -> Built:
    """Each stage is sharded by FSDP2."""

    def shard(part: Part) -> None:
        for layer in part.layers.values():
            fully_shard(layer, mesh=run.mesh["shard"])
        fully_shard(part, mesh=run.mesh["shard"])

    return build(run, Schedule1F1B, cut=shard, last=torch.float32)


def piped_tensor_parallel(run: hf.Run) -> Built:
    def cut(part: Part) -> None:
        for layer in part.layers.values():
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, run.mesh["tp"], plan, src_data_rank=None)

    return build(run, Schedule1F1B, cut=cut)


PIPED: dict[str, Callable[[hf.Run], Built]] = {
    builder.__name__: builder
    for builder in (
        unpiped,
        piped,
        piped_gpipe,
        piped_interleaved,
        piped_by_chance,
        piped_sharded,
        piped_tensor_parallel,
    )
}
