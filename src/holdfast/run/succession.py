"""Elections of the coordinator of a run that spans machines: terms, votes and quorums.

Pure: no clock, no socket, no file; coordinators and heirs run it, and so does the simulation. A few machines
of the run, the electors, receive every entry of the estate. The effects of an entry become visible only after
a quorum of electors has it. A coordinator reigns for a term. An heir begins the next term with the votes of a
quorum, and an elector does not vote for a candidate that lacks an entry which the elector has. Any two
quorums have a machine in common. So each term has one coordinator, and it knows everything that earlier ones
have made visible. The rules are those of Raft (Ongaro and Ousterhout, 2014), with the estate in place of a
log.
"""

from collections.abc import Collection

import msgspec

from holdfast.run.waits import ns

ELECTORS_MAX = 5
"""The most machines that receive every entry. Two of five may be lost at once."""
HUSH_S = 3.0
"""If an heir has not heard the coordinator for this long, the coordinator may be gone. It sends something
twice a second."""
STAGGER_S = 1.0
"""Each heir waits this much longer than the one before it in the line, to avoid splitting the votes."""
UNDECIDED_S = 10.0
"""An heir with half of the votes for which the arbiter has not decided stands again after this long. The
arbiter may have decided for the other half, whose coordinator has to be heeded meanwhile."""
ABSENT_S = 5.0
"""An elector that has acknowledged nothing for this long is removed, if the others are a quorum."""
QUORUM_WAIT_S = 60.0
"""A coordinator that has had no quorum for this long ends, together with the rest of its side of a cut."""


class MachinePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a machine's coordinator or heir listens."""

    machine: str
    host: str
    port: int


class Stand(msgspec.Struct, frozen=True, array_like=True, order=True):
    """How far a machine knows the estate: the term of its last known entry, and that entry's number."""

    term: int = 0
    position: int = 0


class Electorate(msgspec.Struct, frozen=True, kw_only=True):
    """The electors. casting: the machine that decides between two halves, unless there is an arbiter."""

    machines: tuple[str, ...]
    casting: str = ""
    has_arbiter: bool = False

    def is_quorum(self, said: Collection[str], *, is_granted: bool = False) -> bool:
        """Whether these machines are a quorum. is_granted: the arbiter has chosen their side."""
        twice = 2 * sum(machine in said for machine in self.machines)
        if twice != len(self.machines):
            return twice > len(self.machines)
        return is_granted if self.has_arbiter else self.casting in said

    @property
    def can_succeed(self) -> bool:
        """Whether the run could continue after the loss of any one of them."""
        return len(self.machines) > 2 or (self.has_arbiter and len(self.machines) == 2)

    def without(self, machine: str, casting: str) -> "Electorate":
        others = tuple(one for one in self.machines if one != machine)
        return msgspec.structs.replace(self, machines=others, casting=casting)

    def joined_by(self, machine: str, casting: str) -> "Electorate":
        return msgspec.structs.replace(self, machines=(*self.machines, machine), casting=casting)


class Mandate(msgspec.Struct, frozen=True, kw_only=True):
    """The electorate in the estate. before: the electorate until entry `changed_at`.

    The coordinator that makes the change may show nothing until a quorum of both electorates has that entry,
    because in the old one its casting vote alone may have been a quorum. All others use the last electorate
    that they know. The two differ by one machine, so a majority of one and a majority of the other have a
    machine in common. If the arbiter has chosen half of the old electorate, the new one consists of the
    machines that voted, and a quorum of them is always needed, because one of them may ask the arbiter next.
    """

    electorate: Electorate
    before: Electorate | None = None
    changed_at: int = 0

    def is_quorum(self, said: Collection[str], committed: int, *, is_granted: bool = False) -> bool:
        if not self.electorate.is_quorum(said):
            return False
        is_settled = self.before is None or committed >= self.changed_at
        return is_settled or (self.before or self.electorate).is_quorum(said, is_granted=is_granted)

    def changed(self, electorate: Electorate, position: int) -> "Mandate":
        before = self.electorate if self.electorate.machines else None  # there was none at the start
        return Mandate(electorate=electorate, before=before, changed_at=position)


# ---- the coordinator ---------------------------------------------------------------------------------------


class Reign:
    """One coordinator's reign: how far each elector has followed, and what may therefore become visible.

    position: of the last entry. established_at: the last inherited entry; a quorum must have it in this term
    before anything becomes visible. is_granted: the arbiter chose this coordinator, which counts until the
    smaller electorate is in force.
    """

    def __init__(self, machine: str, term: int, mandate: Mandate, position: int) -> None:
        self.machine = machine
        self.term = term
        self.mandate = mandate
        self.position = self.established_at = position
        self.committed = 0
        self.is_granted = False
        self._acked: dict[str, int] = {machine: position}
        self._settle()

    @property
    def is_established(self) -> bool:
        return self.committed >= self.established_at

    @property
    def can_change(self) -> bool:
        """Whether the electors may change: one change at a time, and none before this term has begun."""
        return self.is_established and self.committed >= self.mandate.changed_at

    def enter(self, electorate: Electorate | None = None) -> int:
        """Add an entry, which may change the electorate. Return its number."""
        self.position += 1
        self._acked[self.machine] = self.position
        if electorate is not None:
            self.mandate = self.mandate.changed(electorate, self.position)
        self._settle()
        return self.position

    def acknowledged(self, machine: str, position: int) -> None:
        """Note that a present or future elector has every entry up to this one, in this term."""
        if position <= self.position:
            self._acked[machine] = max(position, self._acked.get(machine, 0))
            self._settle()

    def renew(self, term: int, *, is_granted: bool) -> None:
        """Switch to another term, which the next entry begins. Earlier acknowledgements no longer count."""
        self.term, self.is_granted = term, is_granted
        self._acked = {self.machine: self.position}

    def _settle(self) -> None:
        for position in sorted(set(self._acked.values()), reverse=True):
            if position <= self.committed:
                return
            have = [machine for machine, reached in self._acked.items() if reached >= position]
            if self.mandate.is_quorum(have, self.committed, is_granted=self.is_granted):
                self.committed = position
                self.is_granted = self.is_granted and position < self.mandate.changed_at
                return


# ---- an heir -----------------------------------------------------------------------------------------------


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What an elector must never forget, even if its process is killed: the promised term, before which it
    heeds no other, and how far it has acknowledged the estate.
    """

    promised: int = 0
    known: Stand = Stand()


class Candidacy(msgspec.Struct, frozen=True, kw_only=True):
    """A request to coordinate in this term, from an heir, or from a coordinator because an elector has
    promised a later term than its own. is_trial: it only asks whether the electors would vote for it. An heir
    that stood in vain would no longer heed the coordinator, so it asks first.
    """

    machine: str
    term: int
    known: Stand
    is_trial: bool = False


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """An elector's answer. reason: why it refuses."""

    is_granted: bool
    reason: str = ""


class Elector:
    """The rules of one elector that does not coordinate. machine: its name. heard_ns: when it last heard a
    coordinator. has_estate: it has the estate and could take over; after a restart it cannot.
    """

    def __init__(self, machine: str, memory: Memory, now_ns: int) -> None:
        self.machine = machine
        self.memory = memory
        self.electorate = Electorate(machines=())
        self.has_estate = False
        self.heard_ns = now_ns
        self.coordinator = ""
        self._waits_ns = 0

    def heeds(self, term: int) -> bool:
        """Whether to follow a coordinator of this term."""
        return term >= self.memory.promised

    def heard(self, coordinator: str, term: int, now_ns: int) -> None:
        """Note a message from the heeded coordinator, which is on machine `coordinator`."""
        self.coordinator = coordinator
        self.memory = msgspec.structs.replace(self.memory, promised=max(term, self.memory.promised))
        self.heard_ns = max(now_ns, self.heard_ns)

    def follows(self, known: Stand, electorate: Electorate) -> None:
        """Note that it has the estate up to `known`, after the whole estate or another entry. Entries of an
        earlier term beyond that never became visible.
        """
        self.memory = Memory(promised=max(known.term, self.memory.promised), known=known)
        self.electorate, self.has_estate = electorate, True

    def vote(self, candidacy: Candidacy, now_ns: int) -> Vote:
        """Vote on a candidacy. A granted vote changes `memory`, which must be saved before answering."""
        if candidacy.term <= self.memory.promised:
            return Vote(is_granted=False, reason=f"term {self.memory.promised} is promised")
        if now_ns - self.heard_ns < ns(HUSH_S) and candidacy.machine != self.coordinator:
            return Vote(is_granted=False, reason="the coordinator was heard a moment ago")
        if candidacy.known < self.memory.known:
            return Vote(is_granted=False, reason="it lacks entries of the estate")
        if not candidacy.is_trial:
            self.memory = msgspec.structs.replace(self.memory, promised=candidacy.term)
            self._wait(now_ns, HUSH_S)  # standing now would hinder the candidate it just voted for
        return Vote(is_granted=True)

    def due_ns(self) -> int | None:
        """When to stand for election, unless a coordinator is heard before; None for never."""
        machines = self.electorate.machines
        if not self.has_estate or self.machine not in machines:
            return None
        return max(self.heard_ns + ns(HUSH_S + STAGGER_S * machines.index(self.machine)), self._waits_ns)

    def _wait(self, now_ns: int, wait_s: float) -> None:
        """Do not stand before this time has passed; heirs then stand one after the other."""
        machines = self.electorate.machines
        turn = machines.index(self.machine) if self.machine in machines else 0
        self._waits_ns = max(self._waits_ns, now_ns + ns(wait_s + STAGGER_S * turn))

    def undecided(self, now_ns: int) -> None:
        """Wait after it had half of the votes and the arbiter did not decide for it."""
        self._wait(now_ns, UNDECIDED_S)

    def try_out(self, now_ns: int) -> Candidacy:
        """A trial candidacy, to ask whether the others would vote for it."""
        self._wait(now_ns, STAGGER_S)
        term = max(self.memory.promised, self.memory.known.term) + 1
        return Candidacy(machine=self.machine, term=term, known=self.memory.known, is_trial=True)

    def stand(self, trial: Candidacy) -> Candidacy | None:
        """Stand for election, with its own vote, after a successful trial. None if another was faster."""
        if not self._is_current(trial) or trial.term <= self.memory.promised:
            return None
        self.memory = msgspec.structs.replace(self.memory, promised=trial.term)
        return msgspec.structs.replace(trial, is_trial=False)

    def _is_current(self, candidacy: Candidacy) -> bool:
        return candidacy.known == self.memory.known and candidacy.term >= self.memory.promised

    def has_quorum(self, candidacy: Candidacy, votes: Collection[str], *, is_granted: bool = False) -> bool:
        """Whether these votes, its own included, are a quorum, unless it promised a later term meanwhile."""
        return self._is_current(candidacy) and self.electorate.is_quorum(votes, is_granted=is_granted)
