"""Silent corruption on purpose: flips bits inside a member, which does not notice.

It imitates a faulty chip or faulty memory, for drills and to prove that audits find it.
"""

import random
from collections.abc import Callable
from typing import Any, assert_never

import torch
from torch import nn

from holdfast.run.wire import PlannedFault
from holdfast.train import shards
from holdfast.train.protected import Protected, memory_as_it_lies

BYTE_BITS = 8


class Corruption:
    """Flips bits in the state that this member protects."""

    def __init__(self, state: Protected) -> None:
        self._state = state

    def strike(self, fault: PlannedFault) -> None:
        """Strike as a lane begins. The same fault flips the same bits on every member."""
        generator = random.Random(f"holdfast corruption:{fault.id}")
        match fault.what:
            case "gradient":
                parameter = generator.choice(self._state.parameters)
                self._hook(fault, parameter.register_hook, lambda gradient: _flipped(gradient, fault))
            case "activation":
                leaves = [one for one in self._state.models[0].modules() if _is_leaf(one)]
                self._hook(
                    fault,
                    generator.choice(leaves).register_forward_hook,
                    lambda module, inputs, output: flip(output.data, fault),
                )
            case "weight":
                flip(generator.choice(self._state.parameters).data, fault)
            case "optimizer":
                flip(generator.choice(self._kept()), fault)
            case _:
                assert_never(fault.what)

    def _hook(self, fault: PlannedFault, register: Callable[..., Any], do: Callable[..., Any]) -> None:
        """Register the fault as a hook that strikes once, or for ever if the fault is lasting."""

        def strike(*told: Any) -> Any:
            if not fault.lasting:
                handle.remove()
            return do(*told)

        handle = register(strike)

    def _kept(self) -> list[torch.Tensor]:
        """The optimizers' tensors, without counters; the weights if there are none, as before
        the first step.
        """
        kept = [
            value
            for optimizer in self._state.optimizers
            for values in optimizer.state.values()
            for value in values.values()
            if isinstance(value, torch.Tensor) and value.numel() > 1
        ]
        return kept or [parameter.data for parameter in self._state.parameters]


def _is_leaf(module: nn.Module) -> bool:
    return not list(module.children()) and bool(list(module.parameters()))


def _flipped(tensor: torch.Tensor, fault: PlannedFault) -> torch.Tensor:
    copy = tensor.clone()
    flip(copy, fault)
    return copy


def flip(tensor: torch.Tensor, fault: PlannedFault) -> None:
    """Flip as many different bits as the fault says, in place, without touching the version counter."""
    raw = memory_as_it_lies(shards.local_of(tensor))
    places = random.Random(f"holdfast bits:{fault.id}").sample(range(raw.numel() * BYTE_BITS), fault.bits)
    for place in places:
        byte, bit = divmod(place, BYTE_BITS)
        raw[byte] ^= 1 << bit
