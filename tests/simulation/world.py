"""A run in a simulated cluster: the production membership, a clock that jumps, and a network that breaks.

A connection to the coordinator is TCP: it keeps its order, and when it breaks, messages in transit may be
lost. Between connections there is no order. Nothing is sent twice, because no process reconnects: a worker
whose connection ends is ended, and so is an agent, with its node; a node that returns is a new one.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from holdfast.record.events import GenerationOpened, MemberLost, StepCommitted
from holdfast.run import wire
from holdfast.run.hangs import FORMATION_HANGS
from holdfast.run.happenings import (
    Begun,
    Close,
    Disconnected,
    Effect,
    Ending,
    FromMember,
    FromNode,
    Happening,
    Present,
    Record,
    Say,
    Tick,
    ToMembers,
    ToNode,
)
from holdfast.run.membership import advance, deadline, initial
from holdfast.run.state import RunState
from holdfast.train.shortage import Shortage
from tests.simulation import faults
from tests.simulation.groups import Groups
from tests.simulation.history import (
    Announcing,
    BeganAgain,
    Died,
    Doubled,
    Ended,
    GivenUp,
    Heeded,
    Kept,
    Lingering,
    Note,
    Opened,
    Recorded,
    Returned,
    Summed,
    Told,
)
from tests.simulation.member import STAGES, Script, Stand
from tests.simulation.setting import Point, Setting

SECOND_NS = 10**9
START_NS = 1000 * SECOND_NS
BEAT_NS, SLOW_BEAT_NS = SECOND_NS, 4 * SECOND_NS
QUICK_NS = 20 * SECOND_NS
"""For this long heartbeats come every second, then less often, because the rest is waiting."""
TURNS_MAX = 200_000
"""Far more than any schedule has."""
PATIENCE_NS = 3 * 3600 * SECOND_NS
"""By then every run must have ended: all of the membership's waits together are shorter."""
LINGER_NS = 60 * SECOND_NS
"""How long a process that no longer counts may live until it is killed or notices that it is alone."""
SIGTERM, SIGKILL = 15, 9
PART_LOST = "part of the state lost"
"""The reason that the membership gives for ending members that start again."""
SPIKE_NS = 6 * SECOND_NS
LATE_NS_MAX = 40 * SECOND_NS
"""A late node joins by then, before any run stops waiting for one."""

Advance = Callable[[RunState, Happening, int], tuple[Effect, ...]]


class Line:
    """A connection to the coordinator. up_ns, down_ns: when the last message arrives. cut_ns: nothing arrives
    after that. deaf_until_ns: the coordinator's messages arrive no earlier. is_open: the coordinator has not
    seen its end.
    """

    __slots__ = ("cut_ns", "deaf_until_ns", "down_ns", "is_open", "lag_ns", "name", "role", "up_ns")

    def __init__(self, role: str, name: str) -> None:
        self.role = role
        self.name = name
        self.up_ns = self.down_ns = self.lag_ns = self.deaf_until_ns = 0
        self.cut_ns = 1 << 62
        self.is_open = False


class Agent:
    def __init__(self, name: str, line: Line) -> None:
        self.name = name
        self.line = line
        self.told: tuple[str, ...] = ()
        self.is_dead = self.is_paused = False
        self.held_back: list[tuple[Callable[..., None], tuple[Any, ...]]] = []


class World:
    """The simulated cluster. is_told: keep all events and effects of the membership, for a story."""

    def __init__(
        self,
        setting: Setting,
        seed: int,
        *,
        step: Advance = advance,
        script: type[Script] = Script,
        is_told: bool = False,
    ) -> None:
        self.setting = setting
        self.random = random.Random(seed)
        self.now_ns = START_NS
        self.state: RunState = initial(setting.policy, START_NS)
        self.notes: list[Note] = []
        self.agents: dict[str, Agent] = {}
        self.scripts: dict[str, Script] = {}
        self.lines: dict[tuple[str, str], Line] = {}
        self.groups = Groups(self)
        self.ranks = setting.policy.mesh.ranks
        self.slices = setting.policy.mesh.slices
        self.lanes = setting.lanes // self.slices
        on_shortage = "smaller batch" if setting.is_smaller else "same bits"
        self.shortage = Shortage(
            "smaller batch" if setting.is_smaller else "same bits", lanes=setting.lanes, slices=self.slices
        )
        self.setup = wire.Setup(
            lanes=setting.lanes,
            seed=1,
            threads=1,
            torch="2",
            device="cpu",
            deterministic=True,
            model="m",
            parts={},
            on_shortage=on_shortage,
        )
        self.ending: Ending | None = None
        self.is_calm = True
        self.held_until_ns = 0
        self.partitioned: dict[str, None] = {}
        self.turns = 0
        self.returning: dict[str, None] = {}
        self._step = step
        self._script = script
        self._is_told = is_told
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._due_ns: int | None = None
        self._durable: list[dict[int, tuple[int, int]]] = [{} for _ in range(self.ranks)]
        self._chosen: dict[int, tuple[int, int, str]] = {}
        self._makers: dict[tuple[int, int], dict[str, int]] = {}
        """The members that have committed each step of an attempt, and in which generation."""
        self._formed: frozenset[str] = frozenset()
        self._holding: dict[Script, frozenset[int]] = {}
        """The counted members that had the run's last step at the last announcement, and what parts of it."""
        self._unwanted: dict[str, int] = {}
        self.faults = faults.Faults(self)

    # ---- time ----------------------------------------------------------------------------------------------

    def at(self, delay_ns: int, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._count, call, args))

    def delay(self) -> int:
        """The delay of a message, or of anything else that takes a moment."""
        draw = self.random.random()
        if draw * 1000 < self.setting.spikes:
            return int(self.random.random() * SPIKE_NS)
        return int(self.setting.delay_ns * (0.2 + 2 * draw)) + 1000

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def run(self) -> None:
        """Run until the end, or until it is clear that there is none."""
        self.tell(Begun())
        for number in range(self.setting.nodes):
            is_late = number >= self.setting.nodes - self.setting.late
            self.at(min(self.delay() * (100 if is_late else 1), LATE_NS_MAX), self.join, f"n{number}")
        self.at(BEAT_NS, self._beat)
        queue = self._queue
        while self.ending is None and self.turns < TURNS_MAX:
            due_ns = self._due_ns
            next_ns = queue[0][0]
            self.turns += 1
            if due_ns is not None and max(due_ns, self.held_until_ns) <= next_ns:
                self.now_ns = max(self.now_ns, due_ns, self.held_until_ns)
                self.tell(Tick())
                continue
            at_ns, _, call, args = heapq.heappop(queue)
            self.now_ns = max(self.now_ns, at_ns)
            call(*args)
            if self.now_ns > START_NS + PATIENCE_NS:
                return

    def _beat(self) -> None:
        """Let every process that can send a heartbeat. Unchanged ones are heard at one moment."""
        nodes, members = [], []
        for agent in self.agents.values():
            if agent.is_dead or agent.is_paused or agent.name in self.partitioned:
                continue
            stopped = self._stopped(agent.name)
            if stopped == agent.told and agent.line.up_ns < self.now_ns:
                nodes.append(agent.line)
            else:
                agent.told = stopped
                self.from_agent(agent, wire.NodeBeat(node=agent.name, stopped=stopped))
        for script in self.scripts.values():
            if (
                script.is_dead
                or script.is_paused
                or not script.line.is_open
                or script.node in self.partitioned
            ):
                continue
            stage = STAGES.get(script.doing, "script")
            step = script.version + (stage in ("lanes", "reduce"))
            if script.beat == (step, stage) and script.line.up_ns < self.now_ns:
                members.append(script.line)
            else:
                script.beat = (step, stage)
                self.from_worker(script, wire.MemberBeat(member=script.name, step=step, stage=stage))
        self.at(self.delay(), self._hear_beats, nodes, members)
        self._look_for_lingering()
        self.at(BEAT_NS if self.now_ns < START_NS + QUICK_NS else SLOW_BEAT_NS, self._beat)

    def _stopped(self, node: str) -> tuple[str, ...]:
        return tuple(
            one.name
            for one in self.scripts.values()
            if one.is_paused and not one.is_dead and one.node == node
        )

    def _hear_beats(self, nodes: list[Line], members: list[Line]) -> None:
        if self.now_ns < self.held_until_ns:
            self.at(self.held_until_ns - self.now_ns, self._hear_beats, nodes, members)
            return
        roster = self.state.roster
        present = Present(
            tuple(one.name for one in nodes if one.is_open and one.name in roster.nodes),
            tuple(one.name for one in members if one.is_open and roster.living(one.name) is not None),
        )
        self.tell(present)

    def _look_for_lingering(self) -> None:
        for script in self.scripts.values():
            agent = self.agents.get(script.node)
            if script.is_dead or script.is_paused or self.state.roster.living(script.name) is not None:
                continue
            if agent is None or agent.is_dead or agent.is_paused or not agent.line.is_open:
                continue
            if agent.name in self.partitioned:
                continue
            since_ns = self._unwanted.setdefault(script.name, self.now_ns)
            if self.now_ns - since_ns > LINGER_NS:
                self.note(Lingering(self.now_ns, script.name))
                self._unwanted[script.name] = 1 << 62

    # ---- the coordinator -----------------------------------------------------------------------------------

    def tell(self, event: Happening) -> None:
        """Tell the membership, and carry out its effects, like run/coordinator.py."""
        state = self.state
        speaker = event.member if isinstance(event, FromMember) else ""
        is_fenced = bool(speaker) and state.roster.living(speaker) is None
        if is_fenced:
            before = (state.progress.step, state.generations.number, state.roster.running)
        effects = self._step(state, event, self.now_ns)
        self._due_ns = deadline(state)
        if self._is_told:
            self.note(Told(self.now_ns, event, effects))
        if is_fenced and not isinstance(event.message, wire.DeviceFailed):  # type: ignore[union-attr]
            after = (state.progress.step, state.generations.number, state.roster.running)
            if before != after or effects or state.roster.living(speaker) is not None:
                what = type(event.message).__name__  # type: ignore[union-attr]
                self.note(Heeded(self.now_ns, speaker, what))
        for effect in effects:
            self._carry_out(effect, effects)
            if isinstance(effect, Say) and effect.text.endswith("all of them begin again"):
                self._note_return(effects)

    def _carry_out(self, effect: Effect, effects: tuple[Effect, ...]) -> None:
        match effect:
            case ToNode(node, message):
                agent = self.agents.get(node)
                if agent is not None:
                    self._down(agent.line, self._obey, agent, message)
            case ToMembers(members, message):
                if isinstance(message, wire.Announced) and not {*message.members}.isdisjoint(members):
                    self._note_announced(message)
                for name in members:
                    line = self.lines.get(("worker", name))
                    if line is not None:
                        self._down(line, self.scripts[name].hear, message)
            case Close(role, name):
                line = self.lines.get((role, name))
                if line is not None:
                    self.at(10_000, self._ended, line)
                    self._down(line, self.notice_end, role, name)
            case Record(event):
                if isinstance(event, MemberLost):
                    self._note_lost(event.subject, effects)
                    if event.reason.startswith(FORMATION_HANGS):
                        self.note(GivenUp(self.now_ns, event.subject))
                elif isinstance(event, StepCommitted):
                    self.note(Recorded(self.now_ns, event.step, self._without_step(event.step)))
                elif isinstance(event, GenerationOpened) and event.step is not None:
                    self._note_opened(event, event.step)
            case Ending():
                self.ending = effect
                self.note(Ended(self.now_ns, effect.outcome, effect.reason))

    def _down(self, line: Line, call: Callable[..., None], *args: Any) -> None:
        at_ns = max(self.now_ns + self.delay(), line.down_ns + 1, line.deaf_until_ns)
        if at_ns <= line.cut_ns:
            line.down_ns = at_ns
            self.at(at_ns - self.now_ns, self._arrive_down, line, call, args)

    def _arrive_down(self, line: Line, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.now_ns <= line.cut_ns or call == self.notice_end:
            call(*args)

    def up(self, line: Line, happening: Happening) -> None:
        line.up_ns = max(self.now_ns + self.delay() + line.lag_ns, line.up_ns + 1)
        self.at(line.up_ns - self.now_ns, self._arrive, line, happening)

    def _arrive(self, line: Line, happening: Happening) -> None:
        if not line.is_open or self.now_ns > line.cut_ns:
            return
        if self.now_ns < self.held_until_ns:
            self.at(self.held_until_ns - self.now_ns, self._arrive, line, happening)
            return
        if isinstance(happening, FromMember) and isinstance(happening.message, wire.Published):
            self._pass_on(happening.member, happening.message)
        self.tell(happening)

    def hang_up(self, line: Line, *, is_abrupt: bool) -> None:
        """Let the coordinator see that the connection ended. is_abrupt: before messages in transit arrive."""
        if is_abrupt:
            line.cut_ns = min(line.cut_ns, self.now_ns)
        line.up_ns = max(self.now_ns + self.delay(), 0 if is_abrupt else line.up_ns + 1)
        self.at(line.up_ns - self.now_ns, self._ended, line)

    def _ended(self, line: Line) -> None:
        if self.now_ns < self.held_until_ns:
            self.at(self.held_until_ns - self.now_ns, self._ended, line)
        elif line.is_open:
            line.is_open = False
            del self.lines[line.role, line.name]
            self.tell(Disconnected(line.role, line.name))  # type: ignore[arg-type]

    def notice_end(self, role: str, name: str) -> None:
        """Let the other side of a connection see that it is over."""
        if role == "worker":
            script = self.scripts[name]
            if script.is_paused:
                script.held_back.append((self.notice_end, (role, name)))
            elif not script.is_released:
                complaint = f"holdfast: {wire.COORDINATOR_GONE}"
                self.at(self.delay(), self.exit, script, 2, complaint)
        elif name in self.agents:
            agent = self.agents[name]
            if agent.is_paused:
                agent.held_back.append((self.notice_end, (role, name)))
            else:
                self.faults.lose_node(name, is_seen=True)

    def _pass_on(self, sender: str, message: wire.Published) -> None:
        """Pass a notice on to the other members of its generation, like `Estate._pass_on`."""
        generation = self.state.generations.announced
        if generation is not None and generation.at_boundary and generation.formed_ns is None:
            stepping = self.state.generations.formed
            if stepping is not None and message.generation == stepping.number:
                generation = stepping
        if generation is None or message.generation != generation.number or sender not in generation.names:
            return
        key, _, rank = message.key.partition("/")
        stand = self.scripts[sender].told.get((message.generation, key), {}).get(int(rank))
        if stand is None:
            return
        for name in generation.members:
            if name != sender and (line := self.lines.get(("worker", name))) is not None:
                self._down(line, self.scripts[name].hear_told, message.generation, key, int(rank), stand)

    # ---- agents --------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """Let a node join; it is refused while the coordinator has the old one's connection."""
        self.returning.pop(name, None)
        if self.ending is not None:
            return
        if ("agent", name) in self.lines:
            self.returning[name] = None
            self.at(SECOND_NS, self.join, name)
            return
        line = self.lines["agent", name] = Line("agent", name)
        line.is_open = True
        agent = self.agents[name] = Agent(name, line)
        joined = wire.AgentJoined(node=name, slots=self.setting.policy.slots, address="127.0.0.1", port=1000)
        self.from_agent(agent, joined)

    def from_agent(self, agent: Agent, message: wire.FromAgent) -> None:
        if agent.is_paused:
            agent.held_back.append((self.from_agent, (agent, message)))
        elif not agent.is_dead:
            self.up(agent.line, FromNode(agent.name, message))

    def _obey(self, agent: Agent, message: wire.ToAgent) -> None:
        if agent.is_dead:
            return
        if agent.is_paused:
            agent.held_back.append((self._obey, (agent, message)))
            return
        match message:
            case wire.StartWorker(member=member):
                self.from_agent(agent, wire.WorkerStarted(member=member, pid=1))
                script = self._script(self, member, agent.name, Line("worker", member))
                self.scripts[member] = script
                self.reach(script, "start")
                self.at(self.delay() * 5, self._connect, script)
            case wire.StopWorker(member=member, grace_s=grace_s):
                script_or_none = self.scripts.get(member)
                if script_or_none is not None:
                    self._stop(script_or_none, grace_s)
            case wire.Locate(member=member):
                self.from_agent(agent, wire.Located(member=member, place=""))
            case wire.EndNode():
                agent.is_dead = True

    def _connect(self, script: Script) -> None:
        """Connect a script that is at `join()`. The coordinator refuses one that was given up meanwhile."""
        if script.is_dead:
            return
        if self.state.roster.living(script.name) is None:
            self.exit(script, 2, "holdfast: The run has no member of this name.")
            return
        self.lines["worker", script.name] = script.line
        script.line.is_open = True
        script.park()

    def _stop(self, script: Script, grace_s: float) -> None:
        if not grace_s:
            self.at(self.delay(), self.die, script, SIGKILL)
        elif script.is_paused:
            self.at(int(grace_s * SECOND_NS), self.die, script, SIGKILL)
        else:
            self.at(min(self.delay(), int(grace_s * SECOND_NS)), self.die, script, SIGTERM)

    # ---- workers -------------------------------------------------------------------------------------------

    def from_worker(self, script: Script, message: wire.FromWorker) -> None:
        if script.node not in self.partitioned:
            self.up(script.line, FromMember(script.name, message))

    def publish(self, script: Script, key: str, stand: Stand) -> None:
        self.from_worker(
            script, wire.Published(generation=script.number, key=f"{key}/{script.rank}", value=b"")
        )

    def die(self, script: Script, signal: int = SIGKILL) -> None:
        """Kill the process: its sent messages arrive, or only some of them."""
        self._end(script, wire.WorkerExited(member=script.name, signal=signal, port=2000))

    def exit(self, script: Script, code: int, complaint: str = "") -> None:
        self._end(script, wire.WorkerExited(member=script.name, code=code, complaint=complaint, port=2000))

    def _end(self, script: Script, exited: wire.WorkerExited, *, is_seen: bool = True) -> None:
        if script.is_dead:
            return
        how = f"signal {exited.signal}" if exited.code is None else f"exit {exited.code}"
        self.bury(script, how, is_seen=is_seen)
        agent = self.agents.get(script.node)
        if agent is not None and not agent.is_dead:
            self.at(self.delay(), self.from_agent, agent, exited)
        is_abrupt = exited.signal == SIGKILL and self.random.random() < 0.4
        self.hang_up(script.line, is_abrupt=is_abrupt)

    def bury(self, script: Script, how: str, *, is_seen: bool) -> None:
        """Note that the process is gone."""
        script.is_dead = True
        script.epoch += 1
        self.note(Died(self.now_ns, script.name, how))
        self.groups.leave(script, is_seen=is_seen)

    def reach(self, script: Script, point: Point) -> None:
        self.faults.reach(script, point)

    # ---- the members' state --------------------------------------------------------------------------------

    def slices_of(self, lanes: tuple[int, ...]) -> tuple[int, ...]:
        """A replica's lanes in the run's numbering."""
        return tuple(lane * self.slices + one for lane in lanes for one in range(self.slices))

    def checkpoint_for(self, generation: int) -> tuple[int, int, str]:
        """The newest step that every part has, its content, and its attempt: the same for all members of a
        generation.
        """
        if generation not in self._chosen:
            found = (0, 0, "")
            for step in sorted(self._durable[0]):
                kept = {part.get(step) for part in self._durable}
                if len(kept) == 1 and None not in kept:
                    content, history = self._durable[0][step]
                    found = (step, content, str(history))
            self._chosen[generation] = found
            self.note(Returned(self.now_ns, generation, found[0], self._holders_beside(generation)))
        return self._chosen[generation]

    def _holders_beside(self, generation: int) -> tuple[str, ...]:
        """Counted members outside the generation that together have the whole state. A generation that
        another has followed has only members that were given up.

        Tensor parallel ranks are on one node: those of several nodes cannot continue without others. While
        the run has no step, members that wait at its beginning do the first step again instead of waiting.
        """
        announced = self.state.generations.announced
        if announced is None or announced.number != generation:
            return ()
        members = announced.members
        holders = [
            one
            for one in self.scripts.values()
            if not (one.is_dead or one.fresh or one.name in members) and self.counts(one.name)
        ]
        is_whole = len({one.rail for one in holders}) == self.ranks
        if not self.state.progress.step and self.setting.policy.mesh.size("tp") > 1:
            is_whole = self._are_together(holders)
        return tuple(one.name for one in holders) if is_whole else ()

    def _are_together(self, scripts: list[Script]) -> bool:
        """Whether some of them form all ranks of a replica on one node."""
        slots = {(one.node, self.state.roster.members[one.name].slot) for one in scripts}
        seatings = [(node, slot // self.ranks) for node, slot in slots]
        return any(seatings.count(seating) == self.ranks for seating in seatings)

    def counts(self, name: str) -> bool:
        """Whether the membership has not given the member up."""
        return self.state.roster.living(name) is not None

    def kept(self, script: Script, note: Kept) -> None:
        """Note that a member has committed a step."""
        self.note(note)
        makers = self._makers.setdefault((note.history, note.step), {})
        for name, generation in makers.items():
            if (
                generation != note.generation
                and not self.scripts[name].is_dead
                and name not in script.members
                and self.state.roster.living(name) is not None
                and self.state.roster.living(script.name) is not None
            ):
                self.note(Doubled(self.now_ns, note.step, note.generation, name, generation))
        makers[script.name] = note.generation
        every = self.setting.checkpoint_every
        if every and note.step % every == 0 and script.rank < self.ranks:
            self.at(self.delay() * 3, self._make_durable, script, note)

    def _make_durable(self, script: Script, note: Kept) -> None:
        if not script.is_dead:
            self._durable[script.rail][note.step] = (note.content, note.history)

    def summed(self, script: Script, peers: tuple[str, ...], told: list[Any]) -> None:
        lanes = tuple(tuple(sorted(one[0])) for one in told)
        contents = tuple(one[2] for one in told)
        without = tuple(sorted(script.without))
        self.note(Summed(self.now_ns, script.number, script.version + 1, lanes, contents, without))

    # ---- the observer's notes ------------------------------------------------------------------------------

    def _note_announced(self, generation: wire.Announced) -> None:
        self._holding = {
            one: rails
            for one in self.scripts.values()
            if not one.is_dead and self.counts(one.name) and (rails := one.parts_of(self.state.progress.step))
        }
        announced = self.state.generations.announced
        given_up = tuple(name for name in generation.members if self.state.roster.living(name) is None)
        apart = () if announced is None else (*announced.leaving, *announced.shelved)
        left_out = tuple(
            one.name
            for one in self.scripts.values()
            if one.number
            and not one.fresh
            and not one.is_dead
            and self.ranks == 1
            and one.name not in generation.members
            and one.name not in apart
            and self.state.roster.living(one.name) is not None
        )
        self.note(Announcing(self.now_ns, generation.number, generation.members, given_up, left_out))

    def _note_lost(self, name: str, effects: tuple[Effect, ...]) -> None:
        """Check that a member that is given up while it lives is ended or was cut off."""
        script = self.scripts.get(name)
        if script is None or script.is_dead or not script.line.is_open:
            return
        is_ended = any(
            (isinstance(effect, Close) and effect.name in (name, script.node))
            or (
                isinstance(effect, ToNode)
                and isinstance(effect.message, wire.StopWorker)
                and effect.message.member == name
            )
            for effect in effects
        )
        if not is_ended:
            self.note(Lingering(self.now_ns, name))

    def _without_step(self, step: int) -> tuple[str, ...]:
        formed = self.state.generations.formed
        names = () if formed is None else formed.members
        return tuple(
            name for name in names if not self.scripts[name].is_dead and self.scripts[name].version < step
        )

    def _note_opened(self, event: GenerationOpened, step: int) -> None:
        is_apart = self._formed.isdisjoint(event.members)
        self._formed = frozenset(event.members)
        living = {one.name: rails for one, rails in self._holding.items() if not one.is_dead}
        is_whole = len(frozenset[int]().union(*living.values())) == self.ranks
        holders = tuple(living) if is_whole else ()
        self.note(Opened(self.now_ns, event.generation, step, self._not_in(event), is_apart, holders))

    def _not_in(self, event: GenerationOpened) -> tuple[str, ...]:
        living = [self.scripts[name] for name in event.members if not self.scripts[name].is_dead]
        return tuple(
            one.name
            for one in living
            if one.number < event.generation
            or (one.number == event.generation and one.version < (event.step or 0))
        )

    def _note_return(self, effects: tuple[Effect, ...]) -> None:
        """Note whether members that were ended because a part was gone had every part together. One that has
        only the sum of the last step has its part if that sum skips the same lanes.
        """
        ended = [
            one
            for effect in effects
            if isinstance(effect, Record)
            and isinstance(effect.event, MemberLost)
            and effect.event.reason == PART_LOST
            and not (one := self.scripts[effect.event.subject]).is_dead
        ]
        formed = self.state.generations.formed
        holders = [one for one in ended if formed is not None and one.name in formed.names]
        top = max((one.version for one in holders), default=0)
        skipped = next((one.skipped for one in holders if one.version == top), ())
        following = [one for one in holders if one.settled and one.version == top - 1]
        held = {one.rail for one in holders if one.version == top}
        held |= {one.rail for one in following if one.bound is None or one.bound.lanes == skipped}
        self.note(BeganAgain(self.now_ns, top > 0 and len(held) == self.ranks))
