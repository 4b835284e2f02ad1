"""Copies a state into main memory: from a GPU during the next step, or from main memory at once.

A GPU reaches memory directly once it is registered. A stream takes about a thousand copies before the host
has to wait for the first of them, and a state may have more tensors. So small ones are gathered on the device
and copied as one. The others go straight to the driver, because a copy takes longer to start through torch.
"""

import ctypes
import mmap
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch

from holdfast.train.protected import memory_as_it_lies
from holdfast.train.skeleton import is_dense

GATHERED_BYTES_MAX = 256 << 10
MADV_POPULATE_READ = 22


class CopyTask(NamedTuple):
    """Bytes of a tensor, from `begin` on, and their offset in a buffer."""

    source: torch.Tensor
    begin: int
    size_bytes: int
    offset: int


class StateCopy(Protocol):
    """Copies a state into a buffer. took_s: the time on the device; None if there is no device
    but the host.
    """

    @property
    def took_s(self) -> float | None: ...

    def copy(self, buffer: torch.Tensor, tasks: Sequence[CopyTask], at_once: Collection[int]) -> None:
        """tasks: gathered ones come last, one after the other in the buffer. at_once: storage addresses of
        tensors that forward passes change; these are copied before the next pass.
        """

    def hold_back(self) -> None:
        """The state is about to change: make that wait for the copy."""

    def wait(self) -> None:
        """Wait until the state is copied."""


class HostCopy:
    """A copy within main memory, complete when `copy` returns."""

    took_s: float | None = None

    def copy(self, buffer: torch.Tensor, tasks: Sequence[CopyTask], at_once: Collection[int]) -> None:
        for task in tasks:
            _copy_now(buffer, task)

    def hold_back(self) -> None:
        """Do nothing: the copy is complete."""

    def wait(self) -> None:
        """Do nothing: the copy is complete."""


class SideStreamCopy:
    """Copies from a GPU on a stream of its own, during the next step, into registered memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._sources: list[torch.Tensor] = []

    def copy(self, buffer: torch.Tensor, tasks: Sequence[CopyTask], at_once: Collection[int]) -> None:
        try:
            self._begin(buffer, tasks, at_once)
        except BaseException:  # copies begun until then are under way: wait for them
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            self._done.record(self._stream)
            raise

    def _begin(self, buffer: torch.Tensor, tasks: Sequence[CopyTask], at_once: Collection[int]) -> None:
        gathered = [task for task in tasks if is_gathered(task.source, task.size_bytes)]
        later = _gather(gathered)
        for task in tasks[: len(tasks) - len(gathered)]:
            source = task.source
            is_steady = source.is_cuda and source.untyped_storage().data_ptr() not in at_once
            if is_steady and is_dense(source):
                later.append(task)
            else:
                _copy_now(buffer, task)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        base = buffer.data_ptr()
        with torch.cuda.stream(self._stream):
            self._begun.record(self._stream)
            _copy_out(
                [(base + one.offset, one.source.data_ptr() + one.begin, one.size_bytes) for one in later],
                self._stream.cuda_stream,
            )
            self._done.record(self._stream)
        self._sources = [task.source for task in later]  # keeps their memory from being reused meanwhile

    def hold_back(self) -> None:
        """Make later work on the current stream wait for the copy; the host does not wait."""
        if self._sources:
            torch.cuda.current_stream(self._device).wait_event(self._done)

    def wait(self) -> None:
        self._done.synchronize()
        self._sources = []

    @property
    def took_s(self) -> float | None:
        return float(self._begun.elapsed_time(self._done)) / 1e3


def is_gathered(tensor: torch.Tensor, size_bytes: int) -> bool:
    """Whether this many bytes are too few for a copy of their own."""
    return tensor.is_cuda and size_bytes <= GATHERED_BYTES_MAX


def _gather(tasks: Sequence[CopyTask]) -> list[CopyTask]:
    """One task in place of all, with their current contents."""
    if not tasks:
        return []
    together = torch.cat([_memory(task) for task in tasks])
    return [CopyTask(together, 0, together.numel(), tasks[0].offset)]


def _memory(task: CopyTask) -> torch.Tensor:
    whole = memory_as_it_lies(task.source)
    return whole if whole.numel() == task.size_bytes else whole[task.begin : task.begin + task.size_bytes]


def _copy_now(buffer: torch.Tensor, task: CopyTask) -> None:
    target = buffer[task.offset : task.offset + task.size_bytes]
    target.copy_(_memory(task), non_blocking=True)


def _copy_out(copies: Sequence[tuple[int, int, int]], stream: int) -> None:
    """Start copies, each given as (target, source, bytes). Raises `RuntimeError`."""
    ask = _driver().cuMemcpyDtoHAsync_v2
    handle = ctypes.c_void_p(stream)
    for target, source, size_bytes in copies:
        if code := ask(target, source, size_bytes, handle):
            raise RuntimeError(f"the driver refused a copy of {size_bytes} bytes: CUDA error {code}")


@cache
def _driver() -> Any:
    """The CUDA driver, which torch has loaded if it uses a GPU. Raises `OSError` if it is missing."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemcpyDtoHAsync_v2.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
        ctypes.c_void_p,
    )
    driver.cuMemcpyDtoHAsync_v2.restype = ctypes.c_int
    return driver


# ---- memory that a GPU reaches ---------------------------------------------------------------------------


def map_in(memory: torch.Tensor) -> None:
    """Have the kernel map all pages. CUDA then registers them twice as fast, and several threads can map a
    stretch each, while CUDA uses one. A kernel before 5.14 refuses; that only costs time.
    """
    _libc().madvise(memory.data_ptr(), memory.numel(), MADV_POPULATE_READ)


def map_out(memory: torch.Tensor) -> None:
    """Unmap shared memory that is no longer used. Otherwise all threads would wait for this when the mapping
    goes.
    """
    _libc().madvise(memory.data_ptr(), memory.numel(), mmap.MADV_DONTNEED)


@cache
def _libc() -> Any:
    """The C library, for a call that lets other threads run; `mmap.madvise` does not."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def register(memory: torch.Tensor, device: torch.device) -> None:
    """Let the GPU reach this memory directly. Raises `RuntimeError`."""
    with torch.cuda.device(device):
        code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))  # type: ignore[no-untyped-call]
        if code:
            # The error stays this thread's last error and would fail the next kernel, so this one takes it.
            with suppress(RuntimeError):
                torch.ones(1, device=device)
        torch.cuda.check_error(code)


def unregister(memory: torch.Tensor) -> None:
    """Undo `register`. Errors are ignored, because the memory is no longer used."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
