"""What the membership of a run is made of: its policy and its state.

Data only, and the few sums that keep them consistent. What follows from an event is decided in membership.py
(nodes, losses, the end), joined.py (generations) and plain.py (restarts).
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from holdfast.record.events import KnownEvent, Role, RunStarted
from holdfast.run.clocks import MemberClock
from holdfast.run.explaining import Watched
from holdfast.run.happenings import Effect, Ending, Print, Record, Say, Severity
from holdfast.run.history import Survived, Worked
from holdfast.run.mesh import MeshShape
from holdfast.run.waits import Observed, ns
from holdfast.run.wire import (
    DeviceFailed,
    Finished,
    PlannedFault,
    Setup,
    SkippedLanes,
    Spent,
    Stage,
    WorkerExited,
)

LOSS_VALUES_MAX = 512
"""How many of the last steps' training losses are kept for the live view."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for.

    team, project, cluster: whose the run is, for what and where, for its bill. slots: members a node has.
    nodes_min: without so many nodes the run waits; nodes beyond `nodes_max` are spares. warm: processes a
    node keeps ready to step in. max_restarts: of a script that never joins. wait_s: the longest the run waits
    for nodes or members that it cannot go on without. hang_after_s: whoever holds the others up for so long
    is ended; None: by what the run has seen so far. may_join: nothing says that the script never will.
    grace_s: what a worker has between SIGTERM and SIGKILL. rebalances: lanes are dealt by the members' pace.
    faults: strikes that are planned. mesh: the members that make one replica of a sharded model. skipped:
    lanes that are not computed, because the run repeats another one; skipped_of: how many lanes that one had,
    if it is known. audit_rate: the share of lanes that two members compute.
    """

    run: str
    team: str = ""
    project: str = ""
    cluster: str = ""
    slots: Positive = 1
    nodes_min: Positive = 1
    nodes_max: Positive = 1
    warm: Count = 1
    max_restarts: Count = 3
    wait_s: float = 600.0
    hang_after_s: float | None = None
    may_join: bool = True
    grace_s: float = 10.0
    rebalances: bool = True
    faults: tuple[PlannedFault, ...] = ()
    mesh: MeshShape = MeshShape()
    skipped: tuple[SkippedLanes, ...] = ()
    skipped_of: int | None = None
    audit_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0

    def started(self, now_ns: int, gpus: int) -> RunStarted:
        """What the record is told at the start."""
        return RunStarted(
            id="",
            occurred_ns=now_ns,
            gpus=gpus,
            team=self.team,
            project=self.project,
            cluster=self.cluster,
        )


# ---- what is ----------------------------------------------------------------------------------------------


class Member(msgspec.Struct, kw_only=True):
    """One worker process, from the moment it is wanted until its exit is known.

    slot: the seat it has or is meant for; a warm process is counted beyond the node's seats until it takes
    one. reached: `started`, at `join()` (`parked`), out of it (`admitted`), at `protect()` (`ready`).
    replaces: whose place it takes. is_lost: it does not count any more, whether or not its exit is known.
    has_left: it ended well, though nobody released it. is_stopped: we ended it. is_muted: what it prints
    before `join()` is not shown. reported: generation and step of its last commit. version: the last step
    whose result it is known to have; 0: none. loaded: step and place of the checkpoint it has begun with;
    restore_ns: how long that took. from_memory: it was a snapshot. snapshot: the last step of which its
    node's memory has its share.
    struck_ns: when a fault was last aimed at it. recorded_as: the role it has joined with, as far as the
    record knows. finished, finished_ns: how its script came to its end, and when. spent: where its time went,
    by its last report, and by the one before. since_generation: the first generation that it was in; 0: none
    yet. told: how many messages it has sent to other members. rail: which part of a sharded model it has.
    clock: by how much ours is ahead of its own, as far as that is known. slow_fault: the event that called it
    slow last.
    """

    name: str
    node: str
    slot: int
    role: Role
    started_ns: int
    seated_ns: int = 0
    reached: Literal["started", "parked", "admitted", "ready"] = "started"
    admitted_ns: int = 0
    ready_ns: int = 0
    seen_ns: int | None = None
    is_lost: bool = False
    is_gone: bool = False
    is_stopped: bool = False
    has_left: bool = False
    recorded_as: Role | None = None
    replaces: str = ""
    struck_ns: int | None = None
    finished: Finished | None = None
    finished_ns: int = 0
    loaded: tuple[int, str] | None = None
    restore_ns: int | None = None
    from_memory: bool = False
    snapshot: int = 0
    is_muted: bool = False
    reported: tuple[int, int] = (0, 0)
    version: int = 0
    stage: Stage = "starting"
    step: int = 0
    lanes: tuple[int, ...] = ()
    spent: tuple[Spent, Spent] = (Spent(), Spent())
    since_generation: int = 0
    told: int = 0
    rail: int = 0
    clock: MemberClock | None = None
    slow_fault: str = ""

    @property
    def is_done(self) -> bool:
        return self.finished is not None or self.has_left

    @property
    def onset_ns(self) -> int | None:
        """When it went, if it was a fault on purpose: no sooner than it was last heard."""
        return None if self.struck_ns is None else max(self.struck_ns, self.seen_ns or 0)


class Node(msgspec.Struct, kw_only=True):
    """A machine with an agent. order: its place among the active ones, by which ranks are ordered.

    is_drained: the operator wants nobody on it. seats: who has each slot. pool: who is kept warm, by the slot
    number it was started with.
    failures: processes in a row that came to nothing; start_ns: not before this is another one tried.
    stopped: its members whose process the kernel shows as stopped.
    """

    name: str
    address: str
    port: int
    slots: int
    joined_ns: int
    seen_ns: int
    order: int = 0
    is_spare: bool = True
    is_drained: bool = False
    seats: list[str | None] = []
    pool: dict[int, str] = {}
    failures: int = 0
    start_ns: int = 0
    stopped: tuple[str, ...] = ()


class Trouble(msgspec.Struct, kw_only=True):
    """What broke a generation though nobody was lost.

    member: who said so first. words: what it could not do, and why. times: how often in a row that was so.
    is_said: the operator knows the words.
    """

    member: str
    words: str
    times: int = 1
    is_said: bool = False

    def __str__(self) -> str:
        return f"{self.member} {self.words}"


class Generation(msgspec.Struct, kw_only=True):
    """A generation: announced (`opened_ns`), and formed once all its members have regrouped.

    replaced, missing, added: how it differs from the one before: who has whose place, who is not in it any
    more, who is new. because: what broke the one before, where that is why it was announced. regrouped: the
    version each member goes on from. parts_ns: the longest that a member took for each part of regrouping.
    tally: how many members have reported each step; reached_ns: when the last of them had it. took_ns: the
    shortest that one took for it. is_fresh: no step of it was committed yet. lost: members that were lost
    since it was announced. broken_ns, trouble: when a member first said that a collective failed, and what it
    said.
    leaving: whose place somebody else takes because the operator asks for it. shelved: who waits because
    its replica is not whole. is_void: it was announced and
    cannot be formed, so another one follows. published: who has begun to regroup, as what it tells the others
    shows; left_ns: when somebody last did, or left what it was in before.
    """

    number: int
    members: tuple[str, ...]
    names: frozenset[str]
    at_boundary: bool
    opened_ns: int
    replaced: dict[str, str] = {}
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    because: Trouble | None = None
    leaving: dict[str, str] = {}
    shelved: tuple[str, ...] = ()
    is_void: bool = False
    formed_ns: int | None = None
    left_ns: int = 0
    published: dict[str, None] = {}
    regrouped: dict[str, int] = {}
    parts_ns: dict[str, int] = {}
    lost: dict[str, int] = {}
    broken_ns: int | None = None
    trouble: Trouble | None = None
    tally: dict[int, int] = {}
    reached_ns: dict[int, int] = {}
    took_ns: dict[int, int] = {}
    is_fresh: bool = True

    @property
    def living(self) -> Sequence[str]:
        """Its members that are not lost."""
        return [name for name in self.members if name not in self.lost] if self.lost else self.members

    @property
    def present(self) -> tuple[str, ...]:
        """Its members. Until it is formed, those who leave with it are still there, and have the state."""
        return self.members if self.formed_ns is not None else (*self.members, *self.leaving)

    def has(self, name: str) -> bool:
        """Whether the member is one of `present`."""
        return name in self.names or (self.formed_ns is None and name in self.leaving)

    def concerns(self, name: str) -> bool:
        """Whether it has lost this member, or goes on without it."""
        return name in self.lost or name in self.replaced or name in self.missing


class DeclaredWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a script has declared to do for longer than a step: its name, and since when."""

    name: str
    since_ns: int


class Stall(msgspec.Struct, kw_only=True):
    """A step, or a generation's formation, that takes longer than usual.

    since_ns: when the run last got further. looks, looked_ns: how often it was looked at, and when last.
    asked_ns: when agents were asked where their members are; awaited: of whom that is not answered. watched:
    what they have answered so far; are_all_asked: not only those who may be to blame were. said: the last
    line about it; blamed: of what kind it was, and of whom.
    """

    since_ns: int
    looks: int = 0
    looked_ns: int = 0
    asked_ns: int | None = None
    awaited: dict[str, None] = {}
    watched: dict[str, Watched] = {}
    are_all_asked: bool = False
    said: str = ""
    blamed: tuple[str, ...] = ()


class CheckpointTimes(msgspec.Struct, kw_only=True):
    """What checkpoints cost. begun_ns: since when one is being written; stall_ns, write_ns: how long training
    waited for the last that is durable, and how long it took to be. saved_step: which that is. failure: why
    the last one failed, if it did. snapshot_ns: how long a member waited for the last snapshot, and
    snapshot_failure: why the last one could not be taken or used. proven, refuted: step and moment of the
    last checkpoint that was loaded and computed with, and agreed or did not; unproven: why none could be.
    """

    begun_ns: int | None = None
    saved_step: int = 0
    failure: str = ""
    stall_ns: int | None = None
    write_ns: int | None = None
    snapshot_ns: int | None = None
    snapshot_failure: str = ""
    proven: tuple[int, int] | None = None
    refuted: tuple[int, int] | None = None
    unproven: str = ""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A loss: when it was noticed and when it began. guess: of what, until the agent tells. keeps_seat: until
    then nobody else has its seat, because its script may have come to its end.
    """

    lost_ns: int
    onset_ns: int | None
    guess: str = ""
    keeps_seat: bool = False


class Failing(msgspec.Struct, kw_only=True):
    """A lost member whose GPU failed, until its own last words and its agent's are both there.

    seat: node and slot. formed: the last generation that was formed by then. cohort: the members of the one
    that it was in. due_ns: until then its seat is
    kept free, because its process still holds the GPU's memory; then it is killed.
    """

    member: str
    seat: tuple[str, int]
    formed: int
    due_ns: int
    cohort: frozenset[str] = frozenset()
    said: DeviceFailed | None = None
    exited: WorkerExited | None = None


class DeviceFailure(msgspec.Struct, frozen=True, kw_only=True):
    """That a member's GPU failed, as it is judged: where it was, and what happened."""

    member: str
    seat: tuple[str, int]
    generation: int
    step: int
    failure: str


class Ailing(msgspec.Struct, frozen=True, kw_only=True):
    """A seat whose GPU failed. failures: how often in a row. step_max: the run's when it last did.
    start_ns: not before this has it another member.
    """

    failures: int
    step_max: int
    start_ns: int


class Closing(msgspec.Struct, kw_only=True):
    """The run is ending like this. due_ns: when those who have not gone by then are ended harder."""

    end: Ending
    due_ns: int
    patience: Literal["leave", "term", "kill"]

    @property
    def is_released(self) -> bool:
        """Whether the scripts are to come to their ends by themselves."""
        return self.patience == "leave"


class Outbox(msgspec.Struct, kw_only=True):
    """What is to be done about the event being handled, and when to look again.

    due_ns: when at the latest; lease_due_ns: when the first lease may end.
    """

    effects: list[Effect] = []
    due_ns: int | None = None
    lease_due_ns: int | None = None

    def say(self, text: str, severity: Severity = "note") -> None:
        self.effects.append(Say(text, severity))

    def record(self, event: KnownEvent) -> None:
        self.effects.append(Record(event))

    def wake(self, at_ns: int) -> None:
        """Look again at this time at the latest."""
        self.due_ns = at_ns if self.due_ns is None else min(self.due_ns, at_ns)


class Roster(msgspec.Struct, kw_only=True):
    """The nodes, and the processes on them.

    nodes_active: how many nodes are no spares. members: processes that are wanted or whose names are still
    needed; running: those not seen to go yet. departed: names to forget with the next generation. counts:
    processes ever started under a name. coming: active members that are not ready. waiting: ready ones that
    the generation does not have. vacant: seats without anybody. short: nodes whose pool may not be full.
    """

    nodes: dict[str, Node] = {}
    nodes_active: int = 0
    members: dict[str, Member] = {}
    running: int = 0
    departed: list[str] = []
    counts: dict[str, int] = {}
    coming: dict[str, None] = {}
    waiting: dict[str, None] = {}
    vacant: dict[tuple[str, int], None] = {}
    short: dict[str, None] = {}

    def living(self, name: str) -> Member | None:
        """The member of this name, unless it is lost or never was."""
        member = self.members.get(name)
        return None if member is None or member.is_lost else member

    def has_parked(self, node: Node) -> bool:
        """Whether a warm process of the node waits to be needed."""
        return any(self.members[name].reached == "parked" for name in node.pool.values())

    def active_nodes(self) -> list[Node]:
        """In the order of their ranks."""
        return sorted(
            (node for node in self.nodes.values() if not node.is_spare), key=lambda node: node.order
        )

    def seat_of(self, member: Member) -> tuple[int, int]:
        """What ranks are ordered by, behind rank 0: see generations.py."""
        return (self.nodes[member.node].order, member.slot)

    @property
    def seats(self) -> int:
        """How many members the active nodes have room for."""
        return sum(node.slots for node in self.nodes.values() if not node.is_spare)


class Launch(msgspec.Struct, kw_only=True):
    """How the run was started, and what keeps it from starting.

    is_protected: its script has joined. attempt: who was started at launch, at `launched_ns`. gpus: members
    the run is meant to have, as recorded. setup: what the first member at `protect()` has built, and its
    name; setups: the same by rail. stalled_ns: since when the run cannot go on for want of nodes or members;
    lacks_nodes: which of the two.
    """

    is_launched: bool = False
    is_protected: bool = False
    last_joined_ns: int = 0
    launched_ns: int = 0
    attempt: tuple[str, ...] = ()
    gpus: int = 0
    restarts: int = 0
    restart_due_ns: int | None = None
    stalled_ns: int | None = None
    lacks_nodes: bool = False
    setup: tuple[str, Setup] | None = None
    setups: dict[int, tuple[str, Setup]] = {}


class Generations(msgspec.Struct, kw_only=True):
    """The generation that was announced last, the one that was formed last, and what was lost in between.

    number: of the last one. vacated: who was lost from a seat (order, slot) since it was announced.
    lost_ns, causes: since `formed` was formed, the first loss, and the keys of all of them. failed_ns: the
    same, the first collective that failed with nobody lost. fates: who of a generation was lost, and of what;
    empty where nobody has said so yet. unexplained: losses whose reason no agent has told yet. hurt: the
    first loss or failure since the last step that all members have committed, and which of the two it was.
    replicas_most: how many replicas a generation has had at best.
    """

    number: int = 0
    announced: Generation | None = None
    formed: Generation | None = None
    vacated: dict[tuple[int, int], str] = {}
    lost_ns: int | None = None
    causes: tuple[str, ...] = ()
    failed_ns: int | None = None
    fates: dict[str, str] = {}
    unexplained: dict[str, Loss] = {}
    hurt: tuple[int, Literal["loss", "failure"]] | None = None
    replicas_most: int = 1

    @property
    def survivors(self) -> int:
        """How many members of the announced generation are not lost."""
        return 0 if self.announced is None else len(self.announced.members) - len(self.announced.lost)

    @property
    def keeps_seats(self) -> bool:
        """Whether a lost member has its seat until it is known how it went."""
        return any(loss.keeps_seat for loss in self.unexplained.values())

    @property
    def main(self) -> str:
        """Who has rank 0. Until a boundary comes, the generation before goes on."""
        generation = self.announced
        if generation is not None and generation.at_boundary and generation.formed_ns is None:
            generation = self.formed
        return "" if generation is None else generation.members[0]


class Progress(msgspec.Struct, kw_only=True):
    """How far the run has come.

    first_ns: when a step that the run does not have yet was first reported. step_max: the highest step ever
    committed. Since then: setbacks, losses and broken generations; setback, the last of them in words;
    complaint, the last one of a script; trouble, what broke generations. worked: how long the run has worked
    on which steps. survived: what scripts failed with in the whole run, though it went on. loss_values: of
    training, by step. skipped: the lanes that nobody computed, by step that is still to be recorded;
    lanes_skipped: how many of the last that is.
    pace_from, pace_due_ns: where members' time had gone when their pace was last looked
    at, and when it is next written down.
    """

    step: int = 0
    steps_total: int = 0
    step_max: int = 0
    committed_ns: int | None = None
    first_ns: dict[int, int] = {}
    skipped: dict[int, tuple[int, ...]] = {}
    lanes_skipped: int = 0
    setbacks: int = 0
    setback: str = ""
    trouble: Trouble | None = None
    complaint: str = ""
    worked: Worked = msgspec.field(default_factory=Worked)
    survived: Survived = msgspec.field(default_factory=Survived)
    checkpointing: CheckpointTimes = msgspec.field(default_factory=CheckpointTimes)
    pace_from: dict[str, Spent] = {}
    pace_due_ns: int = 0
    loss_values: deque[tuple[int, float]] = msgspec.field(
        default_factory=lambda: deque(maxlen=LOSS_VALUES_MAX)
    )

    @property
    def has_committed(self) -> bool:
        return self.step_max > 0

    @property
    def is_last(self) -> bool:
        """Whether the run has the last step that scripts have asked for, so far."""
        return 0 < self.steps_total <= self.step


class Hangs(msgspec.Struct, kw_only=True):
    """What keeps the run from its next step, and what excuses that.

    stopped: members whose process is stopped, and since when; all_stopped_ns: since when those are all that
    hold the state. working: members that have declared work. resumed_ns: until then the want of a commit is
    excused, by declared work, by a stop or because the coordinator itself was held up. stall: what takes too
    long. endings: how often members were ended for want of progress, of late; endings_until_ns: until when
    that counts. is_hinted: that work can be declared was said. apart, apart_due_ns: who waited in a meeting
    that nobody will come to, at the last look; when the next one is due.
    """

    stopped: dict[str, int] = {}
    all_stopped_ns: int | None = None
    working: dict[str, DeclaredWork] = {}
    resumed_ns: int = 0
    stall: Stall | None = None
    endings: int = 0
    endings_until_ns: int = 0
    is_hinted: bool = False
    apart: tuple[tuple[str, int, int], ...] = ()
    apart_due_ns: int = 0

    def end_excuses(self, name: str) -> None:
        """The member is gone: that it was stopped, or at declared work, does not matter any more."""
        self.working.pop(name, None)
        self.stopped.pop(name, None)


class Devices(msgspec.Struct, kw_only=True):
    """GPUs that failed. failures: since the last committed step. failing: members whose GPU failed and that
    are not accounted for yet. ailing: seats whose GPU has failed.
    """

    failures: tuple[DeviceFailure, ...] = ()
    failing: dict[str, Failing] = {}
    ailing: dict[tuple[str, int], Ailing] = {}


class Replacing(msgspec.Struct, kw_only=True):
    """Who is to be replaced. leaving: members, and who takes their place, where that is known;
    nobody does where the node is drained. replaced: those who were, and by whom. kept: those who were not,
    members and nodes, and why. reasons: why, if the operator has not asked for it. slow_seats: node and slot
    of members that were replaced because they were slow. chosen: spare nodes that the operator wants to take
    part before others.
    """

    leaving: dict[str, str] = {}
    replaced: dict[str, str] = {}
    kept: dict[str, str] = {}
    reasons: dict[str, str] = {}
    slow_seats: set[tuple[str, int]] = set()
    chosen: set[str] = set()


class Audits(msgspec.Struct, kw_only=True):
    """What is known of silent corruption. is_over: lanes are not computed twice any more. seats: where
    members were wrong, and how often. doubted: members of which one is wrong, as far as that was told.
    apart_step: the step that the run had come to when states had no majority. odd: odd losses so far.
    """

    is_over: bool = False
    seats: dict[tuple[str, int], int] = {}
    doubted: set[frozenset[str]] = set()
    apart_step: int | None = None
    odd: int = 0

    def rate(self, wanted: float, *, is_deterministic: bool) -> float | None:
        """What members are told of the share of lanes that two of them compute. None: nothing is compared,
        not even states.
        """
        if not wanted:
            return None
        return wanted if is_deterministic and not self.is_over else 0.0


class Ends(msgspec.Struct, kw_only=True):
    """How the run comes to its end.

    is_cut_short: a member was lost while others were done already, or rank 0 after the last step: what its
    script does there is to be done again. undone_main: rank 0, if it was that, as nobody else does its part.
    is_anybody_done: some script came to its end, at some time.
    """

    closing: Closing | None = None
    is_over: bool = False
    is_cut_short: bool = False
    undone_main: str = ""
    is_anybody_done: bool = False


class RunState(msgspec.Struct, kw_only=True):
    """Everything the coordinator knows about a run. now_ns: the time of the event being handled."""

    policy: RunPolicy
    started_ns: int
    now_ns: int
    faults: tuple[PlannedFault, ...] = ()
    observed: Observed = msgspec.field(default_factory=Observed)
    outbox: Outbox = msgspec.field(default_factory=Outbox)
    roster: Roster = msgspec.field(default_factory=Roster)
    launch: Launch = msgspec.field(default_factory=Launch)
    generations: Generations = msgspec.field(default_factory=Generations)
    progress: Progress = msgspec.field(default_factory=Progress)
    hangs: Hangs = msgspec.field(default_factory=Hangs)
    devices: Devices = msgspec.field(default_factory=Devices)
    replacing: Replacing = msgspec.field(default_factory=Replacing)
    audits: Audits = msgspec.field(default_factory=Audits)
    ending: Ends = msgspec.field(default_factory=Ends)

    def print_held(self) -> None:
        """The run goes on, or ends for another reason: print what members failed with, but for that one."""
        closing = self.ending.closing
        for member, complaint in self.progress.survived.told(
            "" if closing is None else closing.end.complaint
        ):
            self.outbox.effects.append(Print(member, complaint))

    @property
    def holders(self) -> list[str]:
        """Living members that hold the state: of the last generation that was formed, and of the one that is
        forming those who have it already.
        """
        announced, formed = self.generations.announced, self.generations.formed
        names = [] if formed is None else [*formed.members]
        if announced is not None and announced is not formed and names:
            names += [name for name in announced.regrouped if name not in names]
        return [name for name in names if self.roster.living(name) is not None]

    @property
    def is_settled(self) -> bool:
        """Whether every seat is taken by a member of the generation, and every loss is explained."""
        roster = self.roster
        return not (
            roster.coming or roster.waiting or roster.vacant or roster.short or self.generations.unexplained
        )

    @property
    def wait_ns(self) -> int:
        return ns(self.policy.wait_s)
