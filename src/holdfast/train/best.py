"""The best weights so far, protected by the run like the current ones.

A script that writes its best weights to a file on one member loses them with that member, or leaves a file
that does not match the value it remembers. Holdfast therefore protects the copy: every member has it, a
replacement receives it, and each checkpoint holds it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.train.whole_file import whole_file

WEIGHTS = "weights"


class Best:
    """A copy of a model as it was when some measure of it was best: pass it to protect(), offer to it in
    on_commit.

    higher: whether a larger value is better; by default a lower one is, as for a loss. value, step: of the
    best weights so far; None before the first offer.
    """

    def __init__(self, model: nn.Module, *, higher: bool = False) -> None:
        self._model = model
        self._higher = higher
        self.value: float | None = None
        self.step: int | None = None
        # Allocated at once, so that a run without enough memory for it fails at the start.
        self._weights = _copied(model.state_dict())

    def offer(self, value: float, *, step: int) -> bool:
        """Keep the model's current weights if this value is the best so far. Returns whether it is."""
        value = float(value)
        sign = 1 if self._higher else -1
        if math.isnan(value) or (self.value is not None and sign * value <= sign * self.value):
            return False
        self.value, self.step = value, step
        self._weights = _copied(self._model.state_dict(), into=self._weights)
        return True

    @property
    def weights(self) -> dict[str, Any]:
        """The best weights, for `model.load_state_dict()`."""
        return self._weights

    def save(self, path: Path | str) -> None:
        """Write a file for `torch.load(path, weights_only=True)`, atomically. Call it on one member."""
        with whole_file(Path(path)) as file:
            torch.save({"model": self._weights, "step": self.step, "value": self.value}, file)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "step": self.step, WEIGHTS: self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.step = state["value"], state["step"]
        self._weights = _copied(state[WEIGHTS], into=self._weights)


def _copied(state: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A copy of a state. into: the tensors to overwrite. Tied tensors stay tied: both get the same values."""
    known: dict[tuple[object, ...], torch.Tensor] = {}

    def copied(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        if into is not None:
            return into[name].copy_(value)
        identity = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        return known.setdefault(identity, value.clone()) if value.numel() else value.clone()

    return {name: copied(name, value) for name, value in state.items()}
