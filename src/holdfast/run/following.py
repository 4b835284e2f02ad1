"""The heirs on other machines, from the coordinator's side: the entries they have, and the deeds on hold.

The deeds of an entry are held here until a quorum of the electors has the entry (succession.py). If this
machine is the only elector, that is at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from holdfast.run import wire
from holdfast.run.estate import (
    Deed,
    Deliver,
    ElectorsChanged,
    Estate,
    EstateEntry,
    OperatorLine,
    TermBegun,
)
from holdfast.run.image import entry_bytes, estate_bytes
from holdfast.run.serving import SEND_BUFFER_BYTES_MAX, ClientConnection
from holdfast.run.succession import (
    ABSENT_S,
    ELECTORS_MAX,
    HUSH_S,
    Candidacy,
    Electorate,
    MachinePlace,
    Reign,
    Vote,
)

PART_BYTES = 256 << 10
"""How much of the estate, or of entries, goes into one message. Even over a slow network such a message
arrives before the heir gives up."""


class _FollowingHeir:
    """One heir. seen_s: when it last acknowledged anything in this term; None if it has not."""

    def __init__(self, connection: ClientConnection, came: wire.HeirCame, now_s: float) -> None:
        self.connection = connection
        self.place = came.place
        self.promised = came.promised
        self.came_s = now_s
        self.seen_s: float | None = None
        self.is_sent = False


class Following:
    """All heirs that follow. For the thread of the coordinator's loop only. own: where this coordinator
    listens.
    """

    def __init__(self, estate: Estate, own: MachinePlace, reign: Reign) -> None:
        self.reign = reign
        self.own = own
        self._estate = estate
        self._heirs: dict[str, _FollowingHeir] = {}
        self._held: deque[tuple[int, Deed]] = deque()
        self._unsent: list[bytes] = []
        self._is_flushing = False
        self._candidacy: Candidacy | None = None
        self._votes: dict[str, None] = {}
        self._asked_s = 0.0
        self.quorum_s = asyncio.get_running_loop().time()
        """When a quorum last had all entries, or more than before."""
        self._seen = 0
        self.places = {place.machine: place for place in estate.places} | {own.machine: own}
        """The places of all machines that were ever electors."""

    # ---- entries -------------------------------------------------------------------------------------------

    def enter(self, entry: EstateEntry) -> None:
        """Send the entry to the heirs. The caller holds its deeds next."""
        electorate = entry.electorate if isinstance(entry, TermBegun | ElectorsChanged) else None
        is_change = electorate is not None and electorate != self.reign.mandate.electorate
        self.reign.enter(electorate if is_change else None)
        if not self._heirs:
            return
        self._unsent.append(entry_bytes(entry))
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def hold(self, deed: Deed) -> None:
        self._held.append((self.reign.position, deed))

    def held_for(self, session: int) -> int:
        """How many held frames are for this session's client."""
        return sum(isinstance(deed, Deliver) and session in deed.sessions for _, deed in self._held)

    def may_see(self, line: OperatorLine) -> bool:
        """Whether the line is not on hold."""
        held = next((deed.number for _, deed in self._held if isinstance(deed, OperatorLine)), None)
        return held is None or line.number < held

    def release(self, carry_out: Callable[[Deed], None]) -> None:
        """Carry out the deeds of entries that a quorum has."""
        reign = self.reign
        if reign.committed >= reign.position or reign.committed > self._seen:
            self._seen, self.quorum_s = reign.committed, asyncio.get_running_loop().time()
        if not reign.is_established:
            return
        while self._held and self._held[0][0] <= reign.committed:
            carry_out(self._held.popleft()[1])

    def _flush(self) -> None:
        self._is_flushing = False
        entries, self._unsent = self._unsent, []
        while entries:
            size, count = 0, 0
            while count < len(entries) and (not count or size + len(entries[count]) <= PART_BYTES):
                size += len(entries[count])
                count += 1
            told = wire.frame(wire.EntriesTold(term=self.reign.term, entries=tuple(entries[:count])))
            del entries[:count]
            for heir in self._heirs.values():
                if heir.is_sent:
                    heir.connection.write(told)

    # ---- heirs ---------------------------------------------------------------------------------------------

    def heard(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        """Handle an heir's message. Raise `MalformedFrame` if an heir must not send it."""
        machine = connection.name
        now_s = asyncio.get_running_loop().time()
        match message:
            case wire.HeirCame() if machine == self.own.machine:
                connection.end()  # its launcher believes the coordinator here dead, but a successor lives
            case wire.HeirCame(place=place) if place.machine == machine:
                if (before := self._heirs.get(machine)) is not None:
                    before.connection.abort()
                self._heirs[machine] = _FollowingHeir(connection, message, now_s)
                self.admit()
            case wire.Followed(term=term, position=position):
                heir = self._heirs.get(machine)
                if heir is not None and heir.connection is connection and term == self.reign.term:
                    heir.seen_s = now_s
                    self.reign.acknowledged(machine, position)
            case wire.AskVote(candidacy=candidacy):
                vote = Vote(is_granted=False, reason="this machine coordinates")
                connection.send(wire.VoteCast(candidacy=candidacy, vote=vote))
            case wire.VoteCast(candidacy=candidacy, vote=vote):
                if vote.is_granted and candidacy == self._candidacy:
                    self._votes[machine] = None
            case _:
                raise wire.MalformedFrame(f"an heir does not send {type(message).__name__}")

    def closed(self, connection: ClientConnection) -> None:
        heir = self._heirs.get(connection.name)
        if heir is not None and heir.connection is connection:
            del self._heirs[connection.name]

    def admit(self) -> None:
        """Send the estate to heirs that have connected, electors first, as far as there is room."""
        electors = self.reign.mandate.electorate.machines
        for heir in sorted(self._heirs.values(), key=lambda one: one.place.machine not in electors):
            room = ELECTORS_MAX - 1 - sum(one.is_sent for one in self._heirs.values())
            if not heir.is_sent and room > 0 and heir.promised <= self.reign.term:
                self._send_estate(heir)

    def _send_estate(self, heir: _FollowingHeir) -> None:
        self._flush()  # the estate already contains those entries
        heir.is_sent = True
        data = estate_bytes(self._estate)
        heir.connection.unread_bytes_max = SEND_BUFFER_BYTES_MAX + len(data)  # it is sent all at once
        for start in range(0, len(data), PART_BYTES):
            part = data[start : start + PART_BYTES]
            is_last = start + PART_BYTES >= len(data)
            heir.connection.send(wire.EstatePart(term=self.reign.term, data=part, is_last=is_last))

    def beat(self) -> None:
        """Tell the heirs that this coordinator lives."""
        told = wire.frame(wire.Reigning(term=self.reign.term))
        for heir in self._heirs.values():
            heir.connection.write(told)

    def finish(self) -> None:
        """Tell the heirs that the run is over and they need not follow."""
        for heir in self._heirs.values():
            heir.connection.send(wire.LineOver())

    # ---- the electorate ------------------------------------------------------------------------------------

    def _present(self) -> list[str]:
        since_s = asyncio.get_running_loop().time() - ABSENT_S
        return [
            name for name, heir in self._heirs.items() if heir.seen_s is not None and heir.seen_s > since_s
        ]

    @property
    def is_doubtful(self) -> bool:
        """Whether there are entries that no quorum has."""
        return self.reign.committed < self.reign.position

    @property
    def absent(self) -> list[str]:
        """Electors that have not acknowledged anything for a while."""
        here = (self.own.machine, *self._present())
        return [one for one in self.reign.mandate.electorate.machines if one not in here]

    def change(self) -> ElectorsChanged | None:
        """The electorate with one machine more or less, if it should change; else None."""
        electorate, own = self.reign.mandate.electorate, self.own.machine
        if not self.reign.can_change:
            return None
        if not electorate.is_quorum((own, *self._present())):
            return None
        if absent := self.absent:
            if electorate.has_arbiter and len(electorate.machines) == 2:
                return None  # the arbiter decides which of the two continues
            return self.changed(electorate.without(absent[0], own))
        joining = [one for one in self._present() if one not in electorate.machines]
        if joining and len(electorate.machines) < ELECTORS_MAX:
            return self.changed(electorate.joined_by(joining[0], own))
        return None

    def changed(self, electorate: Electorate) -> ElectorsChanged:
        self.places |= {name: heir.place for name, heir in self._heirs.items()}
        known = tuple(self.places[machine] for machine in electorate.machines if machine in self.places)
        return ElectorsChanged(electorate=electorate, places=known)

    # ---- another term --------------------------------------------------------------------------------------

    def ask_for_term(self) -> None:
        """If an elector has promised a later term and no longer heeds this coordinator, ask the heirs to vote
        for this coordinator in a later term. Each call asks those that have not voted yet. After a while all
        are asked for another term, because an answer may be lost or the estate may have grown.
        """
        promised = max((heir.promised for heir in self._heirs.values()), default=0)
        if promised <= self.reign.term:
            return
        now_s, last = asyncio.get_running_loop().time(), self._candidacy
        if last is None or last.term <= promised or now_s - self._asked_s > HUSH_S:
            term = max(promised, last.term if last is not None else 0) + 1
            self._votes, self._asked_s = {self.own.machine: None}, now_s
            self._candidacy = Candidacy(machine=self.own.machine, term=term, known=self._estate.known)
        assert self._candidacy is not None
        for name, heir in self._heirs.items():
            if name not in self._votes:  # it connected later, or refused a moment ago
                heir.connection.send(wire.AskVote(candidacy=self._candidacy))

    def term_won(self, now_ns: int) -> TermBegun | None:
        """The entry that begins the new term, if enough heirs voted for it."""
        candidacy, reign = self._candidacy, self.reign
        if candidacy is None:
            return None
        if not reign.mandate.is_quorum(self._votes, reign.committed, is_granted=reign.is_granted):
            return None
        self.renew(candidacy.term, is_granted=reign.is_granted)  # the arbiter's refusal still holds
        return TermBegun(term=candidacy.term, now_ns=now_ns)

    def renew(self, term: int, *, is_granted: bool) -> None:
        """Let the next entry begin this term. Heirs are sent the estate again, so that those that no longer
        heeded the last term follow again.
        """
        self._flush()
        self.reign.renew(term, is_granted=is_granted)
        self._candidacy = None
        for heir in self._heirs.values():
            heir.is_sent, heir.seen_s, heir.promised = False, None, min(heir.promised, term)


def first_electorate(machine: str, *, has_arbiter: bool) -> Electorate:
    return Electorate(machines=(machine,), casting=machine, has_arbiter=has_arbiter)


def fewer(electorate: Electorate, machines: tuple[str, ...], casting: str) -> Electorate:
    """The electorate reduced to these machines, for which the arbiter has decided."""
    kept = tuple(one for one in electorate.machines if one in machines)
    return msgspec.structs.replace(electorate, machines=kept, casting=casting)
