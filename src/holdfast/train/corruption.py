"""Silent corruption on purpose: bits that are flipped inside a member, which notices nothing.

What a faulty chip or memory does, for drills and for the proof that audits find it.
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
    """What can be flipped: the things that this member protects."""

    def __init__(self, state: Protected) -> None:
        self._state = state

    def strike(self, fault: PlannedFault) -> None:
        """A lane begins. The same fault flips the same bits, wherever it strikes."""
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
        """Once, or for ever."""

        def strike(*told: Any) -> Any:
            if not fault.lasting:
                handle.remove()
            return do(*told)

        handle = register(strike)

    def _kept(self) -> list[torch.Tensor]:
        """What optimizers keep beside counters; before the first step, or where it is nothing, weights."""
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
    """As many different bits as the fault says, in place, where no version counter sees it."""
    raw = memory_as_it_lies(shards.local_of(tensor))
    places = random.Random(f"holdfast bits:{fault.id}").sample(range(raw.numel() * BYTE_BITS), fault.bits)
    for place in places:
        byte, bit = divmod(place, BYTE_BITS)
        raw[byte] ^= 1 << bit
