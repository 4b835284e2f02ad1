"""Attempts of a run to come further: which one a member's state is of, and which one the others go on with.

A run that loses the only copy of its state begins anew from a checkpoint. A member that was cut off meanwhile
may come back with steps of the attempt before. They have the same numbers as the new ones, and need not have
the same bits. Another attempt begins, too, where none of a generation's members was in the one before it:
that one may have made steps of which nobody has heard, and have kept parts of them in a checkpoint.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from holdfast.train.shortage import AgreedSkips


class StateHistory(msgspec.Struct, frozen=True, array_like=True):
    """One attempt to come further, from where the run began or went back to. token: of all that was made in
    it. begun: the step it began from. before: of which attempt that is; empty: there was no other. opened:
    the generation that began it.
    """

    token: str = ""
    begun: int = 0
    before: str = ""
    opened: int = 0

    def of(self, version: int) -> str:
        """Which attempt this version is of."""
        return self.before if self.before and version == self.begun else self.token


class Historied(Protocol):
    """What a member says of its state. fresh: it has committed nothing. settled: it has its part of the sum
    of the next step. bound: what that sum skips; None: what the run always skips. skipped: the lanes that its
    last step skipped.
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
    """The one that all go on from: the furthest of the newest attempt that has come anywhere."""
    return max((one for one in standings if not one.fresh), key=lambda one: (one.history.opened, one.version))


def is_astray(standing: Historied, leader: Historied) -> bool:
    """Whether it has steps that are not those of the attempt that all go on with."""
    version = standing.version
    if standing.fresh or version < leader.history.begun:
        return False
    return standing.history.of(version) != leader.history.of(version)


def can_follow(standing: Historied, leader: Historied) -> bool:
    """Whether it has what the leader made its last step of, and lacks that step only. From the same state two
    attempts make the same sum. Who loaded its last step cannot tell how it was made.
    """
    is_behind_by_one = standing.settled and standing.version == leader.version - 1
    if not is_behind_by_one or leader.version <= leader.history.begun:
        return False
    if standing.bound is not None and standing.bound.lanes != leader.skipped:
        return False
    return standing.version == 0 or not is_astray(standing, leader)
