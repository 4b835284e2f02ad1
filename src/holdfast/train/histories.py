"""Attempts of a run: which one a member's state belongs to, and which one the members continue.

A run that loses the only copy of its state begins anew from a checkpoint. A member that was cut off meanwhile
may come back with steps of the previous attempt. They have the same numbers as the new ones, but need not
have the same bits. A new attempt also begins with a generation that has no member of an earlier one: the
earlier one may have made steps that no member knows, and may have kept parts of them in a checkpoint.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from holdfast.train.shortage import AgreedSkips


class StateHistory(msgspec.Struct, frozen=True, array_like=True):
    """One attempt, from where the run began or went back to. token: names everything that was made in it.
    begun: the step it began from. before: the attempt that made that step; empty if there was no other.
    opened: the generation that began it.
    """

    token: str = ""
    begun: int = 0
    before: str = ""
    opened: int = 0

    def of(self, version: int) -> str:
        """The attempt that made this version."""
        return self.before if self.before and version == self.begun else self.token


class Historied(Protocol):
    """What a member reports of its state. fresh: it has committed nothing. settled: it has its part of the
    sum of the next step. bound: the lanes that this sum skips; None: those that the run always skips.
    skipped: the lanes that its last step skipped.
    """

    @property
    def version(self) -> int: ...
    @property
    def fresh(self) -> bool: ...
    @property
    def settled(self) -> bool: ...
    @property
    def bound(self) -> AgreedSkips | None: ...
    @property
    def skipped(self) -> tuple[int, ...]: ...
    @property
    def history(self) -> StateHistory: ...


StandingT = TypeVar("StandingT", bound=Historied)


def leading(standings: Sequence[StandingT]) -> StandingT:
    """The state that all continue from: the furthest one of the newest attempt with progress."""
    return max((one for one in standings if not one.fresh), key=lambda one: (one.history.opened, one.version))


def is_astray(standing: Historied, leader: Historied) -> bool:
    """Whether it has steps of another attempt than the one that all continue."""
    version = standing.version
    if standing.fresh or version < leader.history.begun:
        return False
    return standing.history.of(version) != leader.history.of(version)


def can_follow(standing: Historied, leader: Historied) -> bool:
    """Whether it lacks only the leader's last step and has what that step was made of. From the same state
    two attempts make the same sum. A leader that loaded its last step does not know how it was made.
    """
    is_behind_by_one = standing.settled and standing.version == leader.version - 1
    if not is_behind_by_one or leader.version <= leader.history.begun:
        return False
    if standing.bound is not None and standing.bound.lanes != leader.skipped:
        return False
    return standing.version == 0 or not is_astray(standing, leader)
