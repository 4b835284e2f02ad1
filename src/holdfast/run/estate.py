"""The estate: everything a coordinator knows that another one would need to take over.

Only entries change it, in order, and it has no clock, socket or file. So a process that takes the same
entries has the same estate, down to the frames that each client has yet to be sent (standby.py). An entry's
effects outside are deeds, which the coordinator carries out.
"""

from collections import deque

import msgspec

from holdfast.record.events import KnownEvent, StepCommitted
from holdfast.record.journal import event_id
from holdfast.run import happenings, membership, wire
from holdfast.run.happenings import Effect, FromMember, FromNode, Happening, Severity
from holdfast.run.sent import SentFrames
from holdfast.run.state import Generation, RunPolicy
from holdfast.run.status import Happened
from holdfast.run.succession import Electorate, MachinePlace, Mandate, Stand
from holdfast.run.waits import ns

NOTICE_BYTES = 4 << 20
"""Published notices above this size are handed out at once."""
HAPPENED_MAX = 50
LINES_MAX = 1000
"""How many of the last lines for the operator are kept, for a viewer that reconnects."""
RATE_STEPS = 32
"""How many of the last steps the rate is computed from."""
KEYS_MAX = 4096
"""How many of the latest events can be named as causes."""
ASKERS_MAX = 256
"""How many of the latest askers for the end of the run are remembered."""

FIND_S = 3.0
"""How long nodes may take to find a coordinator on another machine."""
OUTLIVES = "the coordinator has heirs on other machines: the run continues if its machine is lost"
ENDS = "the coordinator no longer has heirs on other machines: if its machine is lost, the run ends"

ClientName = tuple[str, str]
"""The role and name of an agent or a worker."""

# ---- entries -----------------------------------------------------------------------------------------------


class Advanced(msgspec.Struct, frozen=True, tag=True):
    """An event and when it happened."""

    event: Happening
    now_ns: int


class ClientCame(msgspec.Struct, frozen=True, tag=True):
    """A new client has connected."""

    client: ClientName


class HandedOut(msgspec.Struct, frozen=True, tag=True):
    """The notices published so far go to the members."""


class Told(msgspec.Struct, frozen=True, tag=True):
    """The coordinator itself has a line for the operator. severity: None for a line that need not be kept."""

    text: str
    now_ns: int
    severity: Severity | None = None


class Written(msgspec.Struct, frozen=True, tag=True):
    """So many of the pending events are in the record now, the oldest first."""

    count: int


class StopWished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to end the run. wish: an operator's, by its asker and number; None for a signal to the
    coordinator's own process.
    """

    request: happenings.StopRequested
    now_ns: int
    wish: tuple[str, int] | None = None


class TermBegun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A coordinator begins its term. electorate: the new electorate, if the term changes it. Nodes get a
    moment more than their lease to find the coordinator.
    """

    term: int
    now_ns: int
    electorate: Electorate | None = None


class ElectorsChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The electorate from now on, and where its machines listen."""

    electorate: Electorate
    places: tuple[MachinePlace, ...]


EstateEntry = (
    Advanced | ClientCame | HandedOut | Told | Written | StopWished | TermBegun | ElectorsChanged
)  # fmt: skip

# ---- deeds -------------------------------------------------------------------------------------------------


class Deliver(msgspec.Struct, frozen=True):
    """Send the frame to the clients of these sessions that are connected. Sessions, not names: while this
    waits for a quorum, a client may leave and another one connect under its name.
    """

    sessions: tuple[int, ...]
    data: bytes


class EndSession(msgspec.Struct, frozen=True):
    """End the connection of this session, whose client was given up."""

    session: int


class OperatorLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line for the operator, counted from 1. member: the member that printed it; empty for Holdfast."""

    number: int
    text: str
    member: str = ""


class LineTold(msgspec.Struct, frozen=True):
    """Tell the viewers the line of succession, too."""

    line: wire.LineOfSuccession


class WishHeard(msgspec.Struct, frozen=True):
    """Confirm a request to end the run: it will not be forgotten."""

    wish: tuple[str, int]


Deed = (
    Deliver | EndSession | LineTold | OperatorLine | WishHeard
    | happenings.Record | happenings.Reply | happenings.Ending
)  # fmt: skip


class Wishes(msgspec.Struct, kw_only=True):
    """How often the run was asked to end. last: the last wish of each asker.

    A signal to all processes of a job reaches both the coordinator's process and the launcher, which passes
    it on. That is one wish, so the larger count of the two ways is the number of wishes.
    """

    operators: int = 0
    signals: int = 0
    last: dict[str, int] = {}

    def count(self, wish: tuple[str, int] | None) -> bool:
        """Count a wish; whether it is a new one. None for a signal to the coordinator's process."""
        before = max(self.operators, self.signals)
        if wish is None:
            self.signals += 1
        elif self._is_new(*wish):
            self.operators += 1
        return max(self.operators, self.signals) > before

    def _is_new(self, asker: str, number: int) -> bool:
        if number <= self.last.get(asker, 0):
            return False
        self.last.pop(asker, None)
        self.last[asker] = number
        if len(self.last) > ASKERS_MAX:
            del self.last[next(iter(self.last))]
        return True


class Duties(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator's duties besides coordinating; its successors inherit them on any machine. metrics: the
    address and port to serve them at; None to serve none. storm_per_min: faults a minute, from `seed`.
    """

    metrics: tuple[str, int] | None = None
    storm_per_min: float = 0.0
    seed: int = 0


NO_DUTIES = Duties()


class ClientSession:
    """The messages between the coordinator and one client, over all its connections. number: unique in the
    run.
    """

    def __init__(self, number: int, frames_max: int) -> None:
        self.number = number
        self.received = 0
        self.sent = SentFrames(frames_max)
        self.is_given_up = False


class Estate:
    """One run's estate. token: unique; the ids of the run's events begin with it. frames_max: how many frames
    per client are kept for a successor to send again.
    """

    def __init__(
        self,
        policy: RunPolicy,
        now_ns: int,
        token: str,
        frames_max: int = 0,
        duties: Duties = NO_DUTIES,
    ) -> None:
        self.state = membership.initial(policy, now_ns)
        self.sessions: dict[ClientName, ClientSession] = {}
        self.nodes: dict[str, None] = {}
        self.token = token
        self.events = 0
        """How many ids of events were given out."""
        self.ids: dict[str, str] = {}
        """Ids in the record, by the membership's keys."""
        self.unwritten: list[happenings.Record] = []
        """Events to record, under ids that are the same for each coordinator: if two of them record an event,
        stores keep one. A coordinator records them once a quorum has them, and ends without one after
        `QUORUM_WAIT_S`, so they are few."""
        self.happened: deque[Happened] = deque(maxlen=HAPPENED_MAX)
        self.lines: deque[OperatorLine] = deque(maxlen=LINES_MAX)
        self.commits: deque[tuple[int, int]] = deque(maxlen=RATE_STEPS)
        self.notices: list[wire.Notice] = []
        self.wishes = Wishes()
        self.takeovers = 0
        self.known = Stand()
        """The number of entries taken, and the term of the last one."""
        self.mandate = Mandate(electorate=Electorate(machines=()))
        self.places: tuple[MachinePlace, ...] = ()
        self.frames_max = frames_max
        self.duties = duties
        self.line_number = 0
        self._notice_bytes = 0
        self.addressees: Generation | None = None
        self._deeds: list[Deed] = []

    def take(self, entry: EstateEntry) -> list[Deed]:
        """Apply the entry. Return the deeds to carry out, in order."""
        term = entry.term if isinstance(entry, TermBegun) else self.known.term
        self.known = Stand(term, self.known.position + 1)
        match entry:
            case Advanced(event, now_ns):
                self._advance(event, now_ns)
            case ClientCame(client):
                self.sessions[client] = ClientSession(self.known.position, self.frames_max)
                role, name = client
                if role == "agent":
                    self.nodes[name] = None
                if self.line:
                    self._deliver((client,), wire.frame(self._line_told()))
            case HandedOut():
                self._hand_out()
            case Told(text, now_ns, severity):
                self._tell(text, now_ns, severity)
            case Written(count):
                del self.unwritten[:count]
                while len(self.ids) > KEYS_MAX:
                    del self.ids[next(iter(self.ids))]
            case StopWished(request=request, now_ns=now_ns, wish=wish):
                if self.wishes.count(wish):
                    self._advance(request, now_ns)
                if wish is not None:
                    self._deeds.append(WishHeard(wish))
            case TermBegun(electorate=electorate, now_ns=now_ns):
                for node in self.state.roster.nodes.values():
                    node.seen_ns = max(node.seen_ns, now_ns + ns(FIND_S))
                self._elect(electorate or self.mandate.electorate, self.places)
            case ElectorsChanged(electorate=electorate, places=places):
                self._elect(electorate, places)
        deeds, self._deeds = self._deeds, []
        return deeds

    @property
    def line(self) -> tuple[tuple[str, int], ...]:
        """Where to look for a coordinator if this one is gone; empty if no other machine can take over."""
        if not self.mandate.electorate.can_succeed:
            return ()
        machines = self.mandate.electorate.machines
        return tuple((place.host, place.port) for place in self.places if place.machine in machines)

    def _line_told(self) -> wire.LineOfSuccession:
        return wire.LineOfSuccession(places=self.line)

    def _elect(self, electorate: Electorate, places: tuple[MachinePlace, ...]) -> None:
        before = self.line
        if electorate != self.mandate.electorate:
            self.mandate = self.mandate.changed(electorate, self.known.position)
        self.places = places
        if self.line != before:
            self._deliver(tuple(self.sessions), wire.frame(self._line_told()))
            self._deeds.append(LineTold(self._line_told()))
        if bool(self.line) != bool(before):
            self._add_line(OUTLIVES if self.line else ENDS)

    def take_notices(self, notices: list[wire.Notice], addressees: Generation | None) -> None:
        """Take over notices that another process was about to hand out."""
        self.notices, self.addressees = notices, addressees
        self._notice_bytes = sum(len(sender) + len(key) + len(value) for sender, key, value in notices)

    def _advance(self, event: Happening, now_ns: int) -> None:
        match event:
            case FromNode(name, _):
                self._heard(("agent", name))
            case FromMember(name, message):
                self._heard(("worker", name))
                if isinstance(message, wire.Published):
                    self._pass_on(name, message)
            case happenings.Disconnected(role, name):
                self.sessions.pop((role, name), None)
        for effect in membership.advance(self.state, event, now_ns):
            self._take_effect(effect, now_ns)

    def _heard(self, client: ClientName) -> None:
        if (session := self.sessions.get(client)) is not None:
            session.received += 1

    def _take_effect(self, effect: Effect, now_ns: int) -> None:
        match effect:
            case happenings.ToNode(node, message):
                self._deliver((("agent", node),), wire.frame(message))
            case happenings.ToMembers(members, message):
                self._hand_out()  # keep the order
                self._deliver(tuple(("worker", member) for member in members), wire.frame(message))
            case happenings.Print(member, text):
                self._add_line(text, member)
            case happenings.Say(text, severity):
                self._tell(text, now_ns, severity)
            case happenings.Close(role, name):
                if (session := self.sessions.get((role, name))) is not None:
                    session.is_given_up = True
                    self._deeds.append(EndSession(session.number))
            case happenings.Record(event):
                if isinstance(event, StepCommitted):
                    self.commits.append((event.occurred_ns, event.step))
                pending = happenings.Record(self._named(event))
                self.unwritten.append(pending)
                self._deeds.append(pending)
            case happenings.Expect(key):
                self._reserve(key)
            case happenings.Reply() | happenings.Ending():
                self._deeds.append(effect)

    def _deliver(self, clients: tuple[ClientName, ...], data: bytes) -> None:
        sessions = [session for client in clients if (session := self.sessions.get(client)) is not None]
        for session in sessions:
            session.sent.add(data)
        self._deeds.append(Deliver(tuple(session.number for session in sessions), data))

    def _tell(self, text: str, now_ns: int, severity: Severity | None) -> None:
        if severity is not None:
            self.happened.append(Happened(occurred_ns=now_ns, text=text, severity=severity))
        self._add_line(text)

    def _add_line(self, text: str, member: str = "") -> None:
        self.line_number += 1
        line = OperatorLine(number=self.line_number, text=text, member=member)
        self.lines.append(line)
        self._deeds.append(line)

    def _named(self, event: KnownEvent) -> KnownEvent:
        """The event with the record's ids in place of the membership's keys."""
        causes = tuple(self.ids[key] for key in event.causes if key in self.ids)
        identity = self.ids.get(event.id) or self._reserve(event.id)
        return msgspec.structs.replace(event, id=identity, causes=causes)

    def _reserve(self, key: str) -> str:
        """An id for an event. key: the membership's name for it; empty if no other event refers to it."""
        self.events += 1
        identity = event_id(self.token, self.events)
        if key:
            self.ids[key] = identity
        return identity

    # ---- messages between members --------------------------------------------------------------------------

    def _pass_on(self, sender: str, message: wire.Published) -> None:
        """Pass a notice on to the other members of its generation, together with others of the same turn of
        the loop.

        Notices need not be kept for later: a generation is announced to all its members in one turn of the
        loop, so each member was sent the announcement before any notice, and both arrive in that order.
        """
        generation = self.state.generations.announced
        if generation is not None and generation.at_boundary and generation.formed_ns is None:
            stepping = self.state.generations.formed  # its members still talk until the boundary
            if stepping is not None and message.generation == stepping.number:
                generation = stepping
        if generation is None or message.generation != generation.number or sender not in generation.names:
            return
        size = len(sender) + len(message.key) + len(message.value)
        if self.addressees is not generation or self._notice_bytes + size > NOTICE_BYTES:
            self._hand_out()
        self.addressees = generation
        self.notices.append((sender, message.key, message.value))
        self._notice_bytes += size

    def _hand_out(self) -> None:
        """Send all members, in one message, the notices published since the last time."""
        notices, self.notices, self._notice_bytes = self.notices, [], 0
        if not notices:
            return
        assert self.addressees is not None
        number, apart = self.addressees.number, ""
        if len(notices) == 1:
            ((apart, key, value),) = notices
            data = wire.frame(wire.Published(generation=number, key=key, value=value))
        else:
            data = wire.frame(wire.PublishedTogether(generation=number, packed=wire.pack(notices)))
        members = self.addressees.members
        self._deliver(tuple(("worker", member) for member in members if member != apart), data)
