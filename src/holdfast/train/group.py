"""A generation's group: moves tensors between members' memories, and can be aborted from another thread.

Groups are made directly, beside torch's global ones, so that a script may still have its own default group.
This module has what all groups share. tcp.py implements them for main memory, nccl.py for GPUs.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch

from holdfast.train.failures import device_failure

ABANDON_POLL_S = 0.002
ABORTED = "the group was aborted"

Transfer = tuple[torch.Tensor, int]
"""A tensor and the rank that it is sent to or received from."""


class GroupBroken(Exception):
    """An operation failed because a member is gone or the group was aborted."""


class Superseded(Exception):
    """A newer generation was opened while this one was being formed."""


_ATTEMPT_BROKEN = (GroupBroken, Superseded, RuntimeError, OSError)
"""Errors that forming a group raises if a member is gone; any other error is a mistake."""


class Sending(NamedTuple):
    """The state of a connection since it was made.

    busy_s: how long it has had data in flight, without the time in which the other end accepted none. resent:
    segments that were lost and sent again.
    """

    busy_s: float
    resent: int


class Work(Protocol):
    """An operation under way."""

    def wait(self) -> None:
        """Return when the received tensors may be used. Raises `GroupBroken`."""


class Group(Protocol):
    """Members of one generation, by rank."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_ordered(self) -> bool:
        """Whether a wait only orders work on the device and never blocks the host."""

    def along(self) -> AbstractContextManager[None]:
        """Order the computations of this block with the exchanges, after everything computed so far."""

    def exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int, *, is_kept: bool = True
    ) -> Work:
        """Begin sending and receiving. Both ends of a transfer call it with the same tags in the same order;
        between two members, tensors arrive in the order in which they are listed.

        is_kept: the group keeps the tensors in memory until this is settled. Otherwise the caller must keep
        them until it has waited for the work.
        """

    def settle(self) -> None:
        """Wait until all exchanges are complete: received tensors are in memory, and sent ones may be
        changed. Raises `GroupBroken`.
        """

    def confirm(self, peers: Sequence[int] | None = None) -> None:
        """Wait until these members, or all, have settled everything before: only then is it certain that none
        of them left in the middle. All of them call this. Raises `GroupBroken`.
        """

    def sending(self) -> tuple[Sending, ...]:
        """The state of some connections, always the same ones; empty if it cannot be queried."""

    def abort(self) -> None:
        """Make every operation fail now. Any thread may call this, more than once."""

    def close(self) -> None:
        """Release everything. Nothing writes into any tensor afterwards. A peer that has not settled its
        exchanges with this member may find the group broken.
        """


class Rendezvous:
    """How a group's members find each other: keys go through the coordinator, which knows its members.

    publish: sends a key to all other members. lookup: waits for a key; raises `Superseded` if it will never
    come. generation: the name of this group within the run.
    """

    def __init__(
        self, publish: Callable[[str, bytes], None], lookup: Callable[[str], bytes], *, generation: str = ""
    ) -> None:
        self.set = publish
        self.get = lookup
        self.generation = generation


def form(make: Callable[[], Group], superseded: Callable[[], bool]) -> Group:
    """Make a group, or raise `Superseded` as soon as it is no longer wanted.

    A member that dies meanwhile would delay all others until the timeout. The attempt is then left to its
    thread, which closes the group if it is formed after all. It holds no tensor of ours yet.
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
    """A group that is made in a thread of its own, and may be abandoned meanwhile."""

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


def _reason(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
