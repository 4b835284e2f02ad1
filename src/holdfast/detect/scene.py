"""What detectors need from the record: the run's members, planned work, decisions."""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.record import events as ev
from holdfast.record.sizes import gpus_of, is_on_cpu

SETTLE_NS = 300 * 10**9
"""For this long after planned work a machine's readings prove nothing."""

NEWLY_NS = 900 * 10**9
STEPS = (ev.StepBegun, ev.StepCommitted)


class PlannedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Announced work: the subject out of use, from when to when (None: still), and the reason."""

    subject: str
    from_ns: int
    to_ns: int | None
    reason: str

    def covers(self, at_ns: int) -> bool:
        """Whether a problem that begins at this time may come from the work."""
        return self.from_ns <= at_ns and (self.to_ns is None or at_ns <= self.to_ns + SETTLE_NS)


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint: when it began, how long it held up training (None: it still does), and its size."""

    from_ns: int
    stall_s: float | None
    size_bytes: int | None


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    at_ns: int
    action: str
    subject: str
    reason: str


class Healthy(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a healthy step: declared, or else the ledger's estimate.

    since_ns: when it was declared. Earlier steps are not comparable: an operator who makes sequences longer
    declares a longer step.
    """

    step_s: float
    is_declared: bool
    since_ns: int = 0


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One run up to now, according to its record.

    members  all members so far, with their nodes; gone: when they were lost
    began_ns  when it began, or its first known event; stepping_ns: when it began to make steps, if recorded
    gpus     how many it has; 0 if nothing tells. on_cpu: they are members without a GPU
    healthy  the time of a healthy step, if known
    out      subjects taken out of use, planned or not; their problems are not reported
    phase    what it does now, if recorded
    ended    the end of its last attempt, if it has ended
    """

    run: str
    began_ns: int
    gpus: int
    healthy: Healthy | None
    members: dict[str, str]
    gone: dict[str, int]
    checkpoints: tuple[SavedCheckpoint, ...]
    decisions: tuple[Decided, ...]
    faults: tuple[ev.FaultObserved, ...]
    out: tuple[PlannedWork, ...]
    phase: str = ""
    stepping_ns: int = 0
    ended: ev.RunEnded | None = None
    on_cpu: bool = False


def scene(
    run: str,
    events: Iterable[ev.KnownEvent],
    planned: Sequence[PlannedWork] = (),
    *,
    now_ns: int,
    healthy: Healthy | None = None,
) -> Scene:
    """The scene from the events of this run and of the whole cluster, up to now.

    healthy: the ledger's figure for its steps; without it, the declared one.
    """
    known = sorted(
        (event for event in events if event.run in (run, "") and event.occurred_ns <= now_ns),
        key=lambda event: event.occurred_ns,
    )
    members: dict[str, str] = {}
    gone: dict[str, int] = {}
    declared, phase = None, ""
    ended: ev.RunEnded | None = None
    for event in known:
        match event:
            case ev.RunStarted():
                ended = None
            case ev.RunEnded():
                ended = event
            case ev.ReferenceDeclared() if event.step_ns is not None:
                declared = Healthy(step_s=event.step_ns / 1e9, is_declared=True, since_ns=event.occurred_ns)
            case ev.PhaseEntered() if event.subject in ("", run):
                phase = event.phase
            case ev.MemberJoined():
                members[event.subject] = event.node
                gone.pop(event.subject, None)
            case ev.MemberLost():
                gone[event.subject] = event.occurred_ns
            case _:
                pass
    actions = [event for event in known if isinstance(event, ev.ActionTaken)]
    return Scene(
        run=run,
        began_ns=next((event.occurred_ns for event in known if event.run == run), now_ns),
        gpus=gpus_of(event for event in known if event.run == run),
        healthy=_healthy(healthy, declared, now_ns),
        members=members,
        gone=gone,
        checkpoints=_checkpoints(known),
        decisions=tuple(
            Decided(at_ns=event.occurred_ns, action=event.action, subject=event.subject, reason=event.reason)
            for event in actions
        ),
        faults=tuple(event for event in known if isinstance(event, ev.FaultObserved)),
        out=(*planned, *_out(known)),
        phase=phase,
        stepping_ns=next((event.occurred_ns for event in known if isinstance(event, STEPS)), 0),
        ended=ended,
        on_cpu=is_on_cpu(event for event in known if event.run == run),
    )


def _healthy(known: Healthy | None, declared: Healthy | None, now_ns: int) -> Healthy | None:
    """known: the ledger's figure, which accounts for the number of GPUs but is not always fresh."""
    if declared is None or known is None:
        return known or declared
    if not known.is_declared or now_ns - declared.since_ns < NEWLY_NS:
        return declared
    return msgspec.structs.replace(known, since_ns=declared.since_ns)


def _checkpoints(events: Iterable[ev.KnownEvent]) -> tuple[SavedCheckpoint, ...]:
    found: list[SavedCheckpoint] = []
    begun_ns: int | None = None
    for event in events:
        if isinstance(event, ev.CheckpointBegun) and event.blocking:
            begun_ns = event.occurred_ns
        elif isinstance(event, ev.RunStarted) or (
            isinstance(event, ev.CheckpointFailed) and not event.is_snapshot
        ):
            begun_ns = None
        elif isinstance(event, ev.CheckpointSaved):
            from_ns = event.occurred_ns if begun_ns is None else begun_ns
            stall_ns = event.occurred_ns - from_ns if event.stall_ns is None else event.stall_ns
            found.append(
                SavedCheckpoint(
                    from_ns=from_ns,
                    stall_s=stall_ns / 1e9,
                    size_bytes=event.size_bytes,
                )
            )
            begun_ns = None
    if begun_ns is not None:
        found.append(SavedCheckpoint(from_ns=begun_ns, stall_s=None, size_bytes=None))
    return tuple(found)


def _out(events: Iterable[ev.KnownEvent]) -> tuple[PlannedWork, ...]:
    """Drained subjects, until they were restored or a member joined on them again."""
    found: list[PlannedWork] = []
    for event in events:
        match event:
            case ev.ActionTaken(action="drain"):
                found.append(
                    PlannedWork(
                        subject=event.subject, from_ns=event.occurred_ns, to_ns=None, reason=event.reason
                    )
                )
            case ev.ActionTaken(action="restore"):
                found = [_back(one, event.subject, event.occurred_ns) for one in found]
            case ev.MemberJoined() if event.node:
                found = [_back(one, event.node, event.occurred_ns) for one in found]
            case _:
                pass
    return tuple(found)


def _back(one: PlannedWork, subject: str, at_ns: int) -> PlannedWork:
    if one.subject != subject or one.to_ns is not None:
        return one
    return msgspec.structs.replace(one, to_ns=at_ns)
