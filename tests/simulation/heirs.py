"""Elections among machines that may be cut off or die: the production rules under a simulated network.

The estate is a list here. A coordinator enters steps and generations into it and, once a quorum has them,
tells the members, of which each machine has one. A generation commits a step when all its members are in it
and reach each other. Connections keep their order. After a lost message, a connection delivers nothing more
and is replaced after a silence; a member then receives what it was sent. Everything follows from a seed.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.run.succession import (
    ABSENT_S,
    HUSH_S,
    QUORUM_WAIT_S,
    Candidacy,
    Elector,
    Electorate,
    Mandate,
    Memory,
    Reign,
    Stand,
)
from holdfast.run.waits import ns

BEAT_NS = ns(0.5)
STEP_NS = ns(0.3)
DOUBT_NS = ns(2.0)
LIVES_NS = ns(5.0)
"""A member that was not heard for this long is left out of the next generation."""
RETURN_NS = ns(4.0)
PHASES = (3, 8)
CALM_NS = ns(150.0)
PROGRESS = 10
"""The least number of steps in the calm at the end, and in a long phase in which a quorum is connected."""
LONG_NS = ns(60.0)
ARBITER = "arbiter"
STREAMED = ("estate", "entry", "reigning")
"""Messages over a connection that an heir follows; the connection's number comes first."""


class HeirEntry(NamedTuple):
    """One entry of the estate. members: of a generation that it opens; None for other entries."""

    term: int
    text: str
    generation: int = 0
    members: tuple[str, ...] | None = None
    mandate: Mandate | None = None


class Rules(NamedTuple):
    """The rules that may be broken deliberately."""

    reign: type[Reign] = Reign
    elector: type[Elector] = Elector


SOUND = Rules()


class HeirSetting(NamedTuple):
    machines: int
    has_arbiter: bool
    delay_ns: int
    phases: tuple[tuple[str, int, int], ...]
    """The fault, how long it lasts, and a number that chooses the target."""


FAULTS = (
    *("crash the coordinator", "crash", "restart", "restart"),
    *("cut the coordinator", "cut", "halve", "cut one way", "cut pairs", "slow", "calm"),
)


def drawn_heirs(seed: int) -> HeirSetting:
    draw = random.Random(seed)
    machines = draw.choice((2, 3, 3, 3, 4, 5))
    phases = tuple(
        (draw.choice(FAULTS), ns(draw.choice((0.5, 2.0, 4.0, 8.0, 20.0, 90.0))), draw.randrange(1 << 30))
        for _ in range(draw.randint(*PHASES))
    )
    return HeirSetting(
        machines=machines,
        has_arbiter=machines == 2 or draw.random() < 0.3,
        delay_ns=draw.choice((100_000, 5_000_000, 200_000_000)),
        phases=phases,
    )


class Machine:
    """One machine: its elector, the coordinator that it may have, and its member."""

    def __init__(self, world: "HeirWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.log: list[HeirEntry] = []
        self.elector = world.rules.elector(name, Memory(), world.now_ns)
        self.reign: Reign | None = None
        self.released = 0
        self.announced: HeirEntry | None = None
        self.quorum_ns = 0
        self.heard: dict[str, int] = {}
        self.followers: dict[str, tuple[int, int]] = {}
        self.deaf: dict[str, None] = {}
        self.session = (0, 0)
        self.upstream = ""
        self.broken: set[int] = set()
        self.candidacy: Candidacy | None = None
        self.votes: dict[str, None] = {}
        # ---- the member
        self.term = 0
        self.generation: tuple[int, tuple[str, ...]] = (0, ())
        self.version = 0

    @property
    def mandate(self) -> Mandate:
        """The mandate as this machine knows it."""
        return next(one.mandate for one in reversed(self.log) if one.mandate is not None)

    # ---- coordinating ------------------------------------------------------------------------------------

    def begin(self, term: int, mandate: Mandate) -> None:
        self.world.note_coordinator(self, term)
        self.reign = self.world.rules.reign(self.name, term, mandate, len(self.log))
        self.released, self.announced, self.quorum_ns = 0, None, self.world.now_ns
        self.heard, self.followers, self.deaf = {}, {}, {}

    def enter(
        self,
        text: str,
        *,
        generation: int = 0,
        members: tuple[str, ...] | None = None,
        electorate: Electorate | None = None,
    ) -> None:
        assert self.reign is not None
        self.reign.enter(electorate)
        mandate = self.reign.mandate if electorate is not None else None
        entry = HeirEntry(self.reign.term, text, generation, members, mandate)
        self.log.append(entry)
        for name, (session, _seen_ns) in self.followers.items():
            self.world.send(self, name, "entry", session, len(self.log), entry)
        self.release()

    def release(self) -> None:
        """Make visible what a quorum has."""
        reign = self.reign
        assert reign is not None
        if reign.committed >= len(self.log):
            self.quorum_ns = self.world.now_ns
        if reign.committed <= self.released or not reign.is_established:
            return
        self.world.note_released(self, reign.committed)
        for entry in self.log[self.released : reign.committed]:
            if entry.members is not None:
                self.announced = entry
                for member in entry.members:
                    self._announce(member)
        self.released = reign.committed

    def _announce(self, member: str) -> None:
        assert self.reign is not None
        assert self.announced is not None
        _, _, number, members, _ = self.announced
        self.world.send(self, member, "announce", self.reign.term, number, members)

    def _hear_member(self, member: str, generation: int) -> None:
        """Note that a member lives. Messages sent while it was cut off are sent again, as by run/sent.py."""
        self.heard[member] = self.world.now_ns
        last = self.announced
        if last is not None and member in (last.members or ()) and generation < last.generation:
            self._announce(member)

    def coordinate(self) -> None:
        """Do a coordinator's regular work, twice a second."""
        world, reign = self.world, self.reign
        assert reign is not None
        for name, (session, _seen_ns) in self.followers.items():
            world.send(self, name, "reigning", session, reign.term)
        if reign.committed < len(self.log) and world.now_ns - self.quorum_ns > DOUBT_NS:
            self._doubt()
            if self.is_dead:
                return
        if reign.is_established:
            self.enter("beats")
        self._elect()
        self._regroup()

    def _doubt(self) -> None:
        world = self.world
        for other in world.living():
            is_later = other.reign is not None and other.reign.term > (self.reign.term if self.reign else 0)
            if is_later and world.reaches(self.name, other.name) and world.reaches(other.name, self.name):
                world.replace(self)
                return
        if world.now_ns - self.quorum_ns > ns(QUORUM_WAIT_S):
            world.replace(self)

    def _elect(self) -> None:
        reign, now_ns = self.reign, self.world.now_ns
        assert reign is not None
        electorate = reign.mandate.electorate
        present = {name for name, (_, seen_ns) in self.followers.items() if now_ns - seen_ns < ns(ABSENT_S)}
        absent = [one for one in electorate.machines if one != self.name and one not in present]
        if reign.can_change and electorate.is_quorum((self.name, *present)):
            joining = [one for one in present if one not in electorate.machines]
            if absent and not (electorate.has_arbiter and len(electorate.machines) == 2):
                self.enter(f"without {absent[0]}", electorate=electorate.without(absent[0], self.name))
            elif joining:
                self.enter(f"with {joining[0]}", electorate=electorate.joined_by(min(joining), self.name))
        is_halved = electorate.has_arbiter and len(electorate.machines) == 2 and bool(absent)
        if is_halved and reign.committed >= reign.mandate.changed_at:
            term = reign.term + 1
            if self.world.ask_arbiter(self.name, Stand(reign.term, 0), term):
                self.world.note_coordinator(self, term)
                reign.renew(term, is_granted=True)
                self.enter("alone", electorate=electorate.without(absent[0], self.name))

    def _regroup(self) -> None:
        """Open a generation of the members that were heard recently."""
        reign, now_ns = self.reign, self.world.now_ns
        assert reign is not None
        living = sorted(
            name for name, seen_ns in self.heard.items() if now_ns - seen_ns < LIVES_NS or name == self.name
        )
        last = next((one for one in reversed(self.log) if one.members is not None), None)
        if reign.is_established and living and (last is None or last.members != tuple(living)):
            number = 1 if last is None else last.generation + 1
            self.enter(f"generation {number}", generation=number, members=tuple(living))

    # ---- following ---------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Find a coordinator, or stand for election."""
        world = self.world
        if world.now_ns - self.elector.heard_ns > ns(HUSH_S) / 2 or not self.upstream:
            for other in world.living():
                if other is self or other.reign is None:
                    continue
                if world.reaches(self.name, other.name) and world.reaches(other.name, self.name):
                    self._connect(other)
                    break
        due_ns = self.elector.due_ns()
        if due_ns is not None and world.now_ns >= due_ns:
            self._stand()

    def _connect(self, other: "Machine") -> None:
        self.world.sessions += 1
        session = self.world.sessions
        self.session, self.upstream = (session, -1), other.name
        assert other.reign is not None
        if not self.elector.heeds(other.reign.term):
            self.upstream = ""
            self.world.send(self, other.name, "promised", self.elector.memory.promised)
            return
        other.followers[self.name] = (session, self.world.now_ns)
        self.world.send(other, self.name, "estate", session, other.reign.term, tuple(other.log))

    def _stand(self) -> None:
        self._ask(self.elector.try_out(self.world.now_ns))

    def _ask(self, candidacy: Candidacy) -> None:
        """Ask all electors; a coordinator asks all heirs that have connected to it."""
        self.candidacy, self.votes = candidacy, {self.name: None}
        electorate = self.elector.electorate if self.reign is None else self.reign.mandate.electorate
        for machine in dict.fromkeys((*electorate.machines, *self.deaf)):
            if machine != self.name:
                self.world.send(self, machine, "candidacy", candidacy)
        self.count()

    def count(self) -> None:
        """Take over if its votes are enough, with the arbiter's or without."""
        if self.candidacy is None:
            return
        if self.reign is not None:
            self._renew(self.candidacy)
            return
        elector, candidacy = self.elector, self.candidacy
        is_enough = elector.has_quorum(candidacy, self.votes)
        if not is_enough and not elector.has_quorum(candidacy, self.votes, is_granted=True):
            return
        if candidacy.is_trial:
            standing = elector.stand(candidacy)
            if standing is not None:
                self._ask(standing)
        elif is_enough or self.world.ask_arbiter(self.name, candidacy.known, candidacy.term):
            self._take_over(candidacy, is_granted=not is_enough)
        else:
            elector.undecided(self.world.now_ns)

    def _take_over(self, candidacy: Candidacy, *, is_granted: bool) -> None:
        self.candidacy = None
        electorate = self.elector.electorate
        self.begin(candidacy.term, Mandate(electorate=electorate))
        assert self.reign is not None
        self.reign.is_granted = is_granted
        fewer = tuple(one for one in electorate.machines if one in self.votes)
        kept = Electorate(machines=fewer, casting=self.name, has_arbiter=electorate.has_arbiter)
        self.enter(f"term {candidacy.term}", electorate=kept if is_granted else None)

    def _renew(self, candidacy: Candidacy) -> None:
        """A coordinator continues in a later term, with the votes of the heirs that follow it."""
        reign = self.reign
        assert reign is not None
        is_granted = reign.is_granted
        if candidacy.term > reign.term and reign.mandate.is_quorum(
            self.votes, reign.committed, is_granted=is_granted
        ):
            self.candidacy = None
            self.world.note_coordinator(self, candidacy.term)
            reign.renew(candidacy.term, is_granted=is_granted)
            self.enter(f"term {candidacy.term}")

    def hear(self, sender: str, kind: str, *said: Any) -> None:
        match kind:
            case "estate":
                self._take_estate(sender, *said)
            case "entry":
                self._take_entry(sender, *said)
            case "reigning":
                session, term = said
                if self._is_current(sender, session) and self.elector.heeds(term):
                    self.elector.heard(sender, term, self.world.now_ns)
                    self._acknowledge(sender, session)
            case "acknowledge":
                session, position = said
                if self.reign is not None and self.followers.get(sender, (0, 0))[0] == session:
                    self.followers[sender] = (session, self.world.now_ns)
                    self.reign.acknowledged(sender, position)
                    self.release()
            case "candidacy":
                (candidacy,) = said
                if self.reign is None and self.elector.vote(candidacy, self.world.now_ns).is_granted:
                    self.world.send(self, sender, "vote", candidacy.term, candidacy.is_trial)
            case "vote":
                if self.candidacy is not None and said == (self.candidacy.term, self.candidacy.is_trial):
                    self.votes[sender] = None
                    self.count()
            case "promised":
                self.deaf[sender] = None
                asked = 0 if self.candidacy is None else self.candidacy.term - 1
                if self.reign is not None and said[0] > max(self.reign.term, asked):
                    known = Stand(self.reign.term, len(self.log))
                    self._ask(Candidacy(machine=self.name, term=said[0] + 1, known=known))
            case "beat":
                if self.reign is not None:
                    self._hear_member(sender, *said)
            case "announce":
                term, number, members = said
                if term >= self.term and number > self.generation[0]:
                    self.term, self.generation = term, (number, members)

    def _is_current(self, sender: str, session: int) -> bool:
        return self.reign is None and self.upstream == sender and self.session[0] == session

    def _take_estate(self, sender: str, session: int, term: int, log: tuple[HeirEntry, ...]) -> None:
        if not self._is_current(sender, session) or not self.elector.heeds(term):
            return
        self.log, self.session, self.candidacy = list(log), (session, len(log)), None
        self.elector.heard(sender, term, self.world.now_ns)
        self._followed(sender, session)

    def _take_entry(self, sender: str, session: int, position: int, entry: HeirEntry) -> None:
        if not self._is_current(sender, session):
            return
        if not self.elector.heeds(entry.term):
            self.upstream = ""
            return
        if position != len(self.log) + 1 or self.session[1] < 0:
            return  # the estate comes first, or already has it
        self.log.append(entry)
        self.elector.heard(sender, entry.term, self.world.now_ns)
        self._followed(sender, session)

    def _followed(self, sender: str, session: int) -> None:
        self.elector.follows(Stand(self.log[-1].term, len(self.log)), self.mandate.electorate)
        self._acknowledge(sender, session)

    def _acknowledge(self, sender: str, session: int) -> None:
        if self.session[1] >= 0:
            self.world.send(self, sender, "acknowledge", session, len(self.log))


class HeirWorld:
    """Machines, a network, and an observer who sees everything. wrong: violations, in sentences."""

    def __init__(self, setting: HeirSetting, seed: int, rules: Rules = SOUND) -> None:
        self.setting, self.rules = setting, rules
        self.random = random.Random(seed)
        self.now_ns = ns(1000.0)
        self.sessions = 0
        self.cuts: set[tuple[str, str]] = set()
        self.lag_ns = 0
        self.wrong: list[str] = []
        self.story: list[str] = []
        self.steps = 0
        self.takeovers = 0
        self.row = 0
        self._coordinators: dict[int, str] = {}
        self._released: list[HeirEntry] = []
        self._committed: tuple[int, tuple[str, ...]] = (0, ())
        self._version = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._arrivals: dict[tuple[str, str], int] = {}
        self.machines: dict[str, Machine] = {}
        self._names = 0
        for _ in range(setting.machines):
            self._come()
        first = self.machines["m0"]
        alone = Electorate(machines=("m0",), casting="m0", has_arbiter=setting.has_arbiter)
        first.begin(1, Mandate(electorate=alone))
        first.enter("begun", electorate=alone)

    def _come(self) -> None:
        machine = Machine(self, f"m{self._names}")
        self._names += 1
        self.machines[machine.name] = machine
        self._beat(machine)

    # ---- time and the network ----------------------------------------------------------------------------

    def at(self, delay_ns: int, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._count, call, args))

    def run(self) -> None:
        self.at(STEP_NS, self._step)
        begin_ns = self.now_ns + ns(20.0)
        for kind, lasting_ns, number in self.setting.phases:
            self._run_until(begin_ns)
            steps, quorum = self.steps, self._strike(kind, number)
            begin_ns += lasting_ns
            self._run_until(begin_ns)
            if quorum and lasting_ns > LONG_NS and self.steps < steps + PROGRESS:
                self.wrong.append(f"{', '.join(quorum)} are a connected quorum, and do not go on")
            self.cuts.clear()
            self.lag_ns = 0
            begin_ns += ns(10.0)
        self.tell("calm")
        quorum, steps = self._connected_quorum(), self.steps
        self._run_until(self.now_ns + CALM_NS)
        if quorum and self.steps < steps + PROGRESS:
            self.wrong.append("all are connected again, and do not go on")

    def _run_until(self, until_ns: int) -> None:
        while self._queue and self._queue[0][0] <= until_ns:
            self.now_ns, _, call, args = heapq.heappop(self._queue)
            call(*args)
        self.now_ns = until_ns

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now_ns / 1e9 - 1000:9.3f} {text}")

    def living(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if not machine.is_dead]

    def reaches(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self.cuts

    def send(self, sender: Machine, receiver: str, kind: str, *said: Any) -> None:
        if not self.reaches(sender.name, receiver):
            if kind in STREAMED:
                self._break(receiver, said[0])
            return
        delay_ns = 1000 + int((self.setting.delay_ns + self.lag_ns) * 2 * self.random.random())
        pair = (sender.name, receiver)
        arrives_ns = max(self.now_ns + delay_ns, self._arrivals.get(pair, 0) + 1)
        self._arrivals[pair] = arrives_ns
        self.at(arrives_ns - self.now_ns, self._arrive, sender.name, receiver, kind, said)

    def _arrive(self, sender: str, receiver: str, kind: str, said: tuple[Any, ...]) -> None:
        machine = self.machines.get(receiver)
        if machine is None or machine.is_dead:
            return
        is_lost = not self.reaches(sender, receiver)
        if kind in STREAMED and (is_lost or said[0] in machine.broken):
            self._break(receiver, said[0])
        elif not is_lost:
            machine.hear(sender, kind, *said)

    def _break(self, receiver: str, session: int) -> None:
        """Break the connection: messages after a lost one do not arrive either."""
        if receiver in self.machines:
            self.machines[receiver].broken.add(session)
            if self.machines[receiver].session[0] == session:
                self.machines[receiver].upstream = ""

    def _beat(self, machine: Machine) -> None:
        if machine.is_dead:
            return
        for other in self.living():
            if other.reign is not None and other.reign.term >= machine.term:
                if other is machine:
                    machine.heard[machine.name] = self.now_ns
                else:
                    self.send(machine, other.name, "beat", machine.generation[0])
        if machine.reign is not None:
            machine.coordinate()
        else:
            machine.follow()
        self.at(BEAT_NS + self.random.randrange(1 + BEAT_NS // 5), self._beat, machine)

    # ---- steps -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Members of a generation that all its members have joined, and that reach each other, commit a step:
        all of them, or some of them if a fault intervenes.
        """
        for number, members in sorted({one.generation for one in self.living()}):
            ranks = [self.machines[name] for name in members if name in self.machines]
            if not ranks or len(ranks) < len(members):
                continue
            if any(one.is_dead or one.generation != (number, members) for one in ranks):
                continue
            if any(not self.reaches(one, other) for one in members for other in members if one != other):
                continue
            version = max(one.version for one in ranks) + 1
            some = ranks if self.random.random() < 0.8 else ranks[: self.random.randint(1, len(ranks))]
            for one in ranks:
                one.version = version if one in some else version - 1
            self.steps += 1
            self._note_commit(number, members, version)
        self.at(STEP_NS, self._step)

    def _note_commit(self, number: int, members: tuple[str, ...], version: int) -> None:
        last, others = self._committed
        if number < last or (number == last and members != others):
            self.wrong.append(
                f"generation {number} ({', '.join(members)}) commits step {version} after generation {last} "
                f"({', '.join(others)}) has committed"
            )
        self._committed, self._version = (number, members), version

    # ---- the observer's notes ----------------------------------------------------------------------------

    def note_coordinator(self, machine: Machine, term: int) -> None:
        self.tell(f"{machine.name} coordinates in term {term}")
        self.takeovers += term > 1
        other = self._coordinators.setdefault(term, machine.name)
        if other != machine.name:
            self.wrong.append(f"term {term} has two coordinators, {other} and {machine.name}")

    def note_released(self, machine: Machine, committed: int) -> None:
        for position in range(machine.released, committed):
            entry = machine.log[position]
            if position >= len(self._released):
                self._released.append(entry)
            elif self._released[position] != entry:
                self.wrong.append(
                    f"{machine.name} shows {entry.text!r} as entry {position + 1}, which was seen as "
                    f"{self._released[position].text!r}"
                )
                return

    def ask_arbiter(self, name: str, known: Stand, term: int) -> bool:
        """Compare and set, like the row of a database."""
        if not self.reaches(name, ARBITER) or self.row > known.term:
            return False
        self.row = term
        return True

    # ---- faults ------------------------------------------------------------------------------------------

    def _strike(self, kind: str, number: int) -> list[str]:
        """Inflict the fault. Return the machines that are then a connected quorum, if there is one."""
        self.tell(kind)
        names = [machine.name for machine in self.living()]
        reigning = [one.name for one in self.living() if one.reign is not None]
        lead = reigning[-1] if reigning else names[0]
        chosen = names[number % len(names)]
        everyone = [*names, ARBITER]
        match kind:
            case "crash the coordinator" | "crash":
                self._crash(lead if kind != "crash" else chosen)
            case "restart":
                self._restart(self.machines[chosen])
            case "cut the coordinator" | "cut":
                self._cut([lead if kind != "cut" else chosen], everyone)
            case "halve":
                self._cut([one for place, one in enumerate(names) if number >> place & 1], everyone)
            case "cut one way":
                self.cuts |= {(chosen, one) for one in everyone if one != chosen}
            case "cut pairs":
                draw = random.Random(number)
                self.cuts |= {
                    (one, other) for one in names for other in names if one != other and draw.random() < 0.3
                }
            case "slow":
                self.lag_ns = ns(1.5)
        return self._connected_quorum()

    def _cut(self, side: list[str], everyone: list[str]) -> None:
        for one in side:
            for other in everyone:
                if other not in side:
                    self.cuts |= {(one, other), (other, one)}

    def _crash(self, name: str) -> None:
        self.machines[name].is_dead = True
        self.tell(f"{name} is dead")
        self.at(RETURN_NS, self._come)

    def replace(self, machine: Machine) -> None:
        """Replace the machine's coordinator and member, which have ended, by new ones."""
        self.tell(f"{machine.name} ends: it has no quorum")
        machine.is_dead = True
        self.at(RETURN_NS, self._come)

    def _restart(self, machine: Machine) -> None:
        """Kill the process of an heir; the next one has its memory."""
        if machine.reign is not None:
            return
        self.tell(f"the heir of {machine.name} is started again")
        machine.elector = self.rules.elector(machine.name, machine.elector.memory, self.now_ns)
        machine.log, machine.upstream, machine.candidacy, machine.session = [], "", None, (0, 0)

    def _connected_quorum(self) -> list[str]:
        """The largest group of living machines that all reach each other, if it is certainly a quorum."""
        if self.lag_ns or not self._released:
            return []
        mandate = next(one.mandate for one in reversed(self._released) if one.mandate is not None)
        names = [one.name for one in self.living() if one.name in mandate.electorate.machines]
        group: list[str] = []
        for name in names:
            if all(self.reaches(name, one) and self.reaches(one, name) for one in group):
                group.append(name)
        others = [one.name for one in self.living() if one.name not in group]
        pairs = [(one, other) for one in group for other in others]
        if any(self.reaches(one, other) or self.reaches(other, one) for one, other in pairs):
            return []  # a coordinator that some can hear keeps them from electing another
        if any(not self.machines[one].log for one in group):
            return []
        mandates = [self.machines[one].mandate for one in group] or [mandate]
        return group if all(one.electorate.is_quorum(group) for one in mandates) else []


class HeirFailure(NamedTuple):
    seed: int
    wrong: list[str]
    story: list[str]

    def __str__(self) -> str:
        told = "\n".join(self.story)
        return (
            f"seed {self.seed}: {self.wrong[0]}\n"
            f"replay: python -m tests.simulation --heirs --seed {self.seed}\n{told}"
        )


def run_heirs(seed: int, rules: Rules = SOUND) -> tuple[HeirWorld, HeirFailure | None]:
    world = HeirWorld(drawn_heirs(seed), seed, rules)
    world.run()
    return world, HeirFailure(seed, world.wrong, world.story) if world.wrong else None


def run_many_heirs(seeds: range) -> list[HeirFailure]:
    return [failure for seed in seeds if (failure := run_heirs(seed)[1]) is not None]
