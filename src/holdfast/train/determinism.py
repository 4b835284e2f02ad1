"""Kernels that give the same bits every time: asked of torch, and told of where there are none."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.deterministic as _deterministic

from holdfast.record.errors import InputError

NO_KERNEL = (
    " does not have a deterministic implementation",
    " defaults to a non-deterministic algorithm",
)
"""What torch says behind an operation's name."""


def require(wanted: bool, device: torch.device) -> None:
    """Strictly, or not at all: with torch's `warn_only`, attention's backward pass is not deterministic."""
    torch.use_deterministic_algorithms(True, warn_only=not wanted)
    _deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # costs time
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False
    if wanted:
        _fix_compiler()
    else:
        _tell("deterministic=False: the same bits after a failure, or with other members, are not promised.")
        warnings.showwarning = _naming_operations(warnings.showwarning)


def mistake_in(error: BaseException) -> InputError | None:
    """What torch raised for want of a deterministic kernel, as a sentence; None: it is something else."""
    operation = _operation(str(error)) if isinstance(error, RuntimeError) else ""
    if not operation:
        return None
    return InputError(
        f"{operation} has no deterministic kernel on this device: the same bits cannot be promised.",
        hint="Replace the operation, or go on without the promise: protect(deterministic=False).",
    )


def _fix_compiler() -> None:
    """Have torch.compile choose kernels by rule: it would time them, and choose others in each process."""
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")  # is read when the compiler is loaded
    settings = sys.modules.get("torch._inductor.config")
    if settings is not None and hasattr(settings, "deterministic"):
        settings.deterministic = True  # type: ignore[attr-defined]


def _naming_operations(show: Callable[..., Any]) -> Callable[..., Any]:
    def showing(message: Any, *rest: Any, **named: Any) -> None:
        operation = _operation(str(message))
        if operation:
            _tell(f"{operation} has no deterministic kernel here: it may give other bits each time.")
        else:
            show(message, *rest, **named)

    return showing


def _operation(text: str) -> str:
    """Which one torch says is not deterministic; empty where it says something else."""
    for phrase in NO_KERNEL:
        operation, found, _ = text.partition(phrase)
        if found:
            return operation
    return ""


def _tell(sentence: str) -> None:
    print(f"holdfast: {sentence}", file=sys.stderr, flush=True)
