"""Who may coordinate a run that spans machines: terms, votes, and how many must know before anybody sees.

Pure: no clock, no socket, no file; coordinators and heirs run it, and so does the simulation. A few machines
of the run, the electors, are told every entry of the estate. What an entry leads to is seen by nobody before
a quorum of them has it. A coordinator reigns for a term; an heir begins the next one with the votes of a
quorum, and an elector votes for nobody who lacks an entry that it has itself. Any two quorums have a machine
in common: so there is one coordinator to a term, and each knows all that those before it have let be seen.
The rules are those of Raft (Ongaro and Ousterhout, 2014), with the estate in place of a log.
"""

from collections.abc import Collection

import msgspec

from holdfast.run.waits import ns

ELECTORS_MAX = 5
"""So many machines are told every entry. Two of them may be lost at once."""
HUSH_S = 3.0
"""A coordinator that an heir has not heard for so long may be gone. It says something twice a second."""
STAGGER_S = 1.0
"""Each heir waits so much longer than the one before it in the line: they would split the votes."""
UNDECIDED_S = 10.0
"""An heir that has half of the votes, and for which the arbiter has not decided, stands again after so long:
it has for another half, whose coordinator has to be heeded meanwhile."""
ABSENT_S = 5.0
"""An elector that has acknowledged nothing for so long is left out, if the others are a quorum."""
QUORUM_WAIT_S = 60.0
"""A coordinator that has had no quorum for so long ends, and with it what its side of a cut has left."""


class MachinePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a machine's coordinator or heir listens."""

    machine: str
    host: str
    port: int


class Stand(msgspec.Struct, frozen=True, array_like=True, order=True):
    """How far somebody knows the estate: the term in which its last entry was made, and its number."""

    term: int = 0
    position: int = 0


class Electorate(msgspec.Struct, frozen=True, kw_only=True):
    """The electors. casting: whose voice decides between two halves; with an arbiter, that does instead."""

    machines: tuple[str, ...]
    casting: str = ""
    has_arbiter: bool = False

    def is_quorum(self, said: Collection[str], *, is_granted: bool = False) -> bool:
        """Whether these are enough. is_granted: the arbiter has chosen their side."""
        twice = 2 * sum(machine in said for machine in self.machines)
        if twice != len(self.machines):
            return twice > len(self.machines)
        return is_granted if self.has_arbiter else self.casting in said

    @property
    def can_succeed(self) -> bool:
        """Whether the others could go on if one of them is lost, whichever it is."""
        return len(self.machines) > 2 or (self.has_arbiter and len(self.machines) == 2)

    def without(self, machine: str, casting: str) -> "Electorate":
        others = tuple(one for one in self.machines if one != machine)
        return msgspec.structs.replace(self, machines=others, casting=casting)

    def joined_by(self, machine: str, casting: str) -> "Electorate":
        return msgspec.structs.replace(self, machines=(*self.machines, machine), casting=casting)


class Mandate(msgspec.Struct, frozen=True, kw_only=True):
    """Who elects, as the estate has it. before: who did until `changed_at`.

    Of the coordinator that makes the change, nothing may be seen until a quorum of both has that entry: in
    the electorate before, it may have been a quorum by its own voice. Everybody else goes by the last
    electorate that it knows. They differ by one machine, so two majorities, of one and of the other, have a
    machine in common. Where the arbiter has chosen half of the electorate before, those who elect now are the
    ones that voted, and a quorum of them is needed in any case: one of them may ask the arbiter next.
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
        before = self.electorate if self.electorate.machines else None  # at the start there was nobody
        return Mandate(electorate=electorate, before=before, changed_at=position)


# ---- the coordinator ---------------------------------------------------------------------------------------


class Reign:
    """One coordinator's: how far each elector has followed, and what may therefore be seen.

    position: of the last entry. established_at: what it has inherited, and nobody may see before a quorum has
    it in this term. is_granted: the arbiter chose it, which counts until the electors are fewer.
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
        """One change of the electors at a time, and none before this term has begun."""
        return self.is_established and self.committed >= self.mandate.changed_at

    def enter(self, electorate: Electorate | None = None) -> int:
        """One entry more, by which the electors may change; its number."""
        self.position += 1
        self._acked[self.machine] = self.position
        if electorate is not None:
            self.mandate = self.mandate.changed(electorate, self.position)
        self._settle()
        return self.position

    def acknowledged(self, machine: str, position: int) -> None:
        """In this term, an elector or one who is to be has every entry up to this one."""
        if position <= self.position:
            self._acked[machine] = max(position, self._acked.get(machine, 0))
            self._settle()

    def renew(self, term: int, *, is_granted: bool) -> None:
        """For another term, which the next entry begins. What others have acknowledged was in this one."""
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
    """What an elector may never forget, not even with its process: the term that it has promised to heed no
    earlier one than, and how far it has said that it knows the estate.
    """

    promised: int = 0
    known: Stand = Stand()


class Candidacy(msgspec.Struct, frozen=True, kw_only=True):
    """An heir wants to coordinate in this term, or a coordinator to go on in it, because an elector has
    promised a later one than its own. is_trial: would they vote for it? An heir that stands in vain would
    make its own elector deaf to the coordinator, so it asks first.
    """

    machine: str
    term: int
    known: Stand
    is_trial: bool = False


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """reason: why not."""

    is_granted: bool
    reason: str = ""


class Elector:
    """The rules of one elector that does not coordinate. machine: its name. heard_ns: when it last heard a
    coordinator. has_estate: it could go on with it; one that was started again cannot.
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
        """A coordinator that is heeded reigns: the one on this machine."""
        self.coordinator = coordinator
        self.memory = msgspec.structs.replace(self.memory, promised=max(term, self.memory.promised))
        self.heard_ns = max(now_ns, self.heard_ns)

    def follows(self, known: Stand, electorate: Electorate) -> None:
        """It has the estate up to there: the whole of it, or another entry. What it knew of an earlier term
        beyond that was seen by nobody.
        """
        self.memory = Memory(promised=max(known.term, self.memory.promised), known=known)
        self.electorate, self.has_estate = electorate, True

    def vote(self, candidacy: Candidacy, now_ns: int) -> Vote:
        """What was granted is in `memory`, which has to be kept before anybody is told."""
        if candidacy.term <= self.memory.promised:
            return Vote(is_granted=False, reason=f"term {self.memory.promised} is promised")
        if now_ns - self.heard_ns < ns(HUSH_S) and candidacy.machine != self.coordinator:
            return Vote(is_granted=False, reason="the coordinator was heard a moment ago")
        if candidacy.known < self.memory.known:
            return Vote(is_granted=False, reason="it lacks entries of the estate")
        if not candidacy.is_trial:
            self.memory = msgspec.structs.replace(self.memory, promised=candidacy.term)
            self._wait(now_ns, HUSH_S)  # to stand now would be in the way of whom it has just voted for
        return Vote(is_granted=True)

    def due_ns(self) -> int | None:
        """When to stand for election, unless a coordinator is heard before; None: not at all."""
        machines = self.electorate.machines
        if not self.has_estate or self.machine not in machines:
            return None
        return max(self.heard_ns + ns(HUSH_S + STAGGER_S * machines.index(self.machine)), self._waits_ns)

    def _wait(self, now_ns: int, wait_s: float) -> None:
        """Stand no sooner than after so long, and then one after the other."""
        machines = self.electorate.machines
        turn = machines.index(self.machine) if self.machine in machines else 0
        self._waits_ns = max(self._waits_ns, now_ns + ns(wait_s + STAGGER_S * turn))

    def undecided(self, now_ns: int) -> None:
        """It had half of the votes, and the arbiter did not decide for it."""
        self._wait(now_ns, UNDECIDED_S)

    def try_out(self, now_ns: int) -> Candidacy:
        """Ask whether the others would vote for it."""
        self._wait(now_ns, STAGGER_S)
        term = max(self.memory.promised, self.memory.known.term) + 1
        return Candidacy(machine=self.machine, term=term, known=self.memory.known, is_trial=True)

    def stand(self, trial: Candidacy) -> Candidacy | None:
        """They would: stand for election, with its own vote. None: another one was quicker."""
        if not self._is_current(trial) or trial.term <= self.memory.promised:
            return None
        self.memory = msgspec.structs.replace(self.memory, promised=trial.term)
        return msgspec.structs.replace(trial, is_trial=False)

    def _is_current(self, candidacy: Candidacy) -> bool:
        return candidacy.known == self.memory.known and candidacy.term >= self.memory.promised

    def has_quorum(self, candidacy: Candidacy, votes: Collection[str], *, is_granted: bool = False) -> bool:
        """Whether these are enough, its own among them; not if it has promised a later term meanwhile."""
        return self._is_current(candidacy) and self.electorate.is_quorum(votes, is_granted=is_granted)
