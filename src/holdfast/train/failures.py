"""Recognises exceptions that mean that a member's GPU, or its way to the others, has failed, and words them.

After such an error the process is of no further use: CUDA answers every later call with the same error, and
memory that ran out is held by tensors of a step that cannot be finished. So the process is replaced. Only the
coordinator can tell whether the script is to blame (run/devices.py).
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from holdfast.record.errors import HoldfastError

CHAIN_MAX = 16
"""How far a chain of exceptions is followed; the first one that is recognised counts."""
WORDS_CHARS_MAX = 100
OUT_OF_MEMORY = "CUDA out of memory"

_GIB = 1 << 30
_SIZE = r"[\d.]+ [KMGT]?i?B(?:ytes)?|[\d.]+ bytes"
_ASKED = re.compile(rf"Tried to allocate ({_SIZE})")
_FREE = re.compile(rf"total capacity of ({_SIZE}) of which ({_SIZE}) is free")
_CUDA = re.compile(r"\b(?:CUDA|HIP) error: [^\n]+")
_LIBRARY = re.compile(r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_STATUS_[A-Z_]+")
_NCCL = re.compile(
    r"\b(?:unhandled system error|unhandled cuda error|remote process exited or there was a network error"
    r"|internal error|invalid usage|invalid argument)\b"
)
_NCCL_LAST = re.compile(r"Last error:\s*([^\n]+)")


class ObservedFailure(NamedTuple):
    """failure: what happened, in the same words every time the same happens. detail: what else is known, in
    one line, or empty.
    """

    failure: str
    detail: str = ""


class DeviceMemory(NamedTuple):
    """The memory of a GPU, in words: the peak use of this process, and what is free now; empty if unknown."""

    used: str = ""
    free: str = ""


def device_failure(
    error: BaseException | None, memory: Callable[[], DeviceMemory] | None = None
) -> ObservedFailure | None:
    """What failed, by the exception or one that led to it; None if it was no device failure.

    memory: called if memory ran out.
    """
    if isinstance(error, HoldfastError):
        return None  # the cause is already known
    for link in _chain(error):
        if failure := _of_type(link) or _of_words(link):
            return ObservedFailure(failure, _detail(failure, str(link), memory or gpu_memory))
    return None


def gpu_memory() -> DeviceMemory:
    """The memory of this process's GPU, as far as it can be queried."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return DeviceMemory()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    used = f"at most {_gib(peak)} was allocated and {_gib(reserved)} reserved"
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:  # the context is unusable
        return DeviceMemory(used)
    return DeviceMemory(used, f"{_gib(free)} of {_gib(total)} is free now")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(CHAIN_MAX):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _of_type(error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return OUT_OF_MEMORY
    accelerator_error = getattr(torch, "AcceleratorError", None)  # since torch 2.8
    if accelerator_error is not None and isinstance(error, accelerator_error):
        return _normalised(str(error)) or "GPU error"
    backend_error = getattr(torch.distributed, "DistBackendError", None)
    if backend_error is not None and isinstance(error, backend_error):
        return _nccl(str(error))
    return ""


def _of_words(error: BaseException) -> str:
    """torch raises its libraries' errors as plain RuntimeErrors; user code mostly raises other types."""
    if type(error) is not RuntimeError:
        return ""
    text = str(error)
    library = _LIBRARY.search(text)
    if library is not None:
        return f"CUDA error: {library[0]}"
    if _CUDA.match(text):
        return _normalised(text)
    return _nccl(text)


def _normalised(text: str) -> str:
    """The first line, without the parts that vary from one time to the next."""
    found = _CUDA.search(text)
    line = (found[0] if found else text.partition("\n")[0]).partition(" when calling ")[0]
    return OUT_OF_MEMORY if line.endswith("error: out of memory") else line.strip()[:WORDS_CHARS_MAX]


def _nccl(text: str) -> str:
    found = _NCCL.search(text) if "NCCL" in text else None
    return f"NCCL error: {found[0]}" if found else ""


def _detail(failure: str, text: str, memory: Callable[[], DeviceMemory]) -> str:
    if failure != OUT_OF_MEMORY:
        last = _NCCL_LAST.search(text)
        return last[1].strip() if last else ""
    asked, free, known = _ASKED.search(text), _FREE.search(text), memory()
    parts = [
        f"{asked[1]} was asked for" if asked else "",
        f"{free[2]} of {free[1]} was free" if free else known.free,
        known.used,
    ]
    return "; ".join(part for part in parts if part)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB"
