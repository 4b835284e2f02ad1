"""What a warm process does for the script while it waits: above all, compile.

The compiler caches its results by the code of a module, not by the instance: a model built after `join()`
finds what was compiled for one that was dropped before. But the cache also depends on torch's settings, so
those of the steps are in force here. Afterwards the previous settings are restored, and also the gradient
mode and the default type.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic as _deterministic

from holdfast.train import determinism

Rehearsal = Callable[[torch.device], object]


def rehearse(fn: Rehearsal, device: torch.device) -> None:
    """Call it once. An exception is printed; the process is then as good as without a rehearsal."""
    with _settings_of_steps(device):
        try:
            fn(device)
        except Exception as error:
            print(
                f"holdfast: join(warm=...) failed in a warm process; the run continues without it: "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
    gc.collect()  # frees what it built: a model and its hooks form a cycle
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def _settings_of_steps(device: torch.device) -> Iterator[None]:
    wanted, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fills, benchmark = _deterministic.fill_uninitialized_memory, torch.backends.cudnn.benchmark  # type: ignore[attr-defined]
    grads, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    determinism.require(True, device)
    try:
        yield
    finally:
        torch.set_grad_enabled(grads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(wanted, warn_only=warns)
        _deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = benchmark
