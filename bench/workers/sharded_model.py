"""What both contestants of `holdfast bench sharded` train: the GPT of `bench gpu`, sharded block by block.

And how much memory a process has at most in a step.
"""

import gc
import os

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import ProfilerActivity, profile, record_function

from gpu_model import Block, Gpt, Size, build

STEPS_BEGIN = "bench: steps begin"


def build_sharded(size: Size, device: torch.device, mesh: DeviceMesh) -> tuple[Gpt, torch.optim.Optimizer]:
    """Whole for a moment, then each rank's part of it. In bfloat16 on a GPU; gradients add up in float32."""
    model, _ = build(size, device)
    halved = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = halved if device.type == "cuda" else MixedPrecisionPolicy()
    for block in model.blocks:
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")


class Meter:
    """The most memory of tensors in a step, from the second `begin_steps` on.

    On a GPU as its allocator counts it. In main memory what torch was given and gave back, from the process's
    beginning; libraries, threads and the interpreter are not in it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        if device.type != "cuda":
            self._profile.start()

    def begin_steps(self) -> None:
        """What was needed until now, to build the model, does not count."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with record_function(STEPS_BEGIN):
                pass

    def peak_bytes(self) -> int:
        """Since then. It measures no more afterwards."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        self._profile.stop()
        assert self._profile.profiler is not None
        events = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        begin_ns = max(event.start_ns() for event in events if event.name() == STEPS_BEGIN)
        now, peak = 0, 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                now += event.nbytes()
                if event.start_ns() >= begin_ns:
                    peak = max(peak, now)
        return peak


def shard_bytes(model: nn.Module) -> int:
    """Of the parameters' parts that this rank has."""
    return sum(_local(parameter).nbytes for parameter in model.parameters())


def _local(tensor: Tensor) -> Tensor:
    local: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    return local


def rank_here() -> int:
    """As it was started: no rank is replaced in the runs that ask for this."""
    return int(os.environ.get("RANK", "0"))
