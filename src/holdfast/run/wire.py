"""The messages between the processes of a run, and their framing.

The coordinator is the hub: every agent, every worker and every operator (the launcher, `holdfast attach`,
`chaos`, `migrate`, `stop`) holds one TCP connection to it and uses no other for the run. Tensors never pass
here. A message is a frame: its length in four bytes, then MessagePack. This module opens no socket.
"""

import secrets
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from holdfast.record.kernel import Xid
from holdfast.record.untrusted import UNDECODABLE
from holdfast.run.audits import AuditFinding
from holdfast.run.balance import BalanceFinding
from holdfast.run.kernel_view import KernelView
from holdfast.run.mesh import MeshShape
from holdfast.run.stacks import Stack
from holdfast.run.succession import Candidacy, MachinePlace, Vote

PROTOCOL = 11
"""Both ends must use the same protocol; a run does not mix versions of Holdfast."""
FRAME_BYTES_MAX = 8 << 20
"""Larger than any message: a larger frame does not come from Holdfast."""
PACKED_BYTES_MAX = 32 << 20
"""The most bytes of notices that are sent together."""
LENGTH_BYTES = 4
SLOTS_MAX = 1024
"""The most members on one node; far more than it has GPUs or processors."""
ASKER_CHARS_MAX = 64

Role = Literal["agent", "worker", "operator", "heir"]
Stage = Literal[
    "starting",
    "data",
    "forward",
    "backward",
    "reduce",
    "optimizer",
    "script",
    "checkpoint",
    "meeting",
    "regroup",
    "state",
    "waiting",
    "finished",
]
"""What a member is doing, as its heartbeats report it. `data`, `forward`, `backward`: in a lane; in the data
helpers, in `lane.backward()`, or in the script's other computation there. `script`: the script's own code
between two steps or after the last. `checkpoint`: the state is copied for one. `meeting`: it waits for others
between steps. `waiting`: it waits for the coordinator's decision."""
FaultKind = Literal["kill", "node", "pause"]
WorkerFault = Literal["kill", "pause"]
"""Faults that an agent inflicts on one of its workers."""
PlannedKind = FaultKind | Literal["corrupt"]
"""Faults that can be planned: the above, and wrong bits inside a member."""
Corruptible = Literal["gradient", "activation", "weight", "optimizer"]
"""Where bits are flipped."""
Moment = Literal["lane", "reduce", "agree", "commit", "meeting", "regroup", "state", "join"]
"""Where inside a member's step a planned fault strikes. `agree`: when it has its part of the sum, before all
ranks of its replica have told each other so. `meeting`: in a collective of the script, after the step.
`join`: after admission, before it is ready."""
Outcome = Literal["completed", "failed", "stopped"]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of all messages: immutable, tagged with its own name."""


class MemberMessage(Message, frozen=True, kw_only=True):
    """A message from, to or about a member."""

    member: str


# ---- the handshake: both sides prove that they have the token (handshake.py) ----------------------------


class Challenge(Message, frozen=True, kw_only=True, tag=True):
    """The coordinator's first frame on every connection. tls: everything after it, both ways, is TLS."""

    nonce: bytes
    protocol: int = PROTOCOL
    tls: bool = False


class Proof(Message, frozen=True, kw_only=True, tag=True):
    """The client's answer. name: the node, the member, or empty. endpoint: where it connected to. received:
    how many messages it has received from coordinators of this run; None if it was not connected before.
    """

    role: Role
    name: str
    endpoint: str
    nonce: bytes
    proof: bytes
    protocol: int = PROTOCOL
    received: int | None = None


class Accepted(Message, frozen=True, kw_only=True, tag=True):
    """The client is accepted, and both sides may send messages. received: how many of the client's messages
    have arrived; it sends the others again. has_successor: if this coordinator dies, another one follows.
    term: the coordinator's; clients never return to an earlier one.
    """

    run: str
    proof: bytes = b""
    received: int = 0
    has_successor: bool = False
    term: int = 0


class Refused(Message, frozen=True, kw_only=True, tag=True):
    """The connection closes after this. The user sees `sentence` and `hint` if the proof is right.
    is_elsewhere: the coordinator is on another machine or not chosen yet, so the client should look again.
    """

    sentence: str
    hint: str = ""
    proof: bytes = b""
    is_elsewhere: bool = False


# ---- from an agent ---------------------------------------------------------------------------------------


class AgentJoined(Message, frozen=True, kw_only=True, tag=True):
    """This node joins.

    slots: how many members it can hold at once, numbered from 0. address: where others reach its workers.
    port: one that was free a moment ago, for a script that makes its own process group. host: the machine's
    own name, which exporters use. device: `gpu` if its members can use one, else `cpu`; empty if not known.
    """

    node: str
    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]
    address: str
    port: int
    host: str = ""
    device: str = ""


class WorkerStarted(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The process of `member` exists."""

    pid: int


class WorkerExited(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The process of `member` is gone, as its parent saw it.

    code: its exit code, or None if `signal` ended it. tail: its last lines. complaint: the traceback or the
    `holdfast:` sentence at the end of its stderr, which was held back to be printed once with the end of the
    run. port: a new free one. xid: the kernel log's error about its GPU, if the log can be read.
    """

    code: int | None = None
    signal: int | None = None
    tail: tuple[str, ...] = ()
    complaint: str = ""
    port: int = 0
    xid: Xid | None = None


class NodeBeat(Message, frozen=True, kw_only=True, tag=True):
    """The node lives. stopped: its members whose process the kernel shows as stopped, as by SIGSTOP.
    has_printed: one of its members has printed something since the last heartbeat.
    """

    node: str
    stopped: tuple[str, ...] = ()
    has_printed: bool = False


class Located(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The answer to `Locate`. place: such as `train.py:88`; empty if unknown. stacks: of its threads, the
    main one first. seen: the kernel's view of it. was_woken: a wait of its main thread has ended since it was
    last located.
    """

    place: str
    stacks: tuple[Stack, ...] = ()
    seen: KernelView | None = None
    was_woken: bool = False


class Proven(Message, frozen=True, kw_only=True, tag=True):
    """A fresh process has loaded a checkpoint and computed with it. refuted: its result differs from the
    run's. untried: the proof could not be made. reason: a sentence without its full stop.
    """

    step: int
    verdict: Literal["proven", "refuted", "untried"]
    reason: str


# ---- to an agent -----------------------------------------------------------------------------------------


WORKER_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("HOLDFAST_RUN", "HOLDFAST_MEMBER", "HOLDFAST_NODE", "HOLDFAST_ADDRESS"),
    }
)
"""Variables that a coordinator may set for a worker. An agent accepts no others: PYTHONPATH, for example,
would let it run code."""


class StartWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Start the script as `member` in `slot`. environment: additions to the agent's own, only from
    `WORKER_VARIABLES`.

    is_warm: it has no seat yet. Its output is not shown until `ShowWorker`, because others have already
    printed the same up to `join()`.
    """

    slot: int
    environment: dict[str, str]
    is_warm: bool = False


class ShowWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Show the output of a warm `member` from now on, as that of `slot`. It has joined, or has a seat now."""

    slot: int


class StopWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """End the process of `member`: SIGTERM and, after `grace_s`, SIGKILL. 0 for SIGKILL at once."""

    grace_s: float = 0.0


class StrikeWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Inflict a fault. kill: SIGKILL. pause: SIGSTOP, and SIGCONT after `for_s`.

    stops_itself: in a planned pause the member stops itself, and the agent only sends the SIGCONT. If the
    agent also sent a SIGSTOP, that might come first, and the member's own would come after the SIGCONT.
    """

    fault: WorkerFault
    for_s: float = 0.0
    stops_itself: bool = False


class StrikeNode(Message, frozen=True, kw_only=True, tag=True):
    """Inflict a fault: the agent and all its workers die at once, as in a power cut."""


class Locate(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Ask where in its script the process of `member` is, and what it waits for.

    is_gentle: if the process is in a new sleep since it was last located, it is not asked for its stacks. A
    signal ends a sleep, and torch takes that for a failure while it connects to other ranks.
    """

    is_gentle: bool = False


class EndNode(Message, frozen=True, kw_only=True, tag=True):
    """The run is over: end the remaining processes and exit with `code`."""

    outcome: Outcome
    code: int
    reason: str = ""


# ---- from a worker -----------------------------------------------------------------------------------


class SkippedLanes(msgspec.Struct, frozen=True, array_like=True):
    """The lanes that no member computed, the same from step `first` to step `last`."""

    first: int
    last: int
    lanes: tuple[int, ...]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that must be the same on all members for their bits to be the same; compared field by field.

    model: a digest of names, shapes, types and values of everything protected, as built. parts: the digest of
    each part by name, so that a difference can be named. threads: intra-op threads. on_shortage: what happens
    to the lanes of missing replicas.
    """

    lanes: int
    seed: int
    threads: int
    torch: str
    device: str
    deterministic: bool
    model: str
    parts: dict[str, str]
    on_shortage: str = "same bits"


class WorkerJoined(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The script reached `join()`: its imports are done. The member waits to be admitted. warms_up: if that
    takes long, it prepares itself meanwhile and says when it has.
    """

    pid: int
    warms_up: bool = False


class WarmedUp(MemberMessage, frozen=True, kw_only=True, tag=True):
    """A warm process has done in advance what the first step needs: from now on it can step in at once."""


class WorkerReady(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The script reached `protect()`: the model is built. took_s: the time since `join()` returned; a warm
    process that was admitted in a rehearsal has already built its model.
    """

    setup: Setup
    took_s: float


class Published(Message, frozen=True, kw_only=True, tag=True):
    """One key of a generation's rendezvous, from the member that sets it to all the others."""

    generation: int
    key: str
    value: bytes


class PublishedTogether(Message, frozen=True, kw_only=True, tag=True):
    """Notices that several members of a generation published, sent to all of them. packed: see `pack`."""

    generation: int
    packed: bytes


class Regrouped(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member is in the group of this generation, has its state, and continues from `version`.

    lanes: the lanes it was dealt. parts_s: how long each part took (abort, group, state).
    """

    generation: int
    version: int
    lanes: tuple[int, ...]
    steps_total: int
    parts_s: dict[str, float]


class Planned(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member's script has reached a loop over steps, which ends with this one."""

    steps_total: int


class Dealt(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member has these lanes from now on: a step that others had started is over, or lanes were moved."""

    generation: int
    lanes: tuple[int, ...]


class Balanced(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Rank 0's finding about the pace of all members at the end of a step. If lanes move, all members have
    already moved them. The finding counts members or, in a sharded model, replicas.
    """

    generation: int
    finding: BalanceFinding


class Audited(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The finding of all members of the generation after comparing the results of two. The first member that
    is not to blame sends it. If one is to blame, all wait for the next generation.
    """

    generation: int
    finding: AuditFinding


class Broken(MemberMessage, frozen=True, kw_only=True, tag=True):
    """A collective of this generation failed; the member waits for the next one.

    reason: the message of the communication library. operation: what the member could not do.
    """

    generation: int
    reason: str
    operation: str = "exchange data"


class PartLost(MemberMessage, frozen=True, kw_only=True, tag=True):
    """One part of a sharded state has no copy and no mirror, so no generation can continue from it."""

    generation: int
    rail: int


class LeftBehind(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member was away, and another process has to take its place. Either the others passed a point
    between two steps where its script still is, and have forgotten the result; or the run started again, and
    the member has steps of the previous attempt.
    """

    generation: int


class DeviceFailed(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member's GPU failed or ran out of memory: its last words, because the process is no longer usable.

    generation, step: where it was; 0 before it was in any. failure: what happened, in words that are the same
    for the same failure anywhere. detail: further facts in one line.
    """

    generation: int
    step: int
    failure: str
    detail: str = ""


CODE_DEVICE_FAILED = 69
"""A member's exit code after `DeviceFailed`, so that its agent's report is enough if it comes first.
sysexits.h calls it a service that is unavailable."""


class Committed(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member holds version `step` now. loss: the step's, if the script's losses are numbers.

    took_s: the time since the script asked for the step's first lane; None if unknown. skipped: the lanes
    that no member computed. at_ns: when that was, by the member's own clock, because a coordinator that was
    held up reads the message later. The member's clock keeps running while its machine is suspended.
    """

    generation: int
    step: int
    loss: float | None
    took_s: float | None = None
    skipped: tuple[int, ...] = ()
    at_ns: int | None = None


class Working(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Work that the script declared (`run.alone`, `run.together`), or its part of shared work, begins or is
    over. Meanwhile no member is ended for lack of a commit. work: its name.
    """

    work: str
    is_over: bool = False


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a member's time went in all the steps it has measured: see train/measures.py.

    collecting_s: the part of it that Python spent collecting garbage. resent: TCP segments to other members
    that were lost and sent again.
    """

    steps: int = 0
    compute_s: float = 0.0
    data_s: float = 0.0
    checkpoint_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0
    collecting_s: float = 0.0
    resent: int = 0


class MemberBeat(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member lives. step: the one it works on. spent: where its time went, in some heartbeats only."""

    step: int
    stage: Stage
    spent: Spent | None = None


class Finished(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The script has left its `with join()` block; the member waits to be released.

    digest: of the weights and everything else protected. begun: the step that it started and did not commit;
    0 for none. steps_total: the planned end of its last loop over steps. place: the file and line where it
    left that loop; empty if the loop ended by itself. is_exit: it left by `sys.exit(0)`.
    """

    step: int
    digest: str
    begun: int = 0
    steps_total: int = 0
    place: str = ""
    is_exit: bool = False

    @property
    def is_early(self) -> bool:
        """Whether the script left planned steps undone."""
        return self.step < self.steps_total

    @property
    def exit_words(self) -> str:
        """Why the run is over, if all members left like this."""
        return f"the script exited at step {self.step} of {self.steps_total} (exit 0)"


class Checkpointed(MemberMessage, frozen=True, kw_only=True, tag=True):
    """An event of a durable checkpoint or a snapshot, for the record: see `CheckpointSaved` and
    `CheckpointLoaded`.
    """

    happened: Literal["begun", "saved", "loaded", "failed"]
    step: int
    place: str
    reason: str = ""
    stall_ns: int | None = None
    size_bytes: int | None = None
    written_bytes: int | None = None
    write_ns: int | None = None
    exposed_ns: int | None = None
    restore_ns: int | None = None
    is_snapshot: bool = False


class Witnessed(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The result of the step after a checkpoint, for the record: see `StepWitnessed`."""

    step: int
    loss: str
    print: str


class Snapshotted(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member's share of a snapshot is complete in its node's memory. stall_ns: how long it waited for the
    copy. size_bytes: of the share; 0 if the state is too small for this member to have one.
    """

    step: int
    stall_ns: int
    size_bytes: int


class Struck(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The last words of a member that a planned fault is about to strike. fault: its id. The others are told,
    because the fault may also be due for them in a generation that was announced before.
    """

    fault: int


# ---- to a worker ---------------------------------------------------------------------------------------


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault at an exact place: when member `rank` (modulo the number of members) is at `moment` of `step`,
    or of the first later step that has such a moment.

    kill: SIGKILL to itself. node: SIGKILL to its agent, with which the whole node dies. pause: SIGSTOP.
    corrupt: `bits` bits of `what` are flipped silently at the moment `lane`. lasting: the same bits are
    flipped in every later lane, too. for_s: how long a node stays away or a pause lasts.
    """

    id: int
    step: int
    moment: Moment
    rank: int
    fault: PlannedKind = "kill"
    for_s: float = 3.0
    what: Corruptible = "gradient"
    bits: int = 1
    lasting: bool = False


class Admitted(Message, frozen=True, kw_only=True, tag=True):
    """Leave `join()` and build the model. slot: the member's device on the node.

    faults: planned faults with the moment `join` that are due, because the run has reached their step. mesh,
    rail: how many members hold the model together, and the member's part. skipped: lanes that are not
    computed, because the run repeats another one.
    """

    slot: int
    slots: int
    faults: tuple[PlannedFault, ...] = ()
    mesh: MeshShape = MeshShape()
    rail: int = 0
    skipped: tuple[SkippedLanes, ...] = ()


class Announced(Message, frozen=True, kw_only=True, tag=True):
    """From now on these are the members, in rank order.

    boundary_of: the generation that still works; change over at its first step boundary at which each of its
    members knows of this (new members wait for them). 0: abandon the present step. faults: planned faults
    that have not struck yet. replicas_most: the most replicas that the run has had.
    rebalances: lanes are dealt by the members' pace. audit_rate: the share of lanes that two members compute;
    0 to compare only states, None to compare nothing. is_apart: no member is of a generation since the last
    formed one, which may have made steps that they do not know of.
    """

    number: int
    members: tuple[str, ...]
    boundary_of: int = 0
    is_apart: bool = False
    faults: tuple[PlannedFault, ...] = ()
    replicas_most: int = 1
    rebalances: bool = False
    audit_rate: float | None = None

    @property
    def at_boundary(self) -> bool:
        return self.boundary_of > 0

    def admits(self, number: int, members: Sequence[str], *, is_torn: bool) -> bool:
        """Whether a member of that generation, one of these members, may enter. is_torn: it came to no
        boundary, because a collective failed.

        The others may have finished that step. If some of them are to leave at the boundary, they must be
        asked for it first. So the coordinator announces another generation, which waits for no boundary.
        """
        return not is_torn or number != self.boundary_of or set(members) <= set(self.members)


class Released(Message, frozen=True, kw_only=True, tag=True):
    """The run is over; leave."""

    outcome: Outcome


class Dismissed(Message, frozen=True, kw_only=True, tag=True):
    """The member cannot join: print the sentence as the user's mistake and exit with code 2."""

    sentence: str
    hint: str = ""


COORDINATOR_GONE = "The run's coordinator is gone."
"""The sentence of a member that ends because its connection has ended, which is not the user's mistake."""


# ---- succession on other machines (succession.py) --------------------------------------------------------


class LineOfSuccession(Message, frozen=True, kw_only=True, tag=True):
    """To all clients: host and port of each machine that has the coordinator or an heir. Empty if no machine
    could take over from the coordinator's.
    """

    places: tuple[tuple[str, int], ...]


class Reigning(Message, frozen=True, kw_only=True, tag=True):
    """To all clients, regularly, and not counted: the coordinator of this term lives."""

    term: int


class HeirCame(Message, frozen=True, kw_only=True, tag=True):
    """An heir has connected, and listens at its place. promised: it heeds no term before this one."""

    place: MachinePlace
    promised: int


class EstatePart(Message, frozen=True, kw_only=True, tag=True):
    """To an heir: a part of the estate (image.py) in this term. is_last: the estate is now complete."""

    term: int
    data: bytes
    is_last: bool


class EntriesTold(Message, frozen=True, kw_only=True, tag=True):
    """To an heir: the next entries of the estate, each encoded."""

    term: int
    entries: tuple[bytes, ...]


class Followed(Message, frozen=True, kw_only=True, tag=True):
    """From an heir: it has every entry up to this one, in this term."""

    term: int
    position: int


class AskVote(Message, frozen=True, kw_only=True, tag=True):
    """From an heir to another one, or from a coordinator to the heirs that follow it."""

    candidacy: Candidacy


class VoteCast(Message, frozen=True, kw_only=True, tag=True):
    """The answer to `AskVote`."""

    candidacy: Candidacy
    vote: Vote


class LineOver(Message, frozen=True, kw_only=True, tag=True):
    """To an heir: the run is over, so it need not follow."""


# ---- an operator ---------------------------------------------------------------------------------------


class Strike(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast chaos`: a fault now. target: a member or node; empty for a random one, from `seed`."""

    fault: FaultKind
    target: str = ""
    seed: int = 0
    for_s: float = 3.0


class Migrate(MemberMessage, frozen=True, kw_only=True, tag=True):
    """`holdfast migrate`: give a member's place to another process or, if `member` names a node, the node's
    places to a spare node. to: which node; empty for any. asks_only: only ask how far that is.
    """

    to: str = ""
    asks_only: bool = False


class Drain(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast drain`: from a step boundary on, have no members on this node. asks_only: as above."""

    node: str
    asks_only: bool = False


class Restore(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast restore`: a drained node may have members again."""

    node: str


class Stop(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast stop`, or a signal to `holdfast run`: end the run; the second time, at once. reason: the
    signal's name, or a sentence. asker, number: each process that asks has a name of its own (`fresh_asker`)
    and counts its requests from 1. So a request that is sent again, because a connection swallowed the
    answer, counts only once.
    """

    reason: str
    asker: Annotated[str, msgspec.Meta(min_length=1, max_length=ASKER_CHARS_MAX)]
    number: Annotated[int, msgspec.Meta(ge=1)] = 1


class WatchRun(Message, frozen=True, kw_only=True, tag=True):
    """A viewer wants the lines for the operator after this number, and all that follow."""

    seen: int = 0


class AskStatus(Message, frozen=True, kw_only=True, tag=True):
    """A viewer asks for the run's status."""


class Answer(Message, frozen=True, kw_only=True, tag=True):
    """The coordinator's answer to an operator: what was done, or why not (`ok` false).

    is_done: False while the request is still being carried out. is_mistake: the request cannot be meant, such
    as one for a member that does not exist. hint: what to do about it, if known.
    """

    ok: bool
    sentence: str
    is_done: bool = True
    is_mistake: bool = False
    hint: str = ""


class Said(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: a line for the operator and its number. member: who printed it; empty for Holdfast."""

    number: int
    text: str
    member: str = ""


class NodeStruck(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: a fault takes a node away for this long."""

    for_s: float


class StatusTold(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: a `Status`, packed."""

    packed: bytes


class RunClosed(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: how the run ended. code: the exit code of `holdfast run`. saved_step: of the newest
    checkpoint that this start saved; None if its script is one that saves none here; 0 if there was none yet.
    """

    outcome: Outcome
    code: int
    reason: str
    complaint: str = ""
    saved_step: int | None = 0


Handshake = Challenge | Proof | Accepted | Refused
FromAgent = AgentJoined | WorkerStarted | WorkerExited | NodeBeat | Located | Proven
ToAgent = StartWorker | ShowWorker | StopWorker | StrikeWorker | StrikeNode | Locate | EndNode
OfRegrouping = Published | Regrouped | Dealt | Broken | PartLost | LeftBehind
OfMembership = WorkerJoined | WarmedUp | WorkerReady | OfRegrouping | DeviceFailed | Finished
OfState = Checkpointed | Witnessed | Snapshotted
OfProgress = Planned | Committed | Balanced | Audited | Working | MemberBeat | OfState | Struck
FromWorker = OfMembership | OfProgress
ToWorker = Admitted | Announced | Published | PublishedTogether | Released | Dismissed | Struck
Move = Migrate | Drain | Restore
"""Operator requests that change which process is in which place."""
ToHeir = EstatePart | EntriesTold | Reigning | AskVote | VoteCast | LineOver
FromHeir = HeirCame | Followed | AskVote | VoteCast
OfSuccession = LineOfSuccession | ToHeir | FromHeir
FromOperator = Strike | Move | Stop | WatchRun | AskStatus
ToOperator = Answer | Said | NodeStruck | StatusTold | RunClosed
AnyMessage = (
    Handshake | FromAgent | ToAgent | FromWorker | ToWorker | FromOperator | ToOperator | OfSuccession
)

Notice = tuple[str, str, bytes]
"""The member that published it, the key and the value."""

_notice_decoder = msgspec.msgpack.Decoder(list[Notice])
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


class MalformedFrame(ValueError):
    """Bytes that no Holdfast process sends."""


def frame(message: AnyMessage) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def frame_length(prefix: bytes, bytes_max: int = FRAME_BYTES_MAX) -> int:
    """How many bytes follow this prefix of `LENGTH_BYTES`."""
    length = int.from_bytes(prefix, "big")
    if not 0 < length <= bytes_max:
        raise MalformedFrame(f"a frame of {length} bytes")
    return length


def unframe(body: bytes) -> AnyMessage:
    try:
        return _decoder.decode(body)
    except UNDECODABLE as error:
        raise MalformedFrame(str(error)) from None


def pack(notices: Sequence[Notice]) -> bytes:
    """Compress notices, which is worthwhile because they are similar and go to all members."""
    return zlib.compress(_encoder.encode(notices), level=1)


def unpack(packed: bytes) -> list[Notice]:
    expander = zlib.decompressobj()
    try:
        data = expander.decompress(packed, PACKED_BYTES_MAX)
        if expander.unconsumed_tail or not expander.eof:
            raise MalformedFrame(f"more than {PACKED_BYTES_MAX} bytes packed, or too few")
        return _notice_decoder.decode(data)
    except (zlib.error, *UNDECODABLE) as error:
        raise MalformedFrame(str(error)) from None


def fresh_token() -> str:
    return secrets.token_hex(16)


def fresh_asker() -> str:
    return secrets.token_hex(8)


class FrameBuffer:
    """Keeps a partial frame until the rest arrives. bytes_max: the largest frame; it may be changed after
    every message, and is small for an unproven connection.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._data = bytearray()

    @property
    def is_begun(self) -> bool:
        """Whether there are bytes of a frame that was not returned yet."""
        return bool(self._data)

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """The messages that are now complete. Raise `MalformedFrame` if the bytes are not a valid message."""
        for body in self.bodies(data):
            yield unframe(body)

    def bodies(self, data: bytes) -> Iterator[bytes]:
        """The bodies of frames that are now complete, not yet decoded."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                end = body + frame_length(bytes(self._data[start:body]), self.bytes_max)
                if end > len(self._data):
                    break
                start = end
                yield bytes(self._data[body:end])
        finally:
            del self._data[:start]
