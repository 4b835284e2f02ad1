"""A cluster that exists only in memory: agents and scripts that answer the membership as real ones would.

Every connection is a queue that keeps its order; between connections any order can be chosen, which makes
races. The cluster always checks the membership's promises (`Cluster.tell`).
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

from holdfast.record.kernel import Xid
from holdfast.run.happenings import (
    Begun,
    Close,
    Disconnected,
    Effect,
    Ending,
    FromMember,
    FromNode,
    Happening,
    Record,
    Reply,
    Say,
    Tick,
    ToMembers,
    ToNode,
)
from holdfast.run.kernel_view import KernelView
from holdfast.run.membership import advance, deadline, initial
from holdfast.run.stacks import Stack
from holdfast.run.state import RunPolicy, RunState
from holdfast.run.wire import (
    CODE_DEVICE_FAILED,
    Admitted,
    AgentJoined,
    Announced,
    Answer,
    Broken,
    Committed,
    DeviceFailed,
    Dismissed,
    EndNode,
    Finished,
    FromAgent,
    FromWorker,
    Locate,
    Located,
    MemberBeat,
    NodeBeat,
    Published,
    Regrouped,
    Released,
    Setup,
    Stage,
    StartWorker,
    StopWorker,
    StrikeNode,
    StrikeWorker,
    ToAgent,
    ToWorker,
    WorkerExited,
    WorkerJoined,
    WorkerReady,
    WorkerStarted,
)

MS = 10**6
SECOND = 10**9
BEAT_NS = SECOND
TURNS_MAX = 20_000
SIGKILL = 9

Thing = TypeVar("Thing")

Doing = Literal[
    "importing", "parked", "building", "ready", "regrouping", "stepping", "broken", "finished", "plain"
]


def setup(**different: object) -> Setup:
    fields = {
        "lanes": 64,
        "seed": 1,
        "threads": 1,
        "torch": "2.13.0",
        "device": "cpu",
        "deterministic": True,
        "model": "m",
        "parts": {"weight": "w"},
    }
    return Setup(**{**fields, **different})  # type: ignore[arg-type]


class Process:
    """A worker: the script, and how far it is.

    hangs_in: it hangs there until it is told of a generation. sticks_in: it hangs for good as soon as it
    comes there. standing: the generation whose members have its standing. sees: what its agent finds out
    about it, at a time.
    """

    def __init__(self, member: str, node: str, *, joins: bool) -> None:
        self.member = member
        self.node = node
        self.doing: Doing = "importing" if joins else "plain"
        self.version = 0
        self.generation: Announced | None = None
        self.pending: Announced | None = None
        self.setup = setup()
        self.digest = "d"
        self.is_finished = False
        self.is_paused = False
        self.builds = True
        self.lingers = False
        self.hangs_in: Stage | None = None
        self.sticks_in: Stage | None = None
        self.standing = 0
        self.is_mute = False
        self.place = ""
        self.stacks: tuple[Stack, ...] = ()
        self.seen: KernelView | None = None
        self.sees: Callable[[int], Located] | None = None

    def differ(self, **different: object) -> None:
        """Be built differently from the others."""
        self.setup = setup(**different)

    def located(self, now_ns: int) -> Located:
        if self.sees is not None:
            return self.sees(now_ns)
        return Located(member=self.member, place=self.place, stacks=self.stacks, seen=self.seen)

    @property
    def stage(self) -> Stage:
        stages: dict[Doing, Stage] = {"regrouping": "regroup", "stepping": "forward", "finished": "finished"}
        return self.hangs_in or stages.get(self.doing, "waiting")


class Cluster:
    """The membership under test, and everything around it.

    queues: messages under way to the membership, by connection. agents, processes: those that live. script:
    called for every process as it starts, so that a test can make one different. is_deaf: agents ignore all
    requests. stall_steps: no step is ever committed.
    """

    def __init__(self, *, joins: bool = True, steps: int = 5, **policy: object) -> None:
        self.policy = RunPolicy(run="r", **policy)  # type: ignore[arg-type]
        self.now_ns = 1000 * SECOND
        self.joins = joins
        self.warms_up = False
        self.steps = steps
        self.state: RunState = initial(self.policy, self.now_ns)
        self.agents: dict[str, int] = {}
        self.processes: dict[str, Process] = {}
        self.queues: dict[tuple[str, str], deque[Happening]] = {}
        self.happenings: list[tuple[Happening, int]] = []
        self.effects: list[Effect] = []
        self.generations: list[Announced] = []
        self.given_up: set[str] = set()
        self.ending: Ending | None = None
        self.answer: Answer | None = None
        self.group_versions: dict[int, int] = {}
        self.script: Callable[[Process], None] = lambda process: None
        self.is_deaf = False
        self.stall_steps = False
        self._beat_ns = self.now_ns
        self.tell(Begun())

    # -- looking -----------------------------------------------------------------------------------------

    @property
    def said(self) -> list[str]:
        return [effect.text for effect in self.effects if isinstance(effect, Say)]

    def recorded(self, kind: type[Thing]) -> list[Thing]:
        events = [effect.event for effect in self.effects if isinstance(effect, Record)]
        return [event for event in events if isinstance(event, kind)]

    def sent(self, kind: type[Thing]) -> list[Thing]:
        sent = [effect.message for effect in self.effects if isinstance(effect, (ToNode, ToMembers))]
        return [message for message in sent if isinstance(message, kind)]

    # -- the membership, held to its promises ------------------------------------------------------------

    def tell(self, event: Happening) -> None:
        """Tell the membership of an event, and carry out its effects."""
        self.now_ns += MS // 10
        if isinstance(event, Disconnected) and event.role == "worker":
            self.given_up.add(event.name)
        if isinstance(event, FromNode) and isinstance(event.message, WorkerExited):
            self.given_up.add(event.message.member)
        if isinstance(event, FromMember) and isinstance(event.message, DeviceFailed):
            self.given_up.add(event.member)
        if isinstance(event, Disconnected) and event.role == "agent":
            self.given_up |= {
                name for name, member in self.state.roster.members.items() if member.node == event.name
            }
        self.happenings.append((event, self.now_ns))
        effects = advance(self.state, event, self.now_ns)
        due_ns = deadline(self.state)
        assert due_ns is None or due_ns > self.now_ns or not isinstance(event, Tick), (
            "a tick that changes nothing"
        )
        assert due_ns is not None or self.state.ending.is_over or not self.agents, (
            f"nothing to wait for after {event}"
        )
        for effect in effects:
            self.effects.append(effect)
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Close("worker", name):
                self.given_up.add(name)
            case Close("agent", name):
                members = self.state.roster.members.values()
                self.given_up |= {member.name for member in members if member.node == name}
            case ToNode(node, message):
                if node in self.agents and not self.is_deaf:
                    self._obey(node, message)
            case ToMembers(members, message):
                if isinstance(message, Announced) and not {*message.members}.isdisjoint(members):
                    self._check_generation(message, members)
                if isinstance(message, Released):
                    self._check_release(members)
                for member in members:
                    if member in self.processes:
                        self._hear(self.processes[member], message)
            case Ending():
                assert self.ending is None
                self.ending = effect
            case Reply(answer):
                self.answer = answer

    def _check_generation(self, generation: Announced, members: tuple[str, ...]) -> None:
        assert generation.members == members
        assert len(set(members)) == len(members) > 0
        assert not self.given_up & set(members), "a lost member is in a new generation"
        if self.generations:
            before = self.generations[-1]
            assert generation.number > before.number
            survivors = set(before.members) - self.given_up - set(self._left())
            if (announced := self.state.generations.announced) is not None:
                survivors -= {*announced.leaving, *announced.shelved}
            assert survivors <= set(members), "a survivor was left out"
        self.generations.append(generation)

    def _left(self) -> list[str]:
        return [name for name, member in self.state.roster.members.items() if member.has_left]

    def _check_release(self, members: tuple[str, ...]) -> None:
        """A released member that was stepping in the last generation must be through, or lost."""
        if not self.generations:
            return
        for name in set(self.generations[-1].members).intersection(members):
            process = self.processes.get(name)
            if process is None or process.is_finished or name in self.given_up:
                continue
            if process.doing in ("stepping", "broken"):
                raise AssertionError(f"{name} was released while it was {process.doing}")

    def replay(self) -> list[Effect]:
        """The effects of the same events at the same times in another state."""
        state = initial(self.policy, 1000 * SECOND)
        return [effect for event, at_ns in self.happenings for effect in advance(state, event, at_ns)]

    # -- agents ------------------------------------------------------------------------------------------

    def join_node(self, name: str, slots: int | None = None) -> None:
        self.agents[name] = slots or self.policy.slots
        self.queues[("agent", name)] = deque()
        joined = AgentJoined(node=name, slots=self.agents[name], address="127.0.0.1", port=1000)
        self.from_agent(name, joined)

    def from_agent(self, node: str, message: FromAgent) -> None:
        if node in self.agents:
            self.queues[("agent", node)].append(FromNode(node, message))

    def _obey(self, node: str, message: ToAgent) -> None:
        match message:
            case StartWorker(member=member):
                process = Process(member, node, joins=self.joins)
                self.processes[member] = process
                self.from_agent(node, WorkerStarted(member=member, pid=1))
                if self.joins:
                    self.queues[("worker", member)] = deque()
                    self.from_worker(process, WorkerJoined(member=member, pid=1, warms_up=self.warms_up))
                    process.doing = "parked"
                self.script(process)
            case StopWorker(member=member, grace_s=grace_s):
                self.kill(member, signal=SIGKILL if not grace_s else 15)
            case StrikeWorker(member=member, fault=fault):
                if fault == "kill":
                    self.kill(member)
                elif member in self.processes:
                    self.processes[member].is_paused = True
            case Locate(member=member):
                found = self.processes.get(member)
                seen = Located(member=member, place="") if found is None else found.located(self.now_ns)
                self.from_agent(node, seen)
            case StrikeNode():
                self.kill_node(node)
            case EndNode():
                for member in [name for name, process in self.processes.items() if process.node == node]:
                    self.kill(member)

    def kill_node(self, name: str) -> None:
        """A power cut: no process there says anything more, and every connection ends."""
        for member in [name_ for name_, process in self.processes.items() if process.node == name]:
            del self.processes[member]
            self._hang_up("worker", member)
        del self.agents[name]
        self._hang_up("agent", name)

    def kill(
        self,
        member: str,
        *,
        signal: int | None = SIGKILL,
        code: int | None = None,
        complaint: str = "",
        xid: Xid | None = None,
    ) -> None:
        """The process ends; its connection and its agent report it, in any order."""
        process = self.processes.pop(member, None)
        if process is None:
            return
        self._hang_up("worker", member)
        exited = WorkerExited(
            member=member, signal=signal, code=code, complaint=complaint, port=2000, xid=xid
        )
        self.from_agent(process.node, exited)

    def fail_device(
        self,
        member: str,
        failure: str = "CUDA error: device-side assert triggered",
        *,
        detail: str = "",
        is_said: bool = True,
        complaint: str = "",
        xid: Xid | None = None,
    ) -> None:
        """The GPU fails in the current step: the member reports it, and its process ends."""
        process = self.processes[member]
        if is_said:
            self.say_failed(process, failure, detail)
        complaint = complaint or f"Traceback of {member}\ntorch.AcceleratorError: {failure}"
        self.kill(member, signal=None, code=CODE_DEVICE_FAILED, complaint=complaint, xid=xid)

    def say_failed(self, process: Process, failure: str, detail: str = "") -> None:
        number = process.generation.number if process.generation is not None else 0
        self.from_worker(
            process,
            DeviceFailed(
                member=process.member,
                generation=number,
                step=process.version + 1 if number else 0,
                failure=failure,
                detail=detail,
            ),
        )

    def leave(self, member: str, code: int = 0, complaint: str = "") -> None:
        self.kill(member, signal=None, code=code, complaint=complaint)

    def _hang_up(self, role: Literal["agent", "worker"], name: str) -> None:
        if (role, name) in self.queues:
            self.queues[role, name].append(Disconnected(role, name))

    # -- scripts -----------------------------------------------------------------------------------------

    def from_worker(self, process: Process, message: FromWorker) -> None:
        self.queues[("worker", process.member)].append(FromMember(process.member, message))

    def _hear(self, process: Process, message: ToWorker) -> None:
        match message:
            case Admitted():
                process.doing = "building"
            case Announced():
                if process.sticks_in is not None and process.hangs_in == process.sticks_in:
                    pass
                elif message.at_boundary and process.doing in ("stepping", "finished", "broken"):
                    process.pending = message
                elif process.member not in message.members:
                    process.generation, process.doing = None, "ready"  # on the shelf
                else:
                    self._begin_regrouping(process, message)
            case Released():
                if not process.lingers:
                    self.leave(process.member)
            case Dismissed():
                self.leave(process.member, code=2, complaint=f"holdfast: {message.sentence}")
            case Published():
                raise AssertionError("the membership passes nothing on")

    def _begin_regrouping(self, process: Process, generation: Announced) -> None:
        process.generation, process.pending, process.doing = generation, None, "regrouping"
        process.hangs_in = process.sticks_in
        if process.hangs_in in (None, "state"):
            process.standing = generation.number
            rank = generation.members.index(process.member)
            standing = Published(generation=generation.number, key=f"standing/{rank}", value=b"")
            self.from_worker(process, standing)

    def break_group(self, member: str, reason: str = "reset") -> None:
        """A collective fails on this member, although no member died."""
        process = self.processes[member]
        assert process.generation is not None
        process.doing = "broken"
        number = process.generation.number
        broken = Broken(member=member, generation=number, reason=reason, operation="exchange gradients")
        self.from_worker(process, broken)

    def _group(self, process: Process) -> list[Process] | None:
        """The members of its generation; None if one of them is gone or elsewhere."""
        assert process.generation is not None
        group = [self.processes.get(name) for name in process.generation.members]
        if any(
            other is None
            or other.is_paused
            or other.generation is None
            or other.generation.number != process.generation.number
            for other in group
        ):
            return None
        return [other for other in group if other is not None]

    def can_move(self, process: Process) -> bool:
        if process.is_paused or process.hangs_in is not None:
            return False
        if process.doing == "building":
            return process.builds
        if process.doing == "regrouping":
            return self._can_regroup(process)
        return process.doing == "stepping"

    def _can_regroup(self, process: Process) -> bool:
        """Whether all have published their standings, and every member with a newer state gives it away."""
        group = self._group(process)
        return group is not None and all(
            other.standing >= process.standing
            and (other.hangs_in != "state" or other.version <= process.version)
            for other in group
        )

    def move(self, process: Process) -> None:
        """The script takes one step forward."""
        match process.doing:
            case "building":
                process.doing = "ready"
                ready = WorkerReady(member=process.member, setup=process.setup, took_s=0.1)
                self.from_worker(process, ready)
            case "regrouping":
                self._regroup(process)
            case "stepping":
                self._step(process)

    def _regroup(self, process: Process) -> None:
        group = self._group(process)
        assert group is not None
        assert process.generation is not None
        number = process.generation.number
        version = self.group_versions.setdefault(number, max(other.version for other in group))
        process.version, process.doing = max(version, process.version), "stepping"
        self.from_worker(
            process,
            Regrouped(
                member=process.member,
                generation=number,
                version=version,
                lanes=(0,),
                steps_total=self.steps,
                parts_s={"abort": 0.001, "group": 0.01 * (1 + len(process.member)), "state": 0.1},
            ),
        )

    def _step(self, process: Process) -> None:
        assert process.generation is not None
        number = process.generation.number
        if process.version >= self.steps:
            process.doing, process.is_finished = "finished", True
            self.from_worker(
                process, Finished(member=process.member, step=process.version, digest=process.digest)
            )
            return
        group = self._group(process)
        if group is None:
            if process.pending is None and all(name in self.processes for name in process.generation.members):
                return  # a member is paused or changes generations: it blocks
            process.doing = "broken"
            self.from_worker(process, Broken(member=process.member, generation=number, reason="reset"))
            return
        versions = {other.version for other in group}
        if (
            process.pending is not None
            and len(versions) == 1
            and all(other.pending is not None or other.doing == "finished" for other in group)
            and process.pending.admits(
                number,
                process.generation.members,
                is_torn=any(other.doing == "broken" for other in group),
            )
        ):
            for other in group:
                if other.pending is not None:
                    if other.member in other.pending.members:
                        self._begin_regrouping(other, other.pending)
                    else:  # it waits to be ended
                        other.generation, other.pending, other.doing = other.pending, None, "ready"
            return
        is_held_up = self.stall_steps or any(other.doing == "regrouping" for other in group)
        if process.version <= min(versions) and not is_held_up:
            process.version += 1
            self.from_worker(
                process,
                Committed(
                    member=process.member,
                    generation=number,
                    step=process.version,
                    loss=1.0,
                ),
            )

    # -- time --------------------------------------------------------------------------------------------

    def choices(self) -> list[Callable[[], None]]:
        """Everything that could happen next by itself."""
        under_way = [partial(self._deliver, key) for key, queue in self.queues.items() if queue]
        movable = [process for process in self.processes.values() if self.can_move(process)]
        return [*under_way, *(partial(self.move, process) for process in movable)]

    def deliver_all(self, role: str) -> None:
        """Deliver all messages of agents, or of workers, before anything else."""
        for key in list(self.queues):
            while key[0] == role and self.queues.get(key):
                self._deliver(key)

    def _deliver(self, key: tuple[str, str]) -> None:
        event = self.queues[key].popleft()
        if isinstance(event, Disconnected):
            del self.queues[key]
        self.tell(event)

    def wait(self, until_ns: int) -> None:
        """Let time pass with heartbeats, but nothing else; the membership gets its ticks when
        they are due.
        """
        while self.now_ns < until_ns and not self.state.ending.is_over:
            due_ns = deadline(self.state)
            next_ns = min(until_ns, self._beat_ns + BEAT_NS, until_ns if due_ns is None else due_ns)
            self.now_ns = max(self.now_ns, next_ns)
            if self.now_ns >= self._beat_ns + BEAT_NS:
                self._beat_all()
            if due_ns is not None and self.now_ns >= due_ns:
                self.tell(Tick())

    def _beat_all(self) -> None:
        self._beat_ns = self.now_ns
        for node in self.agents:
            paused = [one.member for one in self.processes.values() if one.is_paused and one.node == node]
            self.tell(FromNode(node, NodeBeat(node=node, stopped=tuple(paused))))
        for process in list(self.processes.values()):
            is_silent = process.is_paused or process.is_mute
            if process.doing not in ("importing", "plain") and not is_silent:
                step = process.version + (process.stage == "reduce")
                beat = MemberBeat(member=process.member, step=step, stage=process.stage)
                self.tell(FromMember(process.member, beat))

    def run(self, until: Callable[[], bool], seconds: float = 3000) -> None:
        """Let everything happen in order, the quickest thing first, until the condition holds."""
        give_up_ns = self.now_ns + round(seconds * SECOND)
        for _ in range(TURNS_MAX):
            if until():
                return
            assert self.now_ns < give_up_ns, self.said
            before = len(self.happenings)
            for happen in self.choices():
                happen()
            if len(self.happenings) == before and not any(self.queues.values()):
                due_ns = deadline(self.state)
                assert due_ns is not None, f"stuck: {self.said}"
                self.wait(self.now_ns + SECOND // 20)
        raise AssertionError(f"no end: {self.said[-5:]}")

    def finish(self) -> Ending:
        self.run(lambda: self.ending is not None)
        assert self.ending is not None
        return self.ending

    def until_generation(self, number: int) -> None:
        self.run(
            lambda: (
                self.state.generations.formed is not None and self.state.generations.formed.number >= number
            )
        )

    def until_step(self, step: int) -> None:
        self.run(lambda: self.state.progress.step >= step)
