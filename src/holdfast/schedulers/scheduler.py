"""The protocol that every scheduler implements for control."""

import re
from typing import Protocol

import msgspec

from holdfast.control.seeing import MachinesView
from holdfast.record.errors import HoldfastError, InputError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,252}")
"""A name that no command can mistake for an option, a list or a pattern."""


class NotOurs(HoldfastError):
    """Another person or program drained the node or took it over: it stays as it is."""


class DrainCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node is drained, for people who look at it. rule: the mechanism; why: the prices compared."""

    rule: str = ""
    incidents: tuple[str, ...] = ()
    why: str = ""


UNTOLD = DrainCause()


class Scheduler(Protocol):
    """All raise `HoldfastError` if the scheduler refuses or does not answer."""

    def look(self, now_ns: int) -> MachinesView:
        """All nodes with their reasons, and the running jobs."""

    def drain(self, node: str, reason: str, cause: DrainCause = UNTOLD) -> None:
        """Let no new job start on this node; running jobs go on. Raises `NotOurs` if it is out already."""

    def clear(self, node: str, jobs: tuple[str, ...]) -> str:
        """Move these jobs off a drained node; return in words what was done."""

    def resume(self, node: str, reason: str) -> None:
        """Let jobs start on the node again. Raises `NotOurs` unless it is out for exactly this reason."""

    def requeue(self, job: str) -> str:
        """End the job and put it back into the queue; return in words what was done."""


def require_name(name: str) -> str:
    """Return the name if it is safe in a command. Raises `InputError`."""
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} is not the name of a node or job.", hint="Nothing was done with it.")
    return name
