"""What control asks of a scheduler: a small protocol, with one contract for all that keep it."""

import re
from typing import Protocol

import msgspec

from holdfast.control.seeing import MachinesView
from holdfast.record.errors import HoldfastError, InputError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,252}")
"""A name that no command takes for an option, a list or a pattern."""


class NotOurs(HoldfastError):
    """Somebody else drained the node, or has taken it over: it stays as it is."""


class DrainCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node is drained, for people who look at it. rule: the mechanism; why: prices side by side."""

    rule: str = ""
    incidents: tuple[str, ...] = ()
    why: str = ""


UNTOLD = DrainCause()


class Scheduler(Protocol):
    """All raise `HoldfastError` where the scheduler refuses or does not answer."""

    def look(self, now_ns: int) -> MachinesView:
        """All nodes with their reasons, and the jobs that run."""

    def drain(self, node: str, reason: str, cause: DrainCause = UNTOLD) -> None:
        """No new job on this node; those that run go on. Raises `NotOurs` where it is out already."""

    def clear(self, node: str, jobs: tuple[str, ...]) -> str:
        """Have these jobs leave a node that is drained, and run elsewhere; in words, what was done."""

    def resume(self, node: str, reason: str) -> None:
        """Let jobs on the node again. Raises `NotOurs` unless it is out for exactly this reason."""

    def requeue(self, job: str) -> str:
        """End the job and have it wait for nodes again; in words, what was done."""


def require_name(name: str) -> str:
    """The name, if it is one that a command may be given."""
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} is not the name of a node or job.", hint="Nothing was done with it.")
    return name
