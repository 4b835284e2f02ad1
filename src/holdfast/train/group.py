"""A generation's group: tensors between members' memories, and a way out of it from another thread.

Groups are made directly, beside torch's global ones, so that a script may still have its own default group.
On GPUs they are NCCL's (nccl.py); here is what all of them have in common, and gloo's, for main memory.
gloo's `abort` does not wake an operation that waits for a living peer, and a group that is merely dropped
waits for its operations. So `GlooGroup.abort` shuts down exactly the group's sockets, upon which every
operation fails at once, here and at the other end.
"""

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec
import torch
import torch.distributed as dist

from holdfast.train.failures import device_failure
from holdfast.train.sockets import listens, network_sockets

FORM_TIMEOUT_S = 60.0
"""How long connecting may take. That a member died meanwhile is known much sooner: see `form`."""
OPERATION_TIMEOUT_S = 6 * 3600.0
"""Not how failures are found, the coordinator tells of those; a bound all the same."""
ABANDON_POLL_S = 0.002
ABANDONED_SEND_S = 0.25
"""An abort makes sends fail in much less time; one that has not by then never will."""
ABORTED = "the group was aborted"
WATCHED_MAX = 64
"""So many connections are asked how they fare: the usual one shows in a few of them."""

Transfer = tuple[torch.Tensor, int]
"""A tensor and the rank it goes to or comes from."""
Place = tuple[str, int]
"""An address and a port."""


class GroupBroken(Exception):
    """An operation failed because a member is gone or the group was aborted."""


class Superseded(Exception):
    """A newer generation was opened while this one was being formed."""


_ATTEMPT_BROKEN = (GroupBroken, Superseded, RuntimeError, OSError)
"""What the making of a group fails with where somebody is gone; anything else is a mistake."""


class Sending(NamedTuple):
    """How a connection has fared since it was made.

    busy_s: how long it has had data on the way, without the time in which the other end took none.
    resent: segments that were lost and sent again.
    """

    busy_s: float
    resent: int


class Work(Protocol):
    """An operation under way."""

    def wait(self) -> None:
        """Return when what it receives may be used. Raises `GroupBroken`."""


class Group(Protocol):
    """Members of one generation, by rank."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_ordered(self) -> bool:
        """Whether a wait only orders the device, and never holds up the host."""

    def along(self) -> AbstractContextManager[None]:
        """What is computed in this block is ordered with the exchanges, behind what was computed so far."""

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int) -> Work:
        """Begin sending and receiving. All members call it with the same tags in the same order; between two
        members, tensors arrive in the order in which they are listed.
        """

    def settle(self) -> None:
        """Wait until everything that was exchanged is through: what was waited for is in memory, and what was
        sent may be changed. Raises `GroupBroken`.
        """

    def confirm(self) -> None:
        """Wait until all members have settled what came before: only then is it certain that nobody left in
        the middle of it. All of them call this. Raises `GroupBroken`.
        """

    def sending(self) -> tuple[Sending, ...]:
        """How each of some connections fares, always the same ones; empty where they cannot be asked."""

    def abort(self) -> None:
        """Make every operation fail now. Any thread may call this, more than once."""

    def close(self) -> None:
        """Give everything back. Nothing writes into anybody's tensors afterwards. A peer that has not settled
        its exchanges with this member may find the group broken.
        """


class Rendezvous(dist.Store):  # type: ignore[name-defined, misc]
    """The store through which a group's members find each other: keys go through the coordinator.

    publish: tells all other members. lookup: waits for a key, raises `Superseded` if it will never come.
    """

    def __init__(self, publish: Callable[[str, bytes], None], lookup: Callable[[str], bytes]) -> None:
        super().__init__()
        self._publish = publish
        self._lookup = lookup

    def set(self, key: str, value: str | bytes) -> None:
        self._publish(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._lookup(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._lookup(key)

    def has_extended_api(self) -> bool:
        return False


def form(make: Callable[[], Group], superseded: Callable[[], bool]) -> Group:
    """Make a group, or raise `Superseded` as soon as it is no longer wanted.

    A member that dies meanwhile would hold everybody up until the timeout: the attempt is then left to its
    thread, which gives back what comes of it. No tensor of ours is in it yet.
    """
    attempt = _Attempt(make)
    threading.Thread(target=attempt.run, name="holdfast-form", daemon=True).start()
    while not attempt.done.wait(ABANDON_POLL_S):
        if superseded():
            attempt.abandon()
            raise Superseded
    error = attempt.error
    if error is not None:
        if not isinstance(error, _ATTEMPT_BROKEN) or device_failure(error) is not None:
            raise error  # no other group will do better
        raise Superseded if superseded() else GroupBroken(_reason(error))
    assert attempt.group is not None
    return attempt.group


class _Attempt:
    """A group that is being made in a thread of its own, and may be abandoned meanwhile."""

    def __init__(self, make: Callable[[], Group]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.done = threading.Event()
        self.group: Group | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            group = self._make()
            with self._lock:
                self.group = group
                is_abandoned = self._is_abandoned
            if is_abandoned:
                group.close()
        except Exception as error:
            error.__traceback__ = None
            self.error = error
        finally:
            self.done.set()

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            group = self.group
        if group is not None:
            group.close()


class GlooGroup:
    """gloo over TCP, for tensors in main memory."""

    is_ordered = False

    def __init__(self, store: Rendezvous, *, rank: int, size: int, address: str) -> None:
        self.rank = rank
        self.size = size
        before = _listening()
        device = dist.ProcessGroupGloo.create_device(hostname=address)
        self._own = _listening() - before
        store.set(f"listens/{rank}", msgspec.msgpack.encode(sorted(self._own)))
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [device]
        options._timeout = timedelta(seconds=FORM_TIMEOUT_S)
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, options)
        peers = [store.get(f"listens/{peer}") for peer in range(size) if peer != rank]
        self._peers = {place for listens in peers for place in _decode_places(listens)}
        self._aborted = threading.Event()
        self._shutting = threading.Lock()
        self._is_shut = False
        self._watched: list[socket.socket] | None = None
        self._sends: list[tuple[Any, Transfer]] = []
        self._sender = _Waiter()

    def along(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int) -> Work:
        if self._aborted.is_set():
            raise GroupBroken(ABORTED)
        try:
            # gloo matches by tag and takes no two operations of one pair and tag out of order.
            works = [self._group.recv([tensor], peer, tag) for tensor, peer in receives]
            self._sends += [(self._group.send([send[0]], send[1], tag), send) for send in sends]
        except RuntimeError as error:
            raise _broken(error) from None
        return _GlooWork(works, receives)

    def settle(self) -> None:
        """gloo may lose a send that begins while the other end closes, and then waits for it for ever: it is
        left to a thread that an abort abandons.
        """
        sends, self._sends = self._sends, []
        if not sends:
            return
        done = self._sender.wait_for([work for work, _ in sends])
        while not done.ended.wait(ABANDONED_SEND_S):
            if self._aborted.is_set():
                raise GroupBroken(ABORTED)
        if done.error is not None:
            raise _broken(done.error)

    def confirm(self) -> None:
        """Over TCP what arrives is what was sent, whoever leaves."""

    def sending(self) -> tuple[Sending, ...]:
        if self._watched is None:  # not before it is asked for: forming a group is in the way of a recovery
            self._watched = list(islice(self._connections(), WATCHED_MAX))
        with suppress(OSError):  # a connection ended: so will the group
            return tuple(map(_sending, self._watched))
        return ()

    def _connections(self) -> Iterator[socket.socket]:
        """Copies of the group's connections, which stay open."""
        for connection in _tcp_sockets():
            with suppress(OSError):
                if not listens(connection) and self._is_ours(connection):
                    # Not dup(), which makes it a blocking one, for gloo as well.
                    yield socket.socket(fileno=os.dup(connection.fileno()))

    def abort(self) -> None:
        self._aborted.set()
        with self._shutting:  # whoever comes second waits until it is done, and need not look again
            if not self._is_shut:
                self._shut()
            self._is_shut = True

    def _shut(self) -> None:
        for connection in _tcp_sockets():
            with suppress(OSError):
                if not listens(connection) and self._is_ours(connection):
                    connection.shutdown(socket.SHUT_RDWR)

    def _is_ours(self, connection: socket.socket) -> bool:
        is_accepted = _place(connection.getsockname()) in self._own
        return is_accepted or _place(connection.getpeername()) in self._peers

    def close(self) -> None:
        self.abort()
        for copy in self._watched or ():
            copy.close()
        self._watched = []
        self._sends = []
        self._sender.close()
        self._group = None


class _GlooWork:
    """Keeps its tensors: that gloo does is promised nowhere, and it writes into their memory."""

    def __init__(self, works: list[Any], kept: Sequence[Transfer]) -> None:
        self._works = works
        self._kept = kept

    def wait(self) -> None:
        try:
            for work in self._works:
                work.wait(timedelta(seconds=OPERATION_TIMEOUT_S))
        except RuntimeError as error:
            raise _broken(error) from None


class _Waited:
    """Some operations that a `_Waiter` waits for."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works
        self.ended = threading.Event()
        self.error: Exception | None = None


class _Waiter:
    """Waits for gloo's operations in a thread of its own, which is begun when it is first needed."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Waited | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wait_for(self, works: list[Any]) -> _Waited:
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="holdfast-sends", daemon=True)
            self._thread.start()
        waited = _Waited(works)
        self._waiting.put(waited)
        return waited

    def _wait(self) -> None:
        while (waited := self._waiting.get()) is not None:
            try:
                while waited.works:
                    waited.works.pop(0).wait(timedelta(seconds=OPERATION_TIMEOUT_S))
            except RuntimeError as error:
                waited.error = error
            waited.works.clear()
            waited.ended.set()

    def close(self) -> None:
        """Its thread ends before the interpreter does: C++ aborts if that comes upon it in gloo. One that
        waits for ever is left alone.
        """
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(ABANDONED_SEND_S)
        self._thread = None


def _broken(error: Exception) -> GroupBroken:
    # The traceback would keep this group's connections open, and the others waiting.
    error.__traceback__ = None
    return GroupBroken(_reason(error))


def _reason(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _tcp_sockets() -> Iterator[socket.socket]:
    return (copy for _, copy in network_sockets() if copy.type == socket.SOCK_STREAM)


_TCP_INFO = struct.Struct("=100xI64xQQ")
"""tcpi_total_retrans, tcpi_busy_time and tcpi_rwnd_limited of tcp_info (include/uapi/linux/tcp.h)."""


def _sending(connection: socket.socket) -> Sending:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    resent, busy_us, unwelcome_us = _TCP_INFO.unpack(told)
    return Sending(busy_s=(busy_us - unwelcome_us) / 1e6, resent=resent)


def _listening() -> set[Place]:
    """Where this process listens for TCP connections."""
    return {_place(connection.getsockname()) for connection in _tcp_sockets() if listens(connection)}


def _place(address: Any) -> Place:
    return address[0], address[1]


_decode_places = msgspec.msgpack.Decoder(list[Place]).decode
