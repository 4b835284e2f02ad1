"""Asks torch for kernels that give the same bits every time, and reports operations that lack one."""

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
"""What torch says after the name of an operation."""


def require(wanted: bool, device: torch.device) -> None:
    """Require it strictly or not at all: with torch's `warn_only`, attention's backward pass is not
    deterministic.
    """
    torch.use_deterministic_algorithms(True, warn_only=not wanted)
    _deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # costs time
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False
    if wanted:
        _fix_compiler()
    else:
        _tell("deterministic=False: after a failure, or with other members, the bits may differ.")
        warnings.showwarning = _naming_operations(warnings.showwarning)


def mistake_in(error: BaseException) -> InputError | None:
    """torch's error for a missing deterministic kernel, as a sentence; None for any other error."""
    operation = _operation(str(error)) if isinstance(error, RuntimeError) else ""
    if not operation:
        return None
    return InputError(
        f"{operation} has no deterministic kernel on this device: the same bits cannot be promised.",
        hint="Replace the operation, or go on without the promise: protect(deterministic=False).",
    )


def _fix_compiler() -> None:
    """Let torch.compile choose kernels by rule. By default it times them and may choose others in each
    process.
    """
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")  # read when the compiler is loaded
    settings = sys.modules.get("torch._inductor.config")
    if settings is not None and hasattr(settings, "deterministic"):
        settings.deterministic = True  # type: ignore[attr-defined]


def _naming_operations(show: Callable[..., Any]) -> Callable[..., Any]:
    def showing(message: Any, *rest: Any, **named: Any) -> None:
        operation = _operation(str(message))
        if operation:
            _tell(f"{operation} has no deterministic kernel here: it may give different bits each time.")
        else:
            show(message, *rest, **named)

    return showing


def _operation(text: str) -> str:
    """The operation that torch says is not deterministic; empty for any other text."""
    for phrase in NO_KERNEL:
        operation, found, _ = text.partition(phrase)
        if found:
            return operation
    return ""


def _tell(sentence: str) -> None:
    print(f"holdfast: {sentence}", file=sys.stderr, flush=True)
