"""What happens to a run, as its membership is told it, and what the membership then wants done.

All of it is tagged, because heirs on other machines are sent it (image.py).
"""

from typing import Literal

import msgspec

from holdfast.record.events import KnownEvent
from holdfast.run import wire

Severity = Literal["note", "trouble", "failure"]

# ---- what happens ----------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True, tag=True):
    """Agents can reach the coordinator from now on."""


class TookOver(msgspec.Struct, frozen=True, tag=True):
    """The coordinator is dead, and this one, its successor, goes on in its place. place: on which other
    machine, because the coordinator's is lost or cut off; empty: on the same.
    """

    place: str = ""


class FromNode(msgspec.Struct, frozen=True, tag=True):
    """An agent said something."""

    node: str
    message: wire.FromAgent


class FromMember(msgspec.Struct, frozen=True, tag=True):
    """A worker said something."""

    member: str
    message: wire.FromWorker


class FromMembers(msgspec.Struct, frozen=True, tag=True):
    """Several living workers said the same at one moment; the message is the last one's."""

    members: tuple[str, ...]
    message: wire.Committed | wire.Regrouped


class Present(msgspec.Struct, frozen=True, tag=True):
    """These nodes and living workers were heard at one moment, and do what they did."""

    nodes: tuple[str, ...]
    members: tuple[str, ...]


class Disconnected(msgspec.Struct, frozen=True, tag=True):
    """The connection of an agent or a worker ended."""

    role: Literal["agent", "worker"]
    name: str


class Unreached(msgspec.Struct, frozen=True, tag=True):
    """The machines of these workers acknowledge no packets, though they may be heard. doubtful: of how many
    members of the generation the last packet is not acknowledged either, these included.
    """

    members: tuple[str, ...]
    doubtful: int


class Tick(msgspec.Struct, frozen=True, tag=True):
    """The time that `deadline` named has come."""


class StopRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the run to end; the second time, at once. code: what `holdfast run` exits with."""

    reason: str
    code: int


class StrikeRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants a fault, now."""

    strike: wire.Strike


class MoveRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants a member or a node to leave its place, or a node to come back."""

    move: wire.Move


Heard = FromNode | FromMember | FromMembers | Present | Disconnected | Unreached
Requested = StopRequested | StrikeRequested | MoveRequested
Happening = Begun | TookOver | Heard | Tick | Requested

# ---- what is to be done about it -------------------------------------------------------------------------


class ToNode(msgspec.Struct, frozen=True, tag=True):
    """Send this to the node's agent."""

    node: str
    message: wire.ToAgent


class ToMembers(msgspec.Struct, frozen=True, tag=True):
    """Send this to each of these workers."""

    members: tuple[str, ...]
    message: wire.ToWorker


class Close(msgspec.Struct, frozen=True, tag=True):
    """End this connection: its other end was given up."""

    role: Literal["agent", "worker"]
    name: str


class Record(msgspec.Struct, frozen=True, tag=True):
    """Write this down.

    Neither `id` nor `causes` are those of the record: the membership names an event that it will refer to
    by a key of its own, and whoever records puts the true ids in their place.
    """

    event: KnownEvent


class Expect(msgspec.Struct, frozen=True, tag=True):
    """An event of this key will be recorded later: others may name it as their cause before that."""

    key: str


class Say(msgspec.Struct, frozen=True, tag=True):
    """One line for the operator."""

    text: str
    severity: Severity = "note"


class Print(msgspec.Struct, frozen=True, tag=True):
    """Print what a member said last, as if it had printed it itself: its agent held it back."""

    member: str
    text: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to what the operator requested."""

    answer: wire.Answer


class Ending(msgspec.Struct, frozen=True, tag=True):
    """The run is over. complaint: what is to be printed for the user, once: a traceback or a sentence."""

    outcome: wire.Outcome
    code: int
    reason: str
    complaint: str = ""


Effect = ToNode | ToMembers | Close | Record | Expect | Say | Print | Reply | Ending
