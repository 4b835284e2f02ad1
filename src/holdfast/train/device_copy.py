"""Copies of a state into main memory: from a GPU beside the next step, or from main memory at once.

A GPU reaches memory directly once it is registered. A stream takes about a thousand copies before the host
has to wait for the first of them, and a state may have more tensors. So small ones are gathered on the device
and copied as one. The others are asked of the driver itself, because torch takes longer to ask.
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
    """Bytes of a tensor, from `begin` on, and where they go in a buffer."""

    source: torch.Tensor
    begin: int
    size_bytes: int
    offset: int


class StateCopy(Protocol):
    """Copies a state into a buffer. took_s: on the device; None where there is no other than the host."""

    @property
    def took_s(self) -> float | None: ...

    def copy(self, buffer: torch.Tensor, tasks: Sequence[CopyTask], at_once: Collection[int]) -> None:
        """tasks: those that are gathered come last, one behind the other in the buffer. at_once: where the
        storages begin of tensors that forward passes change: those are copied before the next one.
        """

    def hold_back(self) -> None:
        """The state is about to be changed: not before it is copied."""

    def wait(self) -> None:
        """Until it is copied."""


class HostCopy:
    """Within main memory: it is done when it returns."""

    took_s: float | None = None

    def copy(self, buffer: torch.Tensor, tasks: Sequence[CopyTask], at_once: Collection[int]) -> None:
        for task in tasks:
            _copy_now(buffer, task)

    def hold_back(self) -> None:
        """Nothing reads the state any more."""

    def wait(self) -> None:
        """It is done."""


class SideStreamCopy:
    """From a GPU on a stream of their own, beside the next step, into memory that is registered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._sources: list[torch.Tensor] = []

    def copy(self, buffer: torch.Tensor, tasks: Sequence[CopyTask], at_once: Collection[int]) -> None:
        try:
            self._begin(buffer, tasks, at_once)
        except BaseException:  # what was asked for until then is under way, and is waited for
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
        self._sources = [task.source for task in later]  # nobody else gets their memory meanwhile

    def hold_back(self) -> None:
        """What the present stream does from here on waits for the copy; the host does not."""
        if self._sources:
            torch.cuda.current_stream(self._device).wait_event(self._done)

    def wait(self) -> None:
        self._done.synchronize()
        self._sources = []

    @property
    def took_s(self) -> float | None:
        return float(self._begun.elapsed_time(self._done)) / 1e3


def is_gathered(tensor: torch.Tensor, size_bytes: int) -> bool:
    """Whether so many bytes of it are too few for a copy of their own."""
    return tensor.is_cuda and size_bytes <= GATHERED_BYTES_MAX


def _gather(tasks: Sequence[CopyTask]) -> list[CopyTask]:
    """One in place of all, of what they are now."""
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
    """target, source, bytes of each. Raises `RuntimeError`."""
    ask = _driver().cuMemcpyDtoHAsync_v2
    handle = ctypes.c_void_p(stream)
    for target, source, size_bytes in copies:
        if code := ask(target, source, size_bytes, handle):
            raise RuntimeError(f"the driver refused a copy of {size_bytes} bytes: CUDA error {code}")


@cache
def _driver() -> Any:
    """Torch has it loaded wherever it uses a GPU. Raises `OSError` where it has not."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemcpyDtoHAsync_v2.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
        ctypes.c_void_p,
    )
    driver.cuMemcpyDtoHAsync_v2.restype = ctypes.c_int
    return driver


# ---- memory that a GPU reaches ---------------------------------------------------------------------------


def map_in(memory: torch.Tensor) -> None:
    """Have the kernel map all of its pages. CUDA registers them twice as fast then, and several threads can
    map, each a stretch, where CUDA uses one. A kernel before 5.14 refuses; that costs time and nothing else.
    """
    _libc().madvise(memory.data_ptr(), memory.numel(), MADV_POPULATE_READ)


def map_out(memory: torch.Tensor) -> None:
    """The contrary, of shared memory that is not used any more. When its mapping goes, all threads would wait
    for this.
    """
    _libc().madvise(memory.data_ptr(), memory.numel(), mmap.MADV_DONTNEED)


@cache
def _libc() -> Any:
    """For a call that lets other threads run, as `mmap.madvise` does not."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def register(memory: torch.Tensor, device: torch.device) -> None:
    """Raises `RuntimeError`."""
    with torch.cuda.device(device):
        code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))  # type: ignore[no-untyped-call]
        if code:
            # It stays this thread's last error, and the next kernel would fail with it: so this one does.
            with suppress(RuntimeError):
                torch.ones(1, device=device)
        torch.cuda.check_error(code)


def unregister(memory: torch.Tensor) -> None:
    """Whatever the device has to say of it: nobody uses this memory any more."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
