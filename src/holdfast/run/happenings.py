"""The events that a run's membership takes, and the effects that it returns.

All of them are tagged, because they are sent to heirs on other machines (image.py).
"""

from typing import Literal

import msgspec

from holdfast.record.events import KnownEvent
from holdfast.run import wire

Severity = Literal["note", "trouble", "failure"]

# ---- events ----------------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True, tag=True):
    """Agents can reach the coordinator from now on."""


class TookOver(msgspec.Struct, frozen=True, tag=True):
    """The coordinator is dead, and this one, its successor, has taken over. place: the other machine on which
    it runs, because the coordinator's is lost or cut off; empty if it is the same machine.
    """

    place: str = ""


class FromNode(msgspec.Struct, frozen=True, tag=True):
    """A message from an agent."""

    node: str
    message: wire.FromAgent


class FromMember(msgspec.Struct, frozen=True, tag=True):
    """A message from a worker."""

    member: str
    message: wire.FromWorker


class FromMembers(msgspec.Struct, frozen=True, tag=True):
    """The same message from several living workers at one moment; `message` is the last one's."""

    members: tuple[str, ...]
    message: wire.Committed | wire.Regrouped


class Present(msgspec.Struct, frozen=True, tag=True):
    """Heartbeats from these nodes and living workers at one moment, without a change."""

    nodes: tuple[str, ...]
    members: tuple[str, ...]


class Disconnected(msgspec.Struct, frozen=True, tag=True):
    """The connection of an agent or a worker ended."""

    role: Literal["agent", "worker"]
    name: str


class Unreached(msgspec.Struct, frozen=True, tag=True):
    """The machines of these workers acknowledge no packets, although messages from them may arrive. doubtful:
    how many members of the generation have not acknowledged the last packet, these included.
    """

    members: tuple[str, ...]
    doubtful: int


class Tick(msgspec.Struct, frozen=True, tag=True):
    """The time that `deadline` named has come."""


class StopRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the run to end; the second time, at once. code: the exit code of `holdfast run`."""

    reason: str
    code: int


class StrikeRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants a fault now."""

    strike: wire.Strike


class MoveRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants a member or a node to leave its place, or a node to come back."""

    move: wire.Move


Heard = FromNode | FromMember | FromMembers | Present | Disconnected | Unreached
Requested = StopRequested | StrikeRequested | MoveRequested
Happening = Begun | TookOver | Heard | Tick | Requested

# ---- effects ---------------------------------------------------------------------------------------------


class ToNode(msgspec.Struct, frozen=True, tag=True):
    """Send this to the node's agent."""

    node: str
    message: wire.ToAgent


class ToMembers(msgspec.Struct, frozen=True, tag=True):
    """Send this to each of these workers."""

    members: tuple[str, ...]
    message: wire.ToWorker


class Close(msgspec.Struct, frozen=True, tag=True):
    """End this connection, whose other end was given up."""

    role: Literal["agent", "worker"]
    name: str


class Record(msgspec.Struct, frozen=True, tag=True):
    """Record this event.

    From the membership, `id` and `causes` are not yet the record's: it names an event that it will refer to
    by a key of its own, and the estate replaces the keys by the record's ids.
    """

    event: KnownEvent


class Expect(msgspec.Struct, frozen=True, tag=True):
    """An event with this key will be recorded later. Others may name it as their cause before that."""

    key: str


class Say(msgspec.Struct, frozen=True, tag=True):
    """Tell the operator one line."""

    text: str
    severity: Severity = "note"


class Print(msgspec.Struct, frozen=True, tag=True):
    """Print a member's last output, which its agent held back, as if the member had printed it."""

    member: str
    text: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to the operator's request."""

    answer: wire.Answer


class Ending(msgspec.Struct, frozen=True, tag=True):
    """The run is over. complaint: a traceback or a sentence to print once for the user."""

    outcome: wire.Outcome
    code: int
    reason: str
    complaint: str = ""


Effect = ToNode | ToMembers | Close | Record | Expect | Say | Print | Reply | Ending
