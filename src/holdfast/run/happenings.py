"""What happens to a run, as its membership is told it, and what the membership then wants done."""

from typing import Literal

import msgspec

from holdfast.record.events import KnownEvent
from holdfast.run import wire

Severity = Literal["note", "trouble", "failure"]

# ---- what happens ----------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True):
    """Agents can reach the coordinator from now on."""


class TookOver(msgspec.Struct, frozen=True):
    """The coordinator is dead, and this one, its successor, goes on in its place."""


class FromNode(msgspec.Struct, frozen=True):
    """An agent said something."""

    node: str
    message: wire.FromAgent


class FromMember(msgspec.Struct, frozen=True):
    """A worker said something."""

    member: str
    message: wire.FromWorker


class FromMembers(msgspec.Struct, frozen=True):
    """Several living workers said the same at one moment; the message is the last one's."""

    members: tuple[str, ...]
    message: wire.Committed | wire.Regrouped


class Present(msgspec.Struct, frozen=True):
    """These nodes and living workers were heard at one moment, and do what they did."""

    nodes: tuple[str, ...]
    members: tuple[str, ...]


class Disconnected(msgspec.Struct, frozen=True):
    """The connection of an agent or a worker ended."""

    role: Literal["agent", "worker"]
    name: str


class Tick(msgspec.Struct, frozen=True):
    """The time that `deadline` named has come."""


class StopRequested(msgspec.Struct, frozen=True):
    """The operator wants the run to end; the second time, at once. code: what `holdfast run` exits with."""

    reason: str
    code: int


class StrikeRequested(msgspec.Struct, frozen=True):
    """The operator wants a fault, now."""

    strike: wire.Strike


class MoveRequested(msgspec.Struct, frozen=True):
    """The operator wants a member or a node to leave its place, or a node to come back."""

    move: wire.Move


Heard = FromNode | FromMember | FromMembers | Present | Disconnected
Requested = StopRequested | StrikeRequested | MoveRequested
Happening = Begun | TookOver | Heard | Tick | Requested

# ---- what is to be done about it -------------------------------------------------------------------------


class ToNode(msgspec.Struct, frozen=True):
    """Send this to the node's agent."""

    node: str
    message: wire.ToAgent


class ToMembers(msgspec.Struct, frozen=True):
    """Send this to each of these workers."""

    members: tuple[str, ...]
    message: wire.ToWorker


class Close(msgspec.Struct, frozen=True):
    """End this connection: its other end was given up."""

    role: Literal["agent", "worker"]
    name: str


class Record(msgspec.Struct, frozen=True):
    """Write this down.

    Neither `id` nor `causes` are those of the record: the membership names an event that it will refer to
    by a key of its own, and whoever records puts the true ids in their place.
    """

    event: KnownEvent


class Expect(msgspec.Struct, frozen=True):
    """An event of this key will be recorded later: others may name it as their cause before that."""

    key: str


class Say(msgspec.Struct, frozen=True):
    """One line for the operator."""

    text: str
    severity: Severity = "note"


class Print(msgspec.Struct, frozen=True):
    """Print what a member said last, as if it had printed it itself: its agent held it back."""

    member: str
    text: str


class Reply(msgspec.Struct, frozen=True):
    """The answer to what the operator requested."""

    answer: wire.Answer


class Ending(msgspec.Struct, frozen=True):
    """The run is over. complaint: what is to be printed for the user, once: a traceback or a sentence."""

    outcome: wire.Outcome
    code: int
    reason: str
    complaint: str = ""


Effect = ToNode | ToMembers | Close | Record | Expect | Say | Print | Reply | Ending
