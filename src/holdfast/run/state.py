"""The policy and the state of a run's membership.

It contains only data and a few derived values. Decisions about events are in membership.py (nodes, losses,
the end), joined.py (generations) and plain.py (restarts).
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from holdfast.record.events import NAME_CHARS_MAX, KnownEvent, Role, RunStarted
from holdfast.run.clocks import MemberClock
from holdfast.run.explaining import Watched
from holdfast.run.happenings import Effect, Ending, Print, Record, Say, Severity
from holdfast.run.history import Survived, Worked
from holdfast.run.mesh import MeshShape
from holdfast.run.started_with import StartedWith
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
    """The user's settings for the run.

    team, project, cluster: for the run's bill. started_with: the script and its arguments. slots: members
    per node. nodes_min: with fewer nodes the run waits. nodes_max: further nodes are spares. nodes_own:
    how many the launcher itself starts; the first start waits a while for them. warm: processes that a
    node keeps ready to step in. max_restarts: of a script that never joins. wait_s: the longest the run
    waits for nodes or members that it needs to continue. hang_after_s: a member that holds up the others
    for this long is ended; None to derive the bound from the run's times so far. may_join: False if the
    script certainly never joins. grace_s: the time a worker has between SIGTERM and SIGKILL. rebalances:
    lanes are dealt by the members' pace. faults: planned strikes. mesh: the shape of one replica of a
    sharded model. skipped: lanes that are not computed because the run repeats another one. skipped_of:
    the number of lanes of that run, if known. audit_rate: the share of lanes that two members compute.
    """

    run: str
    team: str = ""
    project: str = ""
    cluster: str = ""
    started_with: StartedWith = StartedWith()
    slots: Positive = 1
    nodes_min: Positive = 1
    nodes_max: Positive = 1
    nodes_own: Positive = 1
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
        """The event for the record at the start."""
        return RunStarted(
            id="",
            occurred_ns=now_ns,
            gpus=gpus,
            team=self.team,
            project=self.project,
            cluster=self.cluster,
            script=self.started_with.script[:NAME_CHARS_MAX],
            script_sha256=self.started_with.sha256,
            arguments=self.started_with.arguments,
        )


# ---- the state ---------------------------------------------------------------------------------------------


WARM = 3
"""The readiness of a process that can step in at once."""


class Member(msgspec.Struct, kw_only=True):
    """One worker process, from the moment it is wanted until its exit is known.

    slot: the seat it has or is meant for; a warm process has a slot beyond the node's seats until it takes
    one. reached: `started`, at `join()` (`parked`), out of it (`admitted`), at `protect()` (`ready`).
    is_warming: at `join()`, and not warm yet. replaces: the member whose place it takes. is_lost: it no
    longer counts, whether or not its exit is known. has_left: it ended successfully without being released.
    is_stopped: we ended it. is_muted: its output before `join()` is not shown. reported: generation and step
    of its last commit. version: the last step whose result it is known to have; 0 for none. loaded: step and
    place of the checkpoint it started with. restore_ns: how long loading took. from_memory: the checkpoint
    was a snapshot. snapshot: the last step of which its node's memory has its share. struck_ns: when a fault
    was last aimed at it. recorded_as: its role in the record. finished, finished_ns: how and when its script
    ended. spent: where its time went, by its last report and the one before. since_generation: the first
    generation that it was in; 0 for none yet. told: how many messages it has sent to other members. rail: its
    part of a sharded model. clock: by how much ours is ahead of its own, if known. slow_fault: the last event
    that called it slow.
    """

    name: str
    node: str
    slot: int
    role: Role
    started_ns: int
    seated_ns: int = 0
    reached: Literal["started", "parked", "admitted", "ready"] = "started"
    is_warming: bool = False
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
    def readiness(self) -> int:
        """How soon a process of the pool could step in: 1 before `join()`, 2 there, `WARM` if it is warm."""
        if self.reached != "parked":
            return 1
        return 2 if self.is_warming else WARM

    @property
    def onset_ns(self) -> int | None:
        """When a deliberate fault hit it, if one did; not before it was last heard."""
        return None if self.struck_ns is None else max(self.struck_ns, self.seen_ns or 0)


class Node(msgspec.Struct, kw_only=True):
    """A machine with an agent. order: its place among the active nodes, which determines ranks.

    is_drained: the operator wants no members on it. seats: the member in each slot. pool: warm processes, by
    the slot number with which they were started. failures: processes in a row that never got ready. start_ns:
    the earliest time to start another one. stopped: members whose process the kernel shows as stopped. host:
    the machine's own name. device: what its members can compute on, if known.
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
    host: str = ""
    device: str = ""


class Trouble(msgspec.Struct, kw_only=True):
    """The reason why a generation broke although no member was lost.

    member: the first that reported it. words: what it could not do, and why. is_before: it happened in the
    previous generation, while this one waited for its boundary. times: how often this happened in a row.
    is_said: the operator has been told the words.
    """

    member: str
    words: str
    is_before: bool = False
    times: int = 1
    is_said: bool = False

    def __str__(self) -> str:
        return f"{self.member} {self.words}"


class Generation(msgspec.Struct, kw_only=True):
    """A generation: announced (`opened_ns`), and formed once all its members have regrouped.

    replaced, missing, added: how it differs from the one before: replaced members and their replacements,
    members no longer in it, new members. because: what broke the one before, if that is why it was announced.
    regrouped: the version from which each member continues. parts_ns: the longest time that a member took for
    each part of regrouping. tally: how many members have reported each step. reached_ns: when the last of
    them had it. took_ns: the shortest time that a member took for it. is_fresh: none of its steps is
    committed yet. lost: members lost since it was announced. broken_ns, trouble: when a member first reported
    a failed collective, and its report. leaving: members that leave at the operator's request or because they
    are slow, and their stand-ins. shelved: members that wait because their replica is not whole. is_void: it
    was announced and cannot form, so another one follows. published: members that have begun to regroup, as
    their messages to the others show. left_ns: when a member last did so, or left its step.
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
        """Its members. Until it has formed, members that leave with it are still there and have the state."""
        return self.members if self.formed_ns is not None else (*self.members, *self.leaving)

    def has(self, name: str) -> bool:
        """Whether the member is one of `present`."""
        return name in self.names or (self.formed_ns is None and name in self.leaving)

    def concerns(self, name: str) -> bool:
        """Whether it has lost this member or continues without it."""
        return name in self.lost or name in self.replaced or name in self.missing


class DeclaredWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that a script declared to take longer than a step: its name, and since when it runs."""

    name: str
    since_ns: int


class Stall(msgspec.Struct, kw_only=True):
    """A step, or a generation's formation, that takes longer than usual.

    since_ns: when the run last made progress. looks, looked_ns: the number of looks, and the time of the last
    one. asked_ns: when agents were asked where their members are. awaited: members for which there is no
    answer yet. watched: the answers so far. are_all_asked: all members were located, not only suspects. said:
    the last line about it. blamed: the kind of hang and the culprits in that line.
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
    """The cost of checkpoints. begun_ns: since when one is being written. stall_ns, write_ns: how long
    training waited for the last durable one, and how long writing it took. saved_step: its step. failure: why
    the last one failed, if it did. snapshot_ns: how long a member waited for the last snapshot.
    snapshot_failure: why the last snapshot could not be taken or used. proven, refuted: step and time of the
    last checkpoint whose proof agreed or disagreed. unproven: why the last proof could not be made.
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
    """A loss: when it was noticed and when it started. guess: the cause, until the agent reports it.
    keeps_seat: until then no other member gets its seat, because its script may have ended.
    """

    lost_ns: int
    onset_ns: int | None
    guess: str = ""
    keeps_seat: bool = False


class Failing(msgspec.Struct, kw_only=True):
    """A lost member whose GPU failed, until both its own last words and its agent's report have arrived.

    seat: node and slot. formed: the last generation that had formed by then. cohort: the members of its
    generation. due_ns: until then its seat stays free, because its process still holds the GPU's memory; then
    the process is killed.
    """

    member: str
    seat: tuple[str, int]
    formed: int
    due_ns: int
    cohort: frozenset[str] = frozenset()
    said: DeviceFailed | None = None
    exited: WorkerExited | None = None


class DeviceFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a member's GPU, for the judgement: where the member was, and what happened."""

    member: str
    seat: tuple[str, int]
    generation: int
    step: int
    failure: str


class Ailing(msgspec.Struct, frozen=True, kw_only=True):
    """A seat whose GPU failed. failures: how often in a row. step_max: the run's, at the last failure.
    start_ns: the earliest time at which another member gets the seat.
    """

    failures: int
    step_max: int
    start_ns: int


class Closing(msgspec.Struct, kw_only=True):
    """How the run is ending. due_ns: when members that are still there are ended by a harder means."""

    end: Ending
    due_ns: int
    patience: Literal["leave", "term", "kill"]

    @property
    def is_released(self) -> bool:
        """Whether the scripts may still end by themselves."""
        return self.patience == "leave"


class Outbox(msgspec.Struct, kw_only=True):
    """The effects of the event being handled, and when to look again.

    due_ns: when to look again at the latest. lease_due_ns: when the first lease may end.
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
    """The nodes and the processes on them.

    nodes_active: the number of nodes that are not spares. members: processes that are wanted or whose names
    are still needed. running: how many have not exited yet. departed: names to forget with the next
    generation. counts: processes ever started under a name. coming: active members that are not ready yet.
    waiting: ready members that are not in the generation. vacant: empty seats. short: nodes whose pool may
    not be full.
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
        """The member of this name, unless it is lost or unknown."""
        member = self.members.get(name)
        return None if member is None or member.is_lost else member

    def called(self, name: str) -> Node | None:
        """The node of this name; or the only one on the machine of this name, with or without its domain."""
        if name in self.nodes:
            return self.nodes[name]
        short = name.partition(".")[0]
        there = [
            node
            for node in self.nodes.values()
            if node.host and name and short == node.host.partition(".")[0]
        ]
        return there[0] if len(there) == 1 else None

    def readiness(self, node: Node) -> int:
        """That of the process of the node's pool that is most ready; 0 if the pool is empty."""
        pool = [self.members[name].readiness for name in node.pool.values()]
        return max(pool, default=0)

    def active_nodes(self) -> list[Node]:
        """The active nodes in rank order."""
        return sorted(
            (node for node in self.nodes.values() if not node.is_spare), key=lambda node: node.order
        )

    def seat_of(self, member: Member) -> tuple[int, int]:
        """The key by which ranks after rank 0 are ordered: see generations.py."""
        return (self.nodes[member.node].order, member.slot)

    @property
    def seats(self) -> int:
        """How many members the active nodes have room for."""
        return sum(node.slots for node in self.nodes.values() if not node.is_spare)


class Launch(msgspec.Struct, kw_only=True):
    """How the run was started, and what keeps it from starting.

    is_protected: its script has joined. attempt: the members started at `launched_ns`; device: what they can
    compute on, if known. gpus: the intended
    number of members, as recorded. setup: the name and setup of the first member at `protect()`. setups: the
    same by rail. stalled_ns: since when the run lacks nodes or members to continue. lacks_nodes: it lacks
    nodes.
    """

    is_launched: bool = False
    is_protected: bool = False
    last_joined_ns: int = 0
    launched_ns: int = 0
    attempt: tuple[str, ...] = ()
    device: str = ""
    gpus: int = 0
    restarts: int = 0
    restart_due_ns: int | None = None
    stalled_ns: int | None = None
    lacks_nodes: bool = False
    setup: tuple[str, Setup] | None = None
    setups: dict[int, tuple[str, Setup]] = {}


class Generations(msgspec.Struct, kw_only=True):
    """The last announced generation, the last formed one, and the losses in between.

    number: of the last one. vacated: members lost from a seat (order, slot) since it was announced. lost_ns,
    causes: the first loss since `formed` formed, and the keys of all losses since. failed_ns: the first
    failed collective since then without a loss. fates: lost members of a generation and the cause, as far as
    known. unexplained: losses that no agent has explained yet. hurt: the time of the first loss or failure
    since the last step that all members committed, and which of the two it was. replicas_most: the most
    replicas that a generation has had. makers: the members of `formed` and of each generation announced
    since. Each of these may have made steps that the coordinator has not heard of.
    """

    number: int = 0
    announced: Generation | None = None
    formed: Generation | None = None
    makers: list[frozenset[str]] = []
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
        """Whether a lost member keeps its seat until its exit is explained."""
        return any(loss.keeps_seat for loss in self.unexplained.values())

    @property
    def main(self) -> str:
        """The member with rank 0. Until a boundary comes, the previous generation continues."""
        generation = self.announced
        if generation is not None and generation.at_boundary and generation.formed_ns is None:
            generation = self.formed
        return "" if generation is None else generation.members[0]


class Progress(msgspec.Struct, kw_only=True):
    """The progress of the run.

    first_ns: when a step that the run does not have yet was first reported. step_max: the highest step ever
    committed. Since then: setbacks, the number of losses and broken generations; setback, the last of them in
    words; complaint, the last one of a script; trouble, what broke generations. worked: how long the run has
    worked on which steps. survived: failures of scripts in the whole run after which it continued.
    loss_values: of training, by step. skipped: the lanes that no member computed, by step, until recorded.
    lanes_skipped: their number in the last step. pace_from: the members' time reports when their pace was
    last recorded. pace_due_ns: when it is recorded next.
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
        """Whether the run has the last step that scripts have planned so far."""
        return 0 < self.steps_total <= self.step


class Hangs(msgspec.Struct, kw_only=True):
    """What keeps the run from its next step, and what excuses that.

    stopped: members whose process is stopped, and since when. all_stopped_ns: since when all members that
    hold the state are stopped. working: members that have declared work. resumed_ns: until then a missing
    commit is excused, by declared work, by a stop or because the coordinator itself was held up. stall: the
    step or formation that takes too long. endings: how often members were recently ended for lack of
    progress. endings_until_ns: until when that counts. is_hinted: the hint that work can be declared was
    given. apart: members that waited at the last look in a meeting that others will never join.
    apart_due_ns: when the next look is due.
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
        """Forget that the member was stopped or at declared work, because it is gone."""
        self.working.pop(name, None)
        self.stopped.pop(name, None)


class Devices(msgspec.Struct, kw_only=True):
    """GPUs that failed. failures: since the last committed step. failing: members whose GPU failed and whose
    loss is not recorded yet. ailing: seats whose GPU has failed.
    """

    failures: tuple[DeviceFailure, ...] = ()
    failing: dict[str, Failing] = {}
    ailing: dict[tuple[str, int], Ailing] = {}


class Replacing(msgspec.Struct, kw_only=True):
    """Replacements of members. leaving: members and their stand-ins, empty if unknown yet or if the node is
    drained. replaced: replaced members and their replacements. kept: members and nodes that stayed, and why.
    reasons: why a member leaves, if not at the operator's request. slow_seats: node and slot of members that
    were replaced because they were slow. chosen: spare nodes that the operator wants to use first. is_hinted:
    the hint that more lanes could be shared more finely was given.
    """

    leaving: dict[str, str] = {}
    replaced: dict[str, str] = {}
    kept: dict[str, str] = {}
    reasons: dict[str, str] = {}
    slow_seats: set[tuple[str, int]] = set()
    chosen: set[str] = set()
    is_hinted: bool = False


class Audits(msgspec.Struct, kw_only=True):
    """Findings about silent corruption. is_over: lanes are no longer computed twice. seats: where members
    were wrong, and how often. doubted: sets of members of which one is wrong, as already reported.
    apart_step: the highest step of the run when states had no majority. odd: the number of odd losses so far.
    """

    is_over: bool = False
    seats: dict[tuple[str, int], int] = {}
    doubted: set[frozenset[str]] = set()
    apart_step: int | None = None
    odd: int = 0

    def rate(self, wanted: float, *, is_deterministic: bool) -> float | None:
        """The share of lanes that two members compute, as members are told. None if nothing is compared, not
        even states.
        """
        if not wanted:
            return None
        return wanted if is_deterministic and not self.is_over else 0.0


class Ends(msgspec.Struct, kw_only=True):
    """How the run ends.

    is_cut_short: a member was lost while others were already done, or rank 0 after the last step, so its
    script's final work must be repeated. undone_main: the lost member if it was rank 0, because no other
    member does its part. is_anybody_done: some member's script has ended at some time.
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
        """Print the complaints held back, except the one with which the run ends."""
        closing = self.ending.closing
        for member, complaint in self.progress.survived.told(
            "" if closing is None else closing.end.complaint
        ):
            self.outbox.effects.append(Print(member, complaint))

    @property
    def holders(self) -> list[str]:
        """Living members that hold the state: those of the last formed generation, and those of a forming
        one that already have it.
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
