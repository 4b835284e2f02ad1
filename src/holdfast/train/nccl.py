"""A generation's group on GPUs: NCCL, supervised by this process alone.

The host never waits inside NCCL, so an abort is possible at any moment, from any thread: while the
communicator is being made, inside an exchange, or between two. A death shows in one of two ways: NCCL reports
an error, or kernels spin until the group is aborted and then end without a result. So received data are valid
only after `settle` has seen the device finish with the group unbroken, and after `confirm` has seen that all
others did.
"""

import atexit
import ctypes
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from holdfast.train import libnccl
from holdfast.train.group import ABORTED, GroupBroken, Rendezvous, Sending, Superseded, Transfer, Work
from holdfast.train.sockets import listens, network_sockets

SPIN_POLLS = 200
"""An exchange is launched within tens of microseconds, so NCCL is polled this often without a pause."""
POLL_S = 0.0001
WATCH_S = 0.00003
"""Pause between two queries of an exchanging device; with the kernel's overhead, about 80 microseconds."""
LAUNCH_S_MAX = 0.05
"""How long an abort waits for an exchange that is about to launch. If that takes longer, the device's queue
is full, and only the abort makes room in it.
"""
FREE_S_MAX = 3.0
"""How long the end of a process waits for communicators to be freed: NCCL takes half a second for one."""
LOOPBACK_SETTINGS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_NTHREADS": "2",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_P2P_NET_CHUNKSIZE": str(512 << 10),
}
"""If all hosts are on this machine. The threads and sockets make exchanges 1.7 times as fast there. Chunks
larger than NCCL's 128 KiB need fewer turns on a shared GPU: state arrives sooner, and kernels that were
queued for a broken communicator end sooner.
"""
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 64 << 10
"""For mallopt(3). Larger blocks are returned to the system when they are freed."""
UNIQUE_ID_PORT = slice(10, 12)
"""The port in an ncclUniqueId: after a magic number of eight bytes and the two-byte family of a sockaddr."""


def pose(member: str, address: str) -> None:
    """Make NCCL take this process for a host of its own, so that members may share a GPU.

    NCCL refuses two ranks with one GPU by comparing hosts and bus addresses. Must be called before NCCL is
    first used. The user's own settings stay.
    """
    os.environ.setdefault("NCCL_HOSTID", member)
    if address.startswith("127."):
        for name, value in LOOPBACK_SETTINGS.items():
            os.environ.setdefault(name, value)


class NcclGroup:
    """Members with a GPU each, or with a share of one.

    superseded: whether the group is no longer wanted; called while the group is being made, which then ends
    with `Superseded`.
    """

    is_ordered = True

    def __init__(
        self,
        store: Rendezvous,
        *,
        rank: int,
        size: int,
        device: torch.device,
        superseded: Callable[[], bool],
    ) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        self._nccl = libnccl.library()
        _give_memory_back()
        self._lock = threading.Lock()
        self._communicator: libnccl.Communicator | None = None
        self._reason = ""
        self._kept: list[Sequence[Transfer]] = []
        self._stopping = threading.Event()
        self._launch_s = 0.0
        self._peers = [peer for peer in range(size) if peer != rank]
        with torch.cuda.device(device):
            self._token = torch.empty((1,), dtype=torch.int32, device=device)
            self._tokens = torch.full((size,), -1, dtype=torch.int32, device=device)
            self._stream = _stream_of(device)
            self._make(store, superseded)
        self._launch_s = LAUNCH_S_MAX

    # ---- being made --------------------------------------------------------------------------------------

    def _make(self, store: Rendezvous, superseded: Callable[[], bool]) -> None:
        unique_id = self._meet(store)
        try:
            self._communicator = self._nccl.begin(unique_id, rank=self.rank, size=self.size)
            self._await_host(superseded)
            self._connect(superseded)
        except libnccl.NcclError as error:
            self._give_up(unique_id)
            raise self._broken(error) from None
        except BaseException:
            self._give_up(unique_id)
            raise

    def _meet(self, store: Rendezvous) -> bytes:
        """The id that makes the members one communicator. It is created only when all are there, because NCCL
        leaks a few open sockets whenever it is given up half-way.
        """
        if self.rank > 0:
            store.set(f"here/{self.rank}", b"")
            return store.get("nccl")
        for peer in range(1, self.size):
            store.get(f"here/{peer}")
        unique_id = self._nccl.unique_id()
        store.set("nccl", unique_id)
        return unique_id

    def _connect(self, superseded: Callable[[], bool]) -> None:
        """Connect all pairs of ranks now. NCCL would do it at their first exchange, in the
        middle of a step.
        """
        self._token.fill_(self.rank)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._greet(superseded)
        came = self._tokens.tolist()
        if any(came[peer] != peer for peer in self._peers):
            raise GroupBroken("NCCL connected members that do not belong to each other")

    def _greet(self, superseded: Callable[[], bool], peers: Sequence[int] | None = None) -> None:
        """Exchange tokens with all members, or with these."""
        others = [peer for peer in self._peers if peers is None or peer in peers]
        self._begin([(self._token, peer) for peer in others], [(self._tokens[peer], peer) for peer in others])
        self._await_host(superseded)
        self._await_device(superseded)
        self._kept.clear()

    def _give_up(self, unique_id: bytes) -> None:
        self.close()
        if self.rank == 0 and unique_id:
            # NCCL listens there for the others, in a thread of its own that nothing else ends.
            port = int.from_bytes(unique_id[UNIQUE_ID_PORT], "big")
            for _, copy in network_sockets():
                with suppress(OSError):
                    if listens(copy) and copy.getsockname()[1] == port:
                        copy.shutdown(socket.SHUT_RDWR)

    # ---- exchanging --------------------------------------------------------------------------------------

    @contextmanager
    def along(self) -> Iterator[None]:
        """Order the computations of this block with the exchanges, after everything computed so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int, *, is_kept: bool = True
    ) -> Work:
        present = torch.cuda.current_stream(self._device)
        if present != self._stream:
            self._stream.wait_stream(present)
        try:
            self._begin(sends, receives, is_kept=is_kept)
            self._await_host(_never)
        except libnccl.NcclError as error:
            raise self._broken(error) from None
        return _NcclWork(self, self._stream.record_event())

    def _begin(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], *, is_kept: bool = True
    ) -> None:
        nccl, stream = self._nccl, self._stream.cuda_stream
        with self._lock:
            communicator = self._usable()
            if is_kept:
                self._kept += (sends, receives)
            nccl.group_start()
            try:
                for tensor, peer in receives:
                    if tensor.nbytes:
                        nccl.receive(communicator, peer, _place(tensor), stream)
                for tensor, peer in sends:
                    if tensor.nbytes:
                        nccl.send(communicator, peer, _place(tensor), stream)
            finally:
                nccl.group_end()

    def _await_host(self, superseded: Callable[[], bool]) -> None:
        """Wait until NCCL's own thread has finished its work on the host."""
        polls = 0
        while not self._is_ready():
            polls += 1
            if superseded():
                raise Superseded
            time.sleep(0 if polls < SPIN_POLLS else POLL_S)

    def _await_device(self, superseded: Callable[[], bool]) -> None:
        """Wait until the device has finished its work. The host polls the device and NCCL meanwhile."""
        done = self._stream.record_event()
        while not done.query():
            self._is_ready()
            if superseded():
                raise Superseded
            time.sleep(WATCH_S)

    def _is_ready(self) -> bool:
        with self._lock:
            result = self._nccl.async_error(self._usable())
        if result not in (libnccl.SUCCESS, libnccl.IN_PROGRESS):
            raise self._nccl.error(result)
        return result == libnccl.SUCCESS

    def _usable(self) -> libnccl.Communicator:
        """The communicator. The caller holds the lock, so that no thread frees it meanwhile."""
        if self._communicator is None:
            raise GroupBroken(self._reason or ABORTED)
        return self._communicator

    def _broken(self, error: libnccl.NcclError) -> GroupBroken:
        """Abort the communicator, which cannot be used again. If the device itself has failed, raise that
        error.
        """
        self._reason = f"NCCL: {error}"
        self.abort()
        if error.result == libnccl.UNHANDLED_CUDA_ERROR:
            self._stopping.wait(FREE_S_MAX)  # else synchronize() would wait for kernels that wait for a peer
            torch.cuda.synchronize(self._device)
        return GroupBroken(self._reason)

    def settle(self) -> None:
        try:
            self._await_device(_never)
            self.check()
        except libnccl.NcclError as error:
            raise self._broken(error) from None
        self._kept.clear()

    def confirm(self, peers: Sequence[int] | None = None) -> None:
        """Between GPUs of one machine, kernels of a member that aborts may still tell their peers that data
        came. A member that has sent its token here has seen its own kernels end well.
        """
        try:
            self._greet(_never, peers)
            self.check()
        except libnccl.NcclError as error:
            raise self._broken(error) from None

    def check(self) -> None:
        """Raise `GroupBroken` if the group is broken already."""
        with self._lock:
            self._usable()

    def sending(self) -> tuple[Sending, ...]:
        """Empty: NCCL does not report it."""
        return ()

    # ---- the end -----------------------------------------------------------------------------------------

    def abort(self) -> None:
        with self._lock:
            communicator, self._communicator = self._communicator, None
        if communicator is not None:
            _free(self._nccl, communicator, self._stopping, self._launch_s)

    def close(self) -> None:
        is_made = self._communicator is not None
        self.abort()
        if is_made or self._kept:
            self._stopping.wait(FREE_S_MAX)
            self._stream.synchronize()  # kernels of an aborted group end here, and write nothing later
        self._kept.clear()


class _NcclWork:
    def __init__(self, group: NcclGroup, done: torch.cuda.Event) -> None:
        self._group = group
        self._done = done

    def wait(self) -> None:
        """Order the current stream after the exchange; the host does not wait."""
        self._group.check()
        self._done.wait()


def warm_up(device: torch.device) -> None:
    """Make a communicator of one rank, so that NCCL and its kernels are loaded on this device."""
    nccl = libnccl.library()
    with torch.cuda.device(device):
        communicator = nccl.begin(nccl.unique_id(), rank=0, size=1)
        while nccl.async_error(communicator) == libnccl.IN_PROGRESS:
            time.sleep(POLL_S)
    _free(nccl, communicator, threading.Event(), 0)


@functools.cache
def _give_memory_back() -> None:
    """Return memory that NCCL frees to the system. Its threads have malloc arenas of their own, which keep
    freed memory: ten megabytes a generation, up to gigabytes. The user's own settings stay.
    """
    if os.environ.keys() & {"MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"}:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """One stream for all generations: the remains of a broken one come before the work of the next."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[device]


_freeing: set[threading.Thread] = set()


def _free(
    nccl: libnccl.Library, communicator: libnccl.Communicator, stopping: threading.Event, launch_s: float
) -> None:
    """Stop and free a communicator, without waiting for it. No other thread may use it any more.

    launch_s: how long an exchange that is about to launch on the device may take to do so. stopping: set when
    nothing more of it can begin there.
    """

    def free() -> None:
        try:
            if _is_over(nccl, communicator, launch_s):
                stopping.set()  # the abort itself takes half a second to return
        finally:
            nccl.abort(communicator)
            stopping.set()
            _freeing.discard(threading.current_thread())

    thread = threading.Thread(target=free, name="holdfast-nccl-free", daemon=True)
    _freeing.add(thread)
    thread.start()


def _is_over(nccl: libnccl.Library, communicator: libnccl.Communicator, within_s: float) -> bool:
    """Whether NCCL has finished its work on the host, successfully or not."""
    due = time.monotonic() + within_s
    while nccl.async_error(communicator) == libnccl.IN_PROGRESS:
        if time.monotonic() >= due:
            return False
        time.sleep(POLL_S)
    return True


@atexit.register
def _await_freed() -> None:
    """Wait for running frees: a process that ends during one may crash in NCCL."""
    due = time.monotonic() + FREE_S_MAX
    for thread in tuple(_freeing):
        thread.join(max(0.0, due - time.monotonic()))


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    assert tensor.is_contiguous()
    return tensor.data_ptr(), tensor.nbytes


def _never() -> bool:
    return False
