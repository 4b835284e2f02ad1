"""What the processes of a run say to each other: typed messages and their framing.

The coordinator is the hub: every agent, every worker and every operator (the launcher, `holdfast attach`,
`chaos`, `migrate`, `stop`) holds one TCP connection to it and speaks to nobody else about the run. Tensors
never pass here. A message is a frame: its length in four bytes, then MessagePack. No socket is opened here.
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

PROTOCOL = 9
"""Both ends must speak the same one; a run does not mix versions of Holdfast."""
FRAME_BYTES_MAX = 8 << 20
"""Larger than any message: what exceeds it does not come from Holdfast."""
PACKED_BYTES_MAX = 32 << 20
"""Of notices that travel together."""
LENGTH_BYTES = 4
SLOTS_MAX = 1024
"""Members on one node; far more than it has GPUs or processors for."""
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
"""What a member is doing, as its heartbeats tell it. `data`, `forward`, `backward`: in a lane, with the data
helpers, in `lane.backward()`, or with whatever else the script computes there. `script`: what stands between
two steps, or after the last. `checkpoint`: the state is copied for one. `meeting`: it waits for others
between steps. `waiting`: for the coordinator to say how it goes on."""
FaultKind = Literal["kill", "node", "pause"]
WorkerFault = Literal["kill", "pause"]
"""Those that an agent does to one of its workers."""
PlannedKind = FaultKind | Literal["corrupt"]
"""What can be planned: beside those that strike at once, wrong bits inside a member."""
Corruptible = Literal["gradient", "activation", "weight", "optimizer"]
"""Where bits are flipped."""
Moment = Literal["lane", "reduce", "agree", "commit", "meeting", "regroup", "state", "join"]
"""Where inside a member's step a planned fault strikes; `agree`: when it has its part of the sum, before the
ranks of its replica have all told each other so; `meeting`: in a collective of the script's, after the
step; `join`: after admission, before it is ready."""
Outcome = Literal["completed", "failed", "stopped"]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every message is: immutable, tagged with its own name."""


class MemberMessage(Message, frozen=True, kw_only=True):
    """A message of a member, to one, or about one."""

    member: str


# ---- the handshake: both sides prove that they have the token (handshake.py) ----------------------------


class Challenge(Message, frozen=True, kw_only=True, tag=True):
    """The coordinator's first frame on every connection. tls: all that follows, both ways, is TLS."""

    nonce: bytes
    protocol: int = PROTOCOL
    tls: bool = False


class Proof(Message, frozen=True, kw_only=True, tag=True):
    """The client's answer. name: the node, the member, or empty. endpoint: where it connected to. received:
    how many messages it has had from coordinators of this run, if it was connected before; None: it was not.
    """

    role: Role
    name: str
    endpoint: str
    nonce: bytes
    proof: bytes
    protocol: int = PROTOCOL
    received: int | None = None


class Accepted(Message, frozen=True, kw_only=True, tag=True):
    """From here on both sides send what they have to say. received: how many of the client's messages are
    known; it sends the others again. has_successor: if this coordinator dies, another one follows. term: in
    which the coordinator reigns; nobody goes back to an earlier one.
    """

    run: str
    proof: bytes = b""
    received: int = 0
    has_successor: bool = False
    term: int = 0


class Refused(Message, frozen=True, kw_only=True, tag=True):
    """The connection closes after this. The user sees `sentence` and `hint` if the proof is right.
    is_elsewhere: the coordinator is on another machine, or is not chosen yet: look again.
    """

    sentence: str
    hint: str = ""
    proof: bytes = b""
    is_elsewhere: bool = False


# ---- from an agent ---------------------------------------------------------------------------------------


class AgentJoined(Message, frozen=True, kw_only=True, tag=True):
    """This node is there.

    slots: how many members it can hold at once, numbered from 0; address: where its workers can be reached
    by others; port: one that was free a moment ago, for a script that makes its own process group.
    """

    node: str
    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]
    address: str
    port: int


class WorkerStarted(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The process of `member` exists."""

    pid: int


class WorkerExited(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The process of `member` is gone, as its parent saw it.

    code: its exit code, or None where `signal` ended it.
    tail: its last lines. complaint: the traceback, or the `holdfast:` sentence, that ended its stderr and
    was held back; whoever reports the end of the run prints it, once. port: a fresh free one. xid: what the
    kernel log says about its GPU, where it can be read.
    """

    code: int | None = None
    signal: int | None = None
    tail: tuple[str, ...] = ()
    complaint: str = ""
    port: int = 0
    xid: Xid | None = None


class NodeBeat(Message, frozen=True, kw_only=True, tag=True):
    """The node lives. stopped: its members whose process the kernel shows as stopped, as by SIGSTOP.
    has_printed: one of them has, since the last heartbeat.
    """

    node: str
    stopped: tuple[str, ...] = ()
    has_printed: bool = False


class Located(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The answer to `Locate`. place: `train.py:88`; empty: it cannot be told. stacks: of its threads, the
    main one first. seen: what the kernel shows of it. was_woken: since it was last located, its main thread
    got what it waited for.
    """

    place: str
    stacks: tuple[Stack, ...] = ()
    seen: KernelView | None = None
    was_woken: bool = False


class Proven(Message, frozen=True, kw_only=True, tag=True):
    """A fresh process has loaded a checkpoint and computed with it. refuted: it came to something else than
    the run. untried: it could not be made. reason: a sentence without its full stop.
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
"""What a coordinator may set for a worker. An agent takes no other: PYTHONPATH, say, would be code."""


class StartWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Start the script as `member` in `slot`. environment: what it must have beside the agent's own, of
    `WORKER_VARIABLES` and nothing else.

    is_warm: it has no seat yet, and what it prints up to `join()` others have printed before it: it is not
    shown until `ShowWorker`.
    """

    slot: int
    environment: dict[str, str]
    is_warm: bool = False


class ShowWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Show what a warm `member` prints from here on, as that of `slot`. It has joined, or has a seat now."""

    slot: int


class StopWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """End the process of `member`: SIGTERM and, after `grace_s`, SIGKILL. 0: SIGKILL at once."""

    grace_s: float = 0.0


class StrikeWorker(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Chaos. kill: SIGKILL. pause: SIGSTOP, and SIGCONT after `for_s`.

    stops_itself: as in a planned pause, where only the SIGCONT is left to do. A second SIGSTOP might be the
    quicker one, and then its own would come after the SIGCONT.
    """

    fault: WorkerFault
    for_s: float = 0.0
    stops_itself: bool = False


class StrikeNode(Message, frozen=True, kw_only=True, tag=True):
    """Chaos: the agent and all its workers die at once, as in a power cut."""


class Locate(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Where in its script is the process of `member`, and what does it wait for?

    is_gentle: one that is asleep, and was not in the same sleep when it was last located, is not asked for
    its stacks. A signal ends a sleep, and torch takes that for a failure while it connects to other ranks.
    """

    is_gentle: bool = False


class EndNode(Message, frozen=True, kw_only=True, tag=True):
    """The run is over: end what is left, and exit with `code`."""

    outcome: Outcome
    code: int
    reason: str = ""


# ---- from a worker -----------------------------------------------------------------------------------


class SkippedLanes(msgspec.Struct, frozen=True, array_like=True):
    """The lanes that nobody computed, in the same way from one step to another."""

    first: int
    last: int
    lanes: tuple[int, ...]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same on all members for their bits to be: compared field by field.

    model: a digest of names, shapes, types and values of everything protected as it was built; parts: the
    digest of each part of it by name, so that a difference can be named. threads: intra-op threads.
    on_shortage: what is done about the lanes of replicas that are missing.
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
    """The script reached `join()`: its imports are done. The member waits to be admitted."""

    pid: int


class WorkerReady(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The script reached `protect()`: the model is built. took_s: from when `join()`
    returned to here; a warm process that was admitted in a rehearsal has that behind it.
    """

    setup: Setup
    took_s: float


class Published(Message, frozen=True, kw_only=True, tag=True):
    """One key of a generation's rendezvous, from the member that sets it and on to all the others."""

    generation: int
    key: str
    value: bytes


class PublishedTogether(Message, frozen=True, kw_only=True, tag=True):
    """What several members of a generation published, to all of them. packed: see `pack`."""

    generation: int
    packed: bytes


class Regrouped(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member is in the group of this generation, has its state, and goes on from `version`.

    lanes: the lanes it was dealt. parts_s: how long each part took (abort, group, state).
    """

    generation: int
    version: int
    lanes: tuple[int, ...]
    steps_total: int
    parts_s: dict[str, float]


class Planned(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member's script has come to a loop over steps, up to this one."""

    steps_total: int


class Dealt(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member has these lanes from now on: a step that others had begun is over, or lanes were moved."""

    generation: int
    lanes: tuple[int, ...]


class Balanced(MemberMessage, frozen=True, kw_only=True, tag=True):
    """What rank 0 has found in the pace of all members at the end of a step; lanes that are moved have been,
    by all of them. What it is about is counted in members or, of a sharded model, in replicas.
    """

    generation: int
    finding: BalanceFinding


class Audited(MemberMessage, frozen=True, kw_only=True, tag=True):
    """What all members of the generation found when they compared what two of them had computed. The first of
    those that are not to blame says so. If somebody is, all wait for the next generation.
    """

    generation: int
    finding: AuditFinding


class Broken(MemberMessage, frozen=True, kw_only=True, tag=True):
    """A collective of this generation failed; the member waits for the next one.

    reason: in the words of the library that carries the tensors. operation: what the member could not do.
    """

    generation: int
    reason: str
    operation: str = "exchange data"


class PartLost(MemberMessage, frozen=True, kw_only=True, tag=True):
    """Of one part of a sharded state there is no copy and no mirror: no generation can go on from it."""

    generation: int
    rail: int


class LeftBehind(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member was away, and another process has to take its place. Either the others went past what its
    script does between two steps, and have forgotten the result; or the run began anew, and the member has
    steps of the attempt before.
    """

    generation: int


class DeviceFailed(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member's GPU failed, or ran out of memory: its last words, for the process cannot be used any more.

    generation, step: where it was; 0 before it was in any. failure: what happened, in words that are the same
    wherever the same happens. detail: what else is known, in one line.
    """

    generation: int
    step: int
    failure: str
    detail: str = ""


CODE_DEVICE_FAILED = 69
"""What a member exits with after `DeviceFailed`, so that its agent's word is enough if that comes first;
sysexits.h calls it a service that is unavailable."""


class Committed(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member holds version `step` now. loss: the step's, where the script's losses are numbers.

    took_s: from when the script asked for the step's first lane until here; None: not known. skipped: the
    lanes that nobody computed. at_ns: when that was, by the member's own clock, which goes on while its
    machine is suspended: a coordinator that was held up hears of it later.
    """

    generation: int
    step: int
    loss: float | None
    took_s: float | None = None
    skipped: tuple[int, ...] = ()
    at_ns: int | None = None


class Working(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The script has declared work (`run.alone`, `run.together`), or has its part of shared work, that begins
    now, or is over: meanwhile nobody is ended for want of a commit. work: its name.
    """

    work: str
    is_over: bool = False


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a member's time went in all the steps it has measured: see train/measures.py.

    collecting_s: of all that, what Python spent collecting garbage. resent: segments that were lost on the
    way to other members and sent again.
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
    """The member lives. step: the one it works on. spent: now and then, where its time went."""

    step: int
    stage: Stage
    spent: Spent | None = None


class Finished(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The script is through its `with join()` block; the member waits to be released.

    digest: of the weights and everything else protected. begun: the step that it had begun and not committed;
    0: none. steps_total: up to where its last loop over steps would have gone. place: the file and line where
    it left that loop; empty where the loop ended by itself. is_exit: it left by `sys.exit(0)`.
    """

    step: int
    digest: str
    begun: int = 0
    steps_total: int = 0
    place: str = ""
    is_exit: bool = False

    @property
    def is_early(self) -> bool:
        """Whether steps were left that the script had asked for."""
        return self.step < self.steps_total

    @property
    def exit_words(self) -> str:
        """Why the run is over where all members left like this."""
        return f"the script exited at step {self.step} of {self.steps_total} (exit 0)"


class Checkpointed(MemberMessage, frozen=True, kw_only=True, tag=True):
    """What happened to a durable checkpoint, or to a snapshot, for the record: see `CheckpointSaved`,
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
    """What the step after a checkpoint came to, for the record: see `StepWitnessed`."""

    step: int
    loss: str
    print: str


class Snapshotted(MemberMessage, frozen=True, kw_only=True, tag=True):
    """The member's share of a snapshot is whole in its node's memory. stall_ns: how long it waited for the
    copy; size_bytes: of the share; 0: the state is too small for this member to have one.
    """

    step: int
    stall_ns: int
    size_bytes: int


class Struck(MemberMessage, frozen=True, kw_only=True, tag=True):
    """A planned fault is about to strike the member that sends this: its last words. `fault` is its id. The
    others are told, for whom the fault may be due as well in a generation that was announced before.
    """

    fault: int


# ---- to a worker ---------------------------------------------------------------------------------------


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault at an exact place: when member `rank` (modulo their number) is at `moment` of `step`, or of the
    first step after it that has such a moment.

    kill: SIGKILL to itself. node: SIGKILL to its agent, with which the whole node dies. pause: SIGSTOP.
    corrupt: `bits` bits of `what` are flipped, silently, at the moment `lane`; lasting: in the same way in
    every lane from there on. for_s: how long a node stays away, or a pause lasts.
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
    """Leave `join()` and build the model. slot: which device of the node is yours.

    faults: planned faults with the moment `join` that are due: the run has reached their step. mesh, rail:
    how many members hold the model together, and which part is yours. skipped: lanes that are not to be
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

    at_boundary: the present generation still works; change over at the first step boundary at which every
    present member knows of this (members that are new wait for them). Otherwise: abandon what you are in.
    faults: planned faults that have not struck yet. replicas_most: how many the run has had at best.
    rebalances: lanes are dealt by the members' pace. audit_rate: the share of lanes that two members compute;
    0: only states are compared; None: nothing is. is_apart: none of them was in the generation before, which
    may have made steps that they know nothing of.
    """

    number: int
    members: tuple[str, ...]
    at_boundary: bool = False
    is_apart: bool = False
    faults: tuple[PlannedFault, ...] = ()
    replicas_most: int = 1
    rebalances: bool = False
    audit_rate: float | None = None


class Released(Message, frozen=True, kw_only=True, tag=True):
    """The run is over; leave."""

    outcome: Outcome


class Dismissed(Message, frozen=True, kw_only=True, tag=True):
    """The member cannot take part: print the sentence as the user's mistake and exit with code 2."""

    sentence: str
    hint: str = ""


COORDINATOR_GONE = "The run's coordinator is gone."
"""The sentence with which a member ends whose connection has ended: no mistake of its user's."""


# ---- succession on other machines (succession.py) --------------------------------------------------------


class LineOfSuccession(Message, frozen=True, kw_only=True, tag=True):
    """To everybody: host and port of each machine that has the coordinator or an heir. Empty: if the
    coordinator's machine is lost, nobody follows.
    """

    places: tuple[tuple[str, int], ...]


class Reigning(Message, frozen=True, kw_only=True, tag=True):
    """To everybody, now and then, outside what is counted: the coordinator of this term lives."""

    term: int


class HeirCame(Message, frozen=True, kw_only=True, tag=True):
    """An heir is there, and may be found at its place. promised: it heeds no earlier term than this."""

    place: MachinePlace
    promised: int


class EstatePart(Message, frozen=True, kw_only=True, tag=True):
    """To an heir: a part of the estate (image.py), as it is in this term. is_last: now it is whole."""

    term: int
    data: bytes
    is_last: bool


class EntriesTold(Message, frozen=True, kw_only=True, tag=True):
    """To an heir: the next entries of the estate, encoded each."""

    term: int
    entries: tuple[bytes, ...]


class Followed(Message, frozen=True, kw_only=True, tag=True):
    """From an heir: it has every entry up to this one, in this term."""

    term: int
    position: int


class AskVote(Message, frozen=True, kw_only=True, tag=True):
    """From an heir to another one, or from a coordinator to those who follow it."""

    candidacy: Candidacy


class VoteCast(Message, frozen=True, kw_only=True, tag=True):
    """The answer."""

    candidacy: Candidacy
    vote: Vote


class LineOver(Message, frozen=True, kw_only=True, tag=True):
    """To an heir: the run is over, and nobody is to follow."""


# ---- an operator ---------------------------------------------------------------------------------------


class Strike(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast chaos`: a fault now. target: a member or node; empty: one at random, from `seed`."""

    fault: FaultKind
    target: str = ""
    seed: int = 0
    for_s: float = 3.0


class Migrate(MemberMessage, frozen=True, kw_only=True, tag=True):
    """`holdfast migrate`: give the member's place to another process, or those of a node, if it is one, to a
    spare node. to: which node; empty: any. asks_only: how does that stand?
    """

    to: str = ""
    asks_only: bool = False


class Drain(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast drain`: have no member on this node, from a step boundary on. asks_only: as above."""

    node: str
    asks_only: bool = False


class Restore(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast restore`: a node that was drained may have members again."""

    node: str


class Stop(Message, frozen=True, kw_only=True, tag=True):
    """`holdfast stop`, or a signal to `holdfast run`: end the run; the second time, at once. reason: the
    signal's name, or a sentence. asker, number: each process that asks has a name of its own
    (`fresh_asker`), and counts its wishes from 1. So a wish that it sends again, because a connection
    swallowed the answer, counts once.
    """

    reason: str
    asker: Annotated[str, msgspec.Meta(min_length=1, max_length=ASKER_CHARS_MAX)]
    number: Annotated[int, msgspec.Meta(ge=1)] = 1


class WatchRun(Message, frozen=True, kw_only=True, tag=True):
    """A viewer wants the lines for the operator behind this number, and all that follow."""

    seen: int = 0


class AskStatus(Message, frozen=True, kw_only=True, tag=True):
    """A viewer wants to know how the run stands."""


class Answer(Message, frozen=True, kw_only=True, tag=True):
    """The coordinator's answer to an operator: what was done, or why not (`ok` false).

    is_done: False while what was asked for is under way. is_mistake: it was asked of nobody who is there.
    hint: what to do about it, where that is known.
    """

    ok: bool
    sentence: str
    is_done: bool = True
    is_mistake: bool = False
    hint: str = ""


class Said(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: a line for the operator, by its number. member: who printed it; empty: Holdfast."""

    number: int
    text: str
    member: str = ""


class NodeStruck(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: a fault takes a node away, for so long."""

    for_s: float


class StatusTold(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: a `Status`, packed."""

    packed: bytes


class RunClosed(Message, frozen=True, kw_only=True, tag=True):
    """To a viewer: the run has ended like this. code: what `holdfast run` exits with."""

    outcome: Outcome
    code: int
    reason: str
    complaint: str = ""


Handshake = Challenge | Proof | Accepted | Refused
FromAgent = AgentJoined | WorkerStarted | WorkerExited | NodeBeat | Located | Proven
ToAgent = StartWorker | ShowWorker | StopWorker | StrikeWorker | StrikeNode | Locate | EndNode
OfRegrouping = Published | Regrouped | Dealt | Broken | PartLost | LeftBehind
OfMembership = WorkerJoined | WorkerReady | OfRegrouping | DeviceFailed | Finished
OfState = Checkpointed | Witnessed | Snapshotted
OfProgress = Planned | Committed | Balanced | Audited | Working | MemberBeat | OfState | Struck
FromWorker = OfMembership | OfProgress
ToWorker = Admitted | Announced | Published | PublishedTogether | Released | Dismissed | Struck
Move = Migrate | Drain | Restore
"""What an operator asks for that changes who is where."""
ToHeir = EstatePart | EntriesTold | Reigning | AskVote | VoteCast | LineOver
FromHeir = HeirCame | Followed | AskVote | VoteCast
OfSuccession = LineOfSuccession | ToHeir | FromHeir
FromOperator = Strike | Move | Stop | WatchRun | AskStatus
ToOperator = Answer | Said | NodeStruck | StatusTold | RunClosed
AnyMessage = (
    Handshake | FromAgent | ToAgent | FromWorker | ToWorker | FromOperator | ToOperator | OfSuccession
)

Notice = tuple[str, str, bytes]
"""Who published it, under which key, and what."""

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
    """What members tell each other is much the same, and goes to all of them: it is worth compressing."""
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
    """Keeps what has come of a frame until the rest is there. bytes_max: what a frame may have; it may be
    changed with every message, and is small for somebody who has proved nothing yet.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._data = bytearray()

    @property
    def is_begun(self) -> bool:
        """Whether there is a part of a frame, or more, that was not given yet."""
        return bool(self._data)

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """The messages that are complete now. `MalformedFrame` where the bytes are no message of ours."""
        for body in self.bodies(data):
            yield unframe(body)

    def bodies(self, data: bytes) -> Iterator[bytes]:
        """The same, before they are decoded."""
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
