"""The typed events of the record: what can happen to a run, and the one encoding of it.

An event is an observed fact: it is never changed, and a `Correction` takes a mistake back. Every kind is
tagged and versioned. An event of a newer kind, or of a newer schema of a known kind, is kept byte for byte as
`Unknown`, and code that computes from the record skips it. Nothing here does I/O.
"""

from typing import Annotated, Any, Literal, get_args

import msgspec

SCHEMA = 1
"""The newest schema this version writes; an event with a higher one is `Unknown`."""

# Bounds keep every column within 64 bits (2**62 ns is the year 2116) and every name, in any alphabet, within
# the limit of a database's index.
NAME_CHARS_MAX = 256
ID_CHARS_MAX = 128
Identity = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_CHARS_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
GpuCount = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
StepNumber = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]

CPU, GPU = "cpu", "gpu"
"""The device of members that have no GPU, and of those that have one whose name is not known."""
Outcome = Literal["completed", "failed", "stopped", "preempted"]
Phase = Literal["launch", "init", "load", "step", "data", "eval", "check", "stop"]
Severity = Literal["fatal", "degraded"]
TAKE_OVER: Literal["take over"] = "take over"
Action = Literal[
    "restart", "replace", "migrate", "shrink", "grow", "rebalance", "drain", "restore", "stop", "take over"
]
"""Holdfast's own actions on a run. Foreign records may name other actions."""
Role = Literal["active", "spare"]
Precision = Literal["bf16", "fp8", "fp4"]
Attention = Literal["full", "causal"]
Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"]
DataUse = Literal["dataset", "cold", "egress"]
IncidentState = Literal["open", "changed", "resolved"]
ControlMode = Literal["act", "shadow"]
ControlStage = Literal["decided", "done", "failed", "over"]

UNTIMED = "trainer log"
"""The source of events of a log that may have no times: they are at 0 then, in the order of their steps."""
UNDATED_NS_MAX = 10**18
"""An earlier time in such a log, before September 2001, is no date: it counts from the start, or is 0."""
IMPORTED = frozenset({"google-resiliency", "infinitehbd", "sacct", "table", UNTIMED})
"""Sources of events that were made from the lines of a log. Where the log ends, nothing more is known."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What every event carries.

    id           unique, and the same wherever the event is copied; of fixed width within a source, so
                 that its events sort in the order in which they were recorded
    occurred_ns  when it happened, by the clock of the process that saw it
    recorded_ns  when it was written
    source       the process that recorded it, `host/pid`, or the format it was imported from
    run          the run it belongs to; empty for the cluster as a whole
    subject      the member, node or GPU it is about; empty for the run itself
    causes       ids of the events that led to it; an effect is never placed before its cause
    """

    id: Identity
    occurred_ns: Nanoseconds
    recorded_ns: Nanoseconds = 0
    source: Name = ""
    run: Name = ""
    subject: Name = ""
    causes: tuple[str, ...] = ()
    schema: int = SCHEMA


class RunSubmitted(Event, frozen=True, kw_only=True, tag_field="kind", tag="run.submitted"):
    """A run was asked for.

    team, project: its owner and purpose in the budget. cluster: where it runs.
    """

    gpus: GpuCount = 0
    name: str = ""
    team: str = ""
    project: str = ""
    cluster: str = ""


class RunStarted(Event, frozen=True, kw_only=True, tag_field="kind", tag="run.started"):
    """An attempt at the run was launched. A second start supersedes the first: attempts share the allocation.

    gpus: how many GPUs are meant to take part in its steps (spares come on top); 0 if only its members give
    their GPUs. script, script_sha256, arguments: what was started, if known; secrets are left out.
    """

    gpus: GpuCount = 0
    name: str = ""
    team: str = ""
    project: str = ""
    cluster: str = ""
    script: Name = ""
    script_sha256: Name = ""
    arguments: tuple[str, ...] = ()


class RunEnded(Event, frozen=True, kw_only=True, tag_field="kind", tag="run.ended"):
    """The attempt is over and its GPUs were given back (unless a `CostRate` says they are held).

    survived_errors: how often the script failed on a member and the run went on without it.
    """

    outcome: Outcome
    reason: str = ""
    survived_errors: Count = 0


class GenerationOpened(Event, frozen=True, kw_only=True, tag_field="kind", tag="generation.opened"):
    """From here the run has these members. Empty `members`: all that joined and are not spares.

    gpus: how many GPUs the run is meant to have from now on, if that changes. step: the step the new
    generation goes on from, if known. abort_ns, group_ns, state_ns: how long the slowest member took to leave
    the old group, to meet the others in the new one, and to get the state; each on its own, so they need not
    add up. reason: why there is a new generation, in words: members that were lost or came, or what a member
    could not do. lanes, seed, model: with the first generation, what identifies the script: its arguments of
    `protect()`, and a digest of the model as it was built, unless that is sharded. device: with the first
    generation, what its members compute on: the name of a GPU, or `gpu` or `cpu`, if known.
    """

    generation: Count = 0
    members: tuple[str, ...] = ()
    gpus: GpuCount | None = None
    step: StepNumber | None = None
    abort_ns: Nanoseconds | None = None
    group_ns: Nanoseconds | None = None
    state_ns: Nanoseconds | None = None
    reason: str = ""
    lanes: Count | None = None
    seed: int | None = None
    model: str = ""
    device: str = ""


class MemberJoined(Event, frozen=True, kw_only=True, tag_field="kind", tag="member.joined"):
    """The worker process `subject` joined with its GPUs. node: as the run calls it; host: as the machine
    calls itself, and exporters call it.
    """

    gpus: GpuCount = 1
    role: Role = "active"
    node: str = ""
    host: str = ""


class MemberLost(Event, frozen=True, kw_only=True, tag_field="kind", tag="member.lost"):
    """The worker process `subject` is gone. onset_ns: when it went, if that was before it was noticed."""

    reason: str = ""
    onset_ns: Nanoseconds | None = None


class StepBegun(Event, frozen=True, kw_only=True, tag_field="kind", tag="step.begun"):
    """Work on this step began: its data are there."""

    step: StepNumber


class StepCommitted(Event, frozen=True, kw_only=True, tag_field="kind", tag="step.committed"):
    """The result of this step, and of every step before it, is kept. skipped_lanes: the part of its batch
    that was not computed, because replicas were missing.
    """

    step: StepNumber
    skipped_lanes: tuple[Count, ...] = ()


class LaneExamined(Event, frozen=True, kw_only=True, tag_field="kind", tag="lane.examined"):
    """All members computed this lane of the step again, because two of them did not agree about it or its
    loss was odd. subject: the member that had computed it wrongly; empty if none is known.

    loss: of the lane if it was odd, as text, since it may be NaN or infinite. print: 64 bits of its
    gradients, buffers and loss as most members computed them, in hexadecimal digits.
    """

    step: StepNumber
    lane: Count
    loss: str = ""
    print: str = ""


class StepWitnessed(Event, frozen=True, kw_only=True, tag_field="kind", tag="step.witnessed"):
    """The result of the step after a checkpoint, recorded if possible by a member that did not write all of
    that checkpoint. A process that loads the checkpoint and computes the step must get the same result.

    loss: of the step, as text, since it may be NaN or infinite. print: 64 bits of weights, buffers and
    optimizer state after the step, in hexadecimal digits; empty if only a trainer's log tells the loss.
    """

    step: StepNumber
    loss: str = ""
    print: str = ""


class CheckpointBegun(Event, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint.begun"):
    """A checkpoint of this step is being written; `blocking` while training waits for it."""

    step: StepNumber
    blocking: bool = True
    place: str = ""


class CheckpointSaved(Event, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint.saved"):
    """A checkpoint of this step is durable. stall_ns: how long training stood still for it, if measured.
    size_bytes: its size, all of its parts together. written_bytes: how much of it was new. write_ns: from the
    end of that stall until it was durable. exposed_ns: the work that a loss of all members just before would
    have cost: the time since the copy of the previously durable state.
    """

    step: StepNumber
    stall_ns: Nanoseconds | None = None
    place: str = ""
    size_bytes: Count | None = None
    written_bytes: Count | None = None
    write_ns: Nanoseconds | None = None
    exposed_ns: Nanoseconds | None = None


class CheckpointLoaded(Event, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint.loaded"):
    """The run goes on from this step; later commits are rolled back. size_bytes: how much was read for that,
    by all members together. restore_ns: how long the slowest member took to read, compare and put it back.
    is_snapshot: it was in memory.
    """

    step: StepNumber
    place: str = ""
    size_bytes: Count | None = None
    restore_ns: Nanoseconds | None = None
    is_snapshot: bool = False


class CheckpointFailed(Event, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint.failed"):
    """A checkpoint could not be written or read; or a snapshot in memory could not be taken or used."""

    step: StepNumber
    reason: str = ""
    place: str = ""
    is_snapshot: bool = False


class CheckpointVerified(Event, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint.verified"):
    """A check whether a run can restart from a checkpoint: it was loaded, a step was computed, and the result
    compared with what the run had computed. reason: how it was compared, or the difference that was found.
    """

    step: StepNumber
    sound: bool
    reason: str = ""
    place: str = ""


class CheckpointCopied(Event, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint.copied"):
    """A checkpoint is in a further place as well. origin: where it was fetched from; empty: from the run's
    own directory. reason: why the copy failed; empty if it succeeded. size_bytes, written_bytes: see
    `CheckpointSaved`. copy_ns: how long it took.
    """

    step: StepNumber
    place: str
    origin: str = ""
    reason: str = ""
    size_bytes: Count | None = None
    written_bytes: Count | None = None
    copy_ns: Nanoseconds | None = None


class PhaseEntered(Event, frozen=True, kw_only=True, tag_field="kind", tag="phase.entered"):
    """The run (or, with a subject, one member) is in this phase until the next such event."""

    phase: Phase


class RunEndangered(Event, frozen=True, kw_only=True, tag_field="kind", tag="run.endangered"):
    """Something that protects the run stopped working, or works again (`over`). The run itself goes on.

    what: record (it cannot be written), successor (of the coordinator), connections (to it).
    """

    what: Name
    reason: str = ""
    over: bool = False


class FaultObserved(Event, frozen=True, kw_only=True, tag_field="kind", tag="fault.observed"):
    """Something is wrong with `subject`: fatal, or degraded and still running.

    occurred_ns is when it was noticed; onset_ns when it began, if that is known.
    """

    fault: str
    severity: Severity = "fatal"
    onset_ns: Nanoseconds | None = None
    detail: str = ""


class ActionTaken(Event, frozen=True, kw_only=True, tag_field="kind", tag="action.taken"):
    """A decision was made: restart, replace, migrate, shrink, grow, rebalance, drain, restore, stop, take
    over (by a successor, from a coordinator that was lost) or another action.

    gpus: how many GPUs a drain takes out or a restore gives back.
    """

    action: str
    gpus: GpuCount = 0
    reason: str = ""


class CostRate(Event, frozen=True, kw_only=True, tag_field="kind", tag="cost.rate"):
    """The GPUs and the price that are paid from now on.

    gpus: this many GPUs are held for the run, used or not, until the next rate says otherwise; None changes
    nothing.
    """

    gpus: GpuCount | None = None
    usd_per_gpu_hour: Amount | None = None


class ReferenceDeclared(Event, frozen=True, kw_only=True, tag_field="kind", tag="reference.declared"):
    """A healthy step of this run from now on: its time on `gpus` GPUs, its work. None changes nothing."""

    step_ns: Positive | None = None
    gpus: GpuCount | None = None
    tokens_per_step: Count | None = None
    sequence_tokens: Count | None = None
    batch_sequences: Count | None = None
    model_flops_per_step: Amount | None = None
    hardware_flops_per_step: Amount | None = None
    params: Positive | None = None
    chip: str | None = None
    precision: Precision | None = None
    attention: Attention | None = None


class CollectiveTimed(Event, frozen=True, kw_only=True, tag_field="kind", tag="collective.timed"):
    """A collective of `ranks` ranks took `duration_ns`.

    size_bytes: as nccl-tests counts it, the larger of a rank's two buffers: the output of an all-gather, the
    input of a reduce-scatter, and for the others the buffer itself.
    """

    collective: Collective
    size_bytes: Count
    ranks: Count
    duration_ns: Nanoseconds


class MembersTimed(Event, frozen=True, kw_only=True, tag_field="kind", tag="members.timed"):
    """The mean time of the last `steps` steps, and the time that members needed without waiting for each
    other: the slowest member, and one as quick as the quickest quarter of them. subject: the member that
    takes longest for the same work, which may have fewer lanes for that.

    quick_ns: with its share of the lanes. step_ns: without the time of checkpoints.
    """

    steps: Positive
    step_ns: Nanoseconds
    quick_ns: Nanoseconds
    slowest_ns: Nanoseconds


class DataMoved(Event, frozen=True, kw_only=True, tag_field="kind", tag="data.moved"):
    """Bytes were moved for the run, other than its checkpoints: their own events say how large they are.

    what  dataset: read as training data. cold: the same, from a place that costs extra or makes readers wait,
          such as an archive or another region. egress: taken out of a cloud or region that charges for it.
    usd   the charge for it, if known
    """

    what: DataUse
    size_bytes: Count
    usd: Amount | None = None
    place: str = ""


class IncidentDiagnosed(Event, frozen=True, kw_only=True, tag_field="kind", tag="incident.diagnosed"):
    """A diagnosis found an incident of the run, revised it, or saw that it is over.

    incident   its name, `RUN/sN`: all events of one name are about one incident, and the last one counts
    diagnosis  the whole diagnosis as JSON, as `holdfast diagnose --json` shows it

    It is an opinion about the run, and may be formed long after it: it changes neither the run's accounts nor
    its first and last moment.
    """

    incident: Name
    state: IncidentState
    diagnosis: str


class ControlActed(Event, frozen=True, kw_only=True, tag_field="kind", tag="control.acted"):
    """`holdfast control` decided on an action about `subject`, did it, failed to, or saw its outcome.

    stage     decided comes first; later events of the same decision name that event as their cause
    mode      shadow: the action is only recorded, not done
    rule      the mechanism that it was decided for
    outcome   the machines' answer, a check's result, the effect
    decision  the whole decision as JSON, as `holdfast control --json` shows it; with stage decided

    It is about the cluster, and does not change the accounts of a run.
    """

    action: Name
    stage: ControlStage
    mode: ControlMode
    rule: Name = ""
    outcome: str = ""
    decision: str = ""


class BreakerChanged(Event, frozen=True, kw_only=True, tag_field="kind", tag="breaker.changed"):
    """Too many nodes looked bad at once, so that `holdfast control` stopped acting (`tripped`); or a person
    let it act again.
    """

    tripped: bool
    reason: str = ""


class Correction(Event, frozen=True, kw_only=True, tag_field="kind", tag="correction"):
    """The event `target` was wrong and does not count. The right fact is an event of its own."""

    target: str
    reason: str = ""


class Unknown(Event, frozen=True, kw_only=True, gc=False):
    """An event of a kind or schema newer than this version: its envelope, and every byte of it in `body`."""

    kind: str = ""
    body: bytes = b""


OfRun = RunSubmitted | RunStarted | RunEnded | GenerationOpened | MemberJoined | MemberLost
OfStep = StepBegun | StepCommitted | LaneExamined | StepWitnessed
OfCheckpoint = (
    CheckpointBegun
    | CheckpointSaved
    | CheckpointLoaded
    | CheckpointFailed
    | CheckpointVerified
    | CheckpointCopied
)
OfTrouble = PhaseEntered | RunEndangered | FaultObserved | ActionTaken
OfFigures = CostRate | ReferenceDeclared | CollectiveTimed | MembersTimed | DataMoved
OfControl = ControlActed | BreakerChanged
KnownEvent = (
    OfRun | OfStep | OfCheckpoint | OfTrouble | OfFigures | IncidentDiagnosed | OfControl | Correction
)
AnyEvent = KnownEvent | Unknown

REMARKS: frozenset[type] = frozenset(
    {CostRate, ReferenceDeclared, IncidentDiagnosed, ControlActed, BreakerChanged, Correction}
)
"""Kinds that say something about a run. They are no sign of what it does, as the other kinds are."""


def tag_of(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


KINDS: tuple[str, ...] = tuple(tag_of(kind) for kind in get_args(KnownEvent))
"""Every kind this version knows, in the order in which they are declared."""

_KIND_OF: dict[type, str] = {kind: tag_of(kind) for kind in get_args(KnownEvent)}
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[KnownEvent] = msgspec.json.Decoder(KnownEvent)
_envelope = msgspec.json.Decoder(Unknown)
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class MalformedEvent(ValueError):
    """Bytes that are not an event of any version."""


def kind_of(event: AnyEvent) -> str:
    return event.kind if isinstance(event, Unknown) else _KIND_OF[type(event)]


def is_undated(event: AnyEvent) -> bool:
    """Whether nothing is known of when it happened but the order, or the time since the run's start."""
    return event.source == UNTIMED and event.occurred_ns < UNDATED_NS_MAX


def encode(event: AnyEvent) -> bytes:
    """One line of JSON without its newline. An `Unknown` gives back exactly the bytes it came from."""
    return event.body if isinstance(event, Unknown) else _encoder.encode(event)


def decode(data: bytes) -> AnyEvent:
    """Return the event in these bytes; raise `MalformedEvent` if there is none."""
    try:
        event = _decoder.decode(data)
        if event.schema <= SCHEMA:
            return event
    except _UNDECODABLE as error:
        # A newer kind, a newer schema, or not an event: the envelope decides.
        problem: Exception | None = error
    else:
        problem = None
    try:
        envelope = _envelope.decode(data)
    except _UNDECODABLE as error:
        raise MalformedEvent(str(error)) from None
    if problem is not None and envelope.schema <= SCHEMA and envelope.kind in KINDS:
        raise MalformedEvent(str(problem))  # a kind and schema we know: it is broken, not new
    if not envelope.kind:
        raise MalformedEvent("an event without a kind")
    return msgspec.structs.replace(envelope, body=bytes(data))
