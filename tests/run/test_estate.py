"""The protocol of succession, without a process or a clock: coordinators die at any moment, connections
swallow messages in transit, and a successor follows. No message is lost or arrives twice.
"""

import pickle
import random
from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from quantity import examples

from holdfast.record.events import KnownEvent
from holdfast.run import happenings, wire
from holdfast.run.estate import (
    ASKERS_MAX,
    Advanced,
    ClientCame,
    ClientName,
    Deliver,
    EndSession,
    Estate,
    EstateEntry,
    HandedOut,
    OperatorLine,
    StopWished,
    Told,
    Wishes,
    WishHeard,
    Written,
)
from holdfast.run.image import entry_bytes, entry_of, estate_bytes, estate_of
from holdfast.run.sent import FRAMES_BYTES_MAX, FRAMES_MAX, SentFrames
from holdfast.run.state import RunPolicy

SETUP = wire.Setup(
    lanes=8, seed=1, threads=1, torch="2", device="cpu", deterministic=True, model="m", parts={}
)
TOKEN = "token"
TURNS = 400
NODES = 2


class Client:
    """An agent or a worker: the messages it has received, and those in transit to and from it."""

    def __init__(self, world: "World", name: ClientName) -> None:
        self.world, self.name = world, name
        self.coming: deque[bytes] = deque()
        self.going: deque[bytes] = deque()
        self.heard: list[bytes] = []
        self.said: list[bytes] = []
        self.generation = 0
        self.step = 0
        self._sent = SentFrames()

    def send(self, message: wire.AnyMessage) -> None:
        frame = wire.frame(message)
        self._sent.add(frame)
        self.said.append(frame)
        self.going.append(frame)

    def hear(self) -> None:
        frame = self.coming.popleft()
        self.heard.append(frame)
        message = wire.unframe(frame[wire.LENGTH_BYTES :])
        member = self.name[1]
        match message:
            case wire.StartWorker(member=started):
                self.send(wire.WorkerStarted(member=started, pid=1))
                self.world.start(started)
            case wire.StopWorker(member=stopped):
                self.world.kill(stopped)
            case wire.Admitted():
                self.send(wire.WorkerReady(member=member, setup=SETUP, took_s=0.01))
            case wire.Announced(number=number, members=members):
                if member in members:
                    self.generation = number
                    self.send(wire.Published(generation=number, key=f"standing/{member}", value=b"v"))
                    self.send(
                        wire.Regrouped(
                            member=member,
                            generation=number,
                            version=self.step,
                            lanes=(0,),
                            steps_total=0,
                            parts_s={},
                        )
                    )

    def resume(self, estate: Estate) -> bool:
        """Continue with a successor: messages in transit are gone, and each sends what the other lacks."""
        session = estate.sessions.get(self.name)
        if session is None or session.is_given_up:
            return False
        missed, lacking = session.sent.after(len(self.heard)), self._sent.after(session.received)
        assert missed is not None
        assert lacking is not None
        self.coming, self.going = deque(missed), deque(lacking)
        return True


class World:
    """A run whose coordinator dies again and again. log: every entry that any coordinator has acted on."""

    def __init__(self, seed: int, copied: Callable[[Estate], Estate]) -> None:
        self._copy = copied
        self.chance = random.Random(seed)
        self.now_ns = 0
        policy = RunPolicy(run="r", slots=2, nodes_min=1, nodes_max=NODES, warm=1)
        self.leader = Estate(policy, 0, TOKEN, FRAMES_MAX)
        self.follower: Estate = self._copied()
        self.pipe: deque[EstateEntry] = deque()
        self.log: list[EstateEntry] = []
        self.clients: dict[ClientName, Client] = {}
        self.dead: list[Client] = []
        self.lines: list[int] = []
        self.record: dict[str, KnownEvent] = {}
        """What any coordinator has recorded."""
        self.takeovers = self.written = self.left = 0
        self.enter(Advanced(happenings.Begun(), 0))
        for number in range(NODES):
            agent = self.connect(("agent", f"n{number}"))
            agent.send(wire.AgentJoined(node=f"n{number}", slots=2, address="a", port=1))

    def _copied(self) -> Estate:
        return self._copy(self.leader)

    def enter(self, entry: EstateEntry) -> None:
        """Enter like the coordinator does: into the pipe first."""
        self.pipe.append(entry_of(entry_bytes(entry)))
        self.log.append(entry)
        for deed in self.leader.take(entry):
            match deed:
                case Deliver(sessions, data):
                    for session in sessions:
                        if (client := self.clients.get(self._name(session))) is not None:
                            client.coming.append(data)
                case EndSession(session):
                    self.disconnect(self._name(session))
                case OperatorLine(number=number):
                    self.lines.append(number)
                case happenings.Record(event):
                    self.write_down(event)
        if self.written and self.chance.random() < 0.1:
            count, self.written = self.written, 0
            self.enter(Written(count))

    def write_down(self, event: KnownEvent) -> None:
        assert self.record.setdefault(event.id, event) == event
        self.written += 1

    def _name(self, session: int) -> ClientName:
        return next(name for name, one in self.leader.sessions.items() if one.number == session)

    def advance(self, event: happenings.Happening) -> None:
        self.now_ns += self.chance.randrange(50_000_000)
        self.enter(Advanced(event, self.now_ns))

    def connect(self, name: ClientName) -> Client:
        self.clients[name] = Client(self, name)
        self.enter(ClientCame(name))
        return self.clients[name]

    def disconnect(self, name: ClientName) -> None:
        if (client := self.clients.pop(name, None)) is not None:
            self.dead.append(client)
            self.advance(happenings.Disconnected(name[0], name[1]))  # type: ignore[arg-type]

    def start(self, member: str) -> None:
        self.connect(("worker", member)).send(wire.WorkerJoined(member=member, pid=1))

    def kill(self, member: str) -> None:
        """Kill a member: its agent sees it, its last messages are still read, and its connection ends."""
        if (worker := self.clients.get(("worker", member))) is None:
            return
        while worker.going:
            self.take_from(worker)
        self.disconnect(worker.name)
        agent = self.clients.get(("agent", member.partition(".")[0]))
        if agent is not None:
            agent.send(wire.WorkerExited(member=member, signal=9, port=2))

    def take_from(self, client: Client) -> None:
        message = wire.unframe(client.going.popleft()[wire.LENGTH_BYTES :])
        role, name = client.name
        kinds: dict[str, Callable[..., happenings.Happening]]
        kinds = {"agent": happenings.FromNode, "worker": happenings.FromMember}
        self.advance(kinds[role](name, message))

    def die(self) -> None:
        """The coordinator dies. Its successor reads the pipe to its end and gets a successor of its own."""
        for entry in self.pipe:
            self.follower.take(entry)
        assert fingerprint(self.follower) == fingerprint(self.leader)
        self.leader = self.follower
        self.follower = self._copied()
        self.pipe.clear()
        self.takeovers += 1
        self.left += len(self.leader.unwritten)
        self.written = 0
        for pending in self.leader.unwritten:  # perhaps a second time
            self.write_down(pending.event)
        for client in [*self.clients.values()]:
            if not client.resume(self.leader):
                self.dead.append(self.clients.pop(client.name))
        self.enter(Told("taken over", self.now_ns, "trouble"))

    def turn(self) -> None:
        """Let a random event happen."""
        client = self.chance.choice([*self.clients.values()])
        what = self.chance.random()
        if client.going and what < 0.45:
            self.take_from(client)
        elif client.coming and what < 0.9:
            client.hear()
        elif what < 0.93:
            self.enter(HandedOut())
        elif what < 0.95:
            self.advance(happenings.Tick())
        elif what < 0.96 and client.name[0] == "worker":
            self.kill(client.name[1])
        elif client.name[0] == "worker" and client.generation:
            client.step += 1
            client.send(
                wire.Committed(
                    member=client.name[1], generation=client.generation, step=client.step, loss=None
                )
            )

    def drain(self) -> None:
        """Run until no message is in transit."""
        while busy := [one for one in self.clients.values() if one.coming or one.going]:
            for client in busy:
                while client.going:
                    self.take_from(client)
                if client.coming:
                    client.hear()


def plain(value: object) -> object:
    """A form that is equal for equal values, since sets have no order."""
    match value:
        case msgspec.Struct():
            return [plain(getattr(value, name)) for name in value.__struct_fields__]
        case dict():
            return [(plain(key), plain(one)) for key, one in value.items()]
        case set() | frozenset():
            return sorted(map(repr, value))
        case list() | tuple() | deque():
            return [plain(one) for one in value]
    return value


def fingerprint(estate: Estate) -> object:
    """Everything that a successor continues with."""
    sessions = [(name, one.received, one.sent.count) for name, one in estate.sessions.items()]
    return plain(
        (estate.state, sessions, estate.ids, estate.events, estate.lines, estate.notices, estate.unwritten)
    )


def played_again(
    world: World,
) -> tuple[dict[ClientName, list[bytes]], dict[ClientName, list[bytes]], dict[str, KnownEvent]]:
    """What each client would have received and sent with a coordinator that never died, and what it would
    have recorded. Names are unique here.
    """
    policy = world.leader.state.policy
    estate = Estate(policy, 0, TOKEN, FRAMES_MAX)
    heard: dict[ClientName, list[bytes]] = {}
    said: dict[ClientName, list[bytes]] = {}
    record: dict[str, KnownEvent] = {}
    clients: dict[int, ClientName] = {}
    for entry in world.log:
        match entry:
            case ClientCame(client):
                heard[client], said[client] = [], []
                clients[estate.known.position + 1] = client
            case Advanced(happenings.FromNode(name, message)):
                said["agent", name].append(wire.frame(message))
            case Advanced(happenings.FromMember(name, message)):
                said["worker", name].append(wire.frame(message))
        for deed in estate.take(entry):
            if isinstance(deed, Deliver):
                for session in deed.sessions:
                    heard[clients[session]].append(deed.data)
            elif isinstance(deed, happenings.Record):
                record[deed.event.id] = deed.event
    assert fingerprint(estate) == fingerprint(world.leader)
    return heard, said, record


def pickled(estate: Estate) -> Estate:
    """Copied as to a successor on the same machine."""
    copy: Estate = pickle.loads(pickle.dumps(estate))
    return copy


def sent(estate: Estate) -> Estate:
    """Copied as to an heir on another machine."""
    return estate_of(estate_bytes(estate))


@pytest.mark.parametrize("copied", [pickled, sent])
@pytest.mark.parametrize("block", range(2))
def test_whenever_coordinators_die_nothing_is_lost_and_nothing_comes_twice(
    block: int, copied: Callable[[Estate], Estate]
) -> None:
    takeovers = generations = left = 0
    for seed in range(block * examples(20), (block + 1) * examples(20)):
        world = World(seed, copied)
        for _ in range(TURNS):
            world.turn()
            if world.chance.random() < 0.03:
                world.die()
        world.die()
        world.drain()
        heard, said, record = played_again(world)
        assert world.record == record
        for name, client in world.clients.items():
            assert client.heard == heard[name], f"seed {seed}: {name} missed something"
            assert client.said == said[name], f"seed {seed}: {name} was not heard"
        assert world.lines == [*range(1, len(world.lines) + 1)]
        takeovers += world.takeovers
        generations += world.leader.state.generations.number
        left += world.left
    assert takeovers > examples(20)
    assert generations > examples(20)
    assert left > examples(20)


@pytest.mark.parametrize("copied", [pickled, sent])
def test_a_wish_to_end_the_run_counts_once_under_any_coordinator(copied: Callable[[Estate], Estate]) -> None:
    world = World(0, copied)
    while not world.leader.state.roster.running:
        world.turn()
    estate, now_ns = world.leader, world.now_ns

    def patience_after(wish: tuple[str, int] | None) -> str:
        nonlocal estate
        request = happenings.StopRequested("SIGINT", 130)
        deeds = estate.take(StopWished(request=request, now_ns=now_ns, wish=wish))
        assert wish is None or deeds[-1] == WishHeard(wish)  # also if it is heard again
        estate.take(Written(len(estate.unwritten)))
        estate = copied(estate)
        assert estate.state.ending.closing is not None
        return estate.state.ending.closing.patience

    assert [patience_after(wish) for wish in (("a", 1), None, ("a", 1), ("b", 1))] == [*["term"] * 3, "kill"]


def test_wishes_are_remembered_up_to_a_bound() -> None:
    wishes = Wishes()
    assert [wishes.count((f"asker {number}", 1)) for number in range(ASKERS_MAX + 1)] == [True] * (
        ASKERS_MAX + 1
    )
    assert len(wishes.last) == ASKERS_MAX
    assert not wishes.count((f"asker {ASKERS_MAX}", 1))


def test_frames_are_kept_up_to_a_bound() -> None:
    sent = SentFrames(3)
    for number in range(5):
        sent.add(b"%d" % number)
    assert sent.after(5) == []
    assert sent.after(2) == [b"2", b"3", b"4"]
    assert sent.after(1) is None  # no longer kept
    assert sent.after(6) is None  # never sent
    large = SentFrames()
    for _ in range(3):
        large.add(bytes(FRAMES_BYTES_MAX // 2))
    assert [len(frame) for frame in large.after(1) or []] == [FRAMES_BYTES_MAX // 2] * 2
    assert large.after(0) is None


def test_without_a_successor_nothing_is_kept() -> None:
    sent = SentFrames(0)
    sent.add(b"1")
    assert sent.count == 1
    assert sent.after(0) is None
