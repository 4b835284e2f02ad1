"""The fold from a run's events to where its GPU-time went. Pure: no clock, no I/O; the same events give
the same sums.

At every moment the GPUs paid for have a shape (see `membership`) and the active ones a state. What lies
between two events is charged when the second is known, because only that tells what it was: time since
the last commit belongs to a step if the step is committed, and is lost if the run turns out to have died.
Events must come in the order of their time; one that does not is taken to happen now, so no stretch of
time is ever negative and the sum is exact for any input whatsoever.
"""

import copy
from collections.abc import Callable
from typing import Any, Self

import msgspec

from holdfast.ledger.accounts import GUESSES, STEPPING, Accounts, Piece, cut
from holdfast.ledger.categories import Category
from holdfast.ledger.membership import Membership
from holdfast.ledger.progress import Progress
from holdfast.ledger.tally import BIN, LAUNCH, Tally, measured_key, work_bin
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    Attention,
    CheckpointBegun,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointVerified,
    Collective,
    CollectiveTimed,
    Correction,
    CostRate,
    FaultObserved,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    Precision,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    RunSubmitted,
    StepBegun,
    StepCommitted,
    Unknown,
)

_PHASES: dict[str, int] = {
    "launch": Category.STARTING,
    "init": Category.STARTING,
    "load": Category.STARTING,
    "step": STEPPING,
    "data": Category.DATA_STALL,
    "eval": Category.CHECKS,
    "check": Category.CHECKS,
    "stop": Category.PLANNED_STOP,
}
_AFTER_END: dict[str, int] = {
    "completed": Category.IDLE,
    "failed": Category.RECOVERING,
    "stopped": Category.PLANNED_STOP,
    "preempted": Category.QUEUED,
}
_USEFUL_STEP = measured_key(Category.USEFUL, Category.SLOWDOWN, 0)
_USEFUL_FROM_DISCARDED = _USEFUL_STEP - measured_key(Category.DISCARDED, Category.SLOWDOWN, 0)

_WORK_FIELDS = (
    "tokens_per_step",
    "model_flops_per_step",
    "hardware_flops_per_step",
    "params",
    "chip",
    "precision",
    "attention",
)


class Counts(msgspec.Struct):
    """What is counted rather than timed.

    Launches with nothing recorded between them are one start, which is how others count; `launches` has
    every one.
    """

    launches: int = 0
    starts: int = 0
    loads: int = 0
    saves: int = 0
    members_lost: int = 0
    unknown_events: int = 0


class Declared(msgspec.Struct):
    """What the run was said to be. The last word counts."""

    name: str = ""
    team: str = ""
    usd_per_gpu_hour: float | None = None
    step_ns: int | None = None
    step_gpus: int | None = None
    tokens_per_step: int | None = None
    model_flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    params: int | None = None
    chip: str | None = None
    precision: Precision = "bf16"
    attention: Attention | None = None


class Traffic(msgspec.Struct):
    """What the collectives of one kind and size of group moved, and how long that took them."""

    size_bytes: int = 0
    duration_ns: int = 0


class Fold(Accounts):
    """One run's accounts up to `now_ns`. `apply` takes the next event, `settled` gives accounts to read."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.declared = Declared()
        self.members = Membership()
        self.progress = Progress()
        self.traffic: dict[tuple[Collective, int], Traffic] = {}
        self.instrumented = False  # whether the run ever told what it does, beyond starting and ending
        self.loaded_step_min: int | None = None
        self.saved_step_max: int | None = None
        self._calm = False  # see `_is_calm`
        self._running = False
        self._launch_is_last = False
        self._elastic = False  # generations are reported, so a late joiner waits for the next one
        self._leader: str | None = None  # whose commits move the run on

    def apply(self, event: AnyEvent) -> None:
        """Take the next event. Any event is taken; one that makes no sense where it stands changes nothing
        but the time.
        """
        if event.occurred_ns > self.now_ns:
            self._advance(event.occurred_ns)
        if type(event) is StepCommitted:
            self._committed(event)
        elif not (type(event) is StepBegun and self._calm and event.step == self.progress.high + 1):
            self._calm = False
            _HANDLERS[type(event)](self, event)

    def settled(self) -> Self:
        """A copy in which everything is charged: the step in flight as unattributed, what is rolled back
        as discarded.
        """
        twin = self.copy()
        twin._waste(Category.UNATTRIBUTED)
        discarded = Tally()
        for lost in twin.progress.lost():
            excess = Category.STARTING if lost.warm else Category.SLOWDOWN
            bin_ = work_bin(lost.entry_gpu_ns // lost.entry_steps)
            discarded.add(measured_key(Category.DISCARDED, excess, bin_), lost.gpu_ns, lost.steps)
        for key, gpu_ns in discarded.gpu_ns.items():
            useful = key + _USEFUL_FROM_DISCARDED
            twin.tally.move(useful, key, gpu_ns, discarded.steps[key])
            twin.timeline.move_latest(useful, key, gpu_ns)
        return twin

    def copy(self) -> Self:
        """A copy to go on from. Of this one and the copy only one may go on, and the copy only after
        `adopt`.
        """
        twin = super().copy()
        twin.counts, twin.declared = copy.copy(self.counts), copy.copy(self.declared)
        twin.members, twin.progress = self.members.copy(), self.progress.copy()
        twin.traffic = {key: copy.copy(traffic) for key, traffic in self.traffic.items()}
        return twin

    def adopt(self) -> None:
        """Take over from the fold this is a copy of."""
        self.progress.adopt()

    # -- the run as a whole ------------------------------------------------------------------------

    def _submitted(self, event: RunSubmitted) -> None:
        self._name(event)
        if not self._running:
            self._enter(Category.QUEUED)

    def _started(self, event: RunStarted) -> None:
        self._name(event)
        if self._running:
            # The attempt before died and nobody wrote it down: its last sign of life is all there is.
            self._settle()
            self._fail(event, "restart", self._pieces[0][0] if self._pieces else None)
            self._abandon(Category.DEAD_UNDETECTED)
        if self._open is not None:
            self.incidents[self._open].restarts += 1
        self.counts.launches += 1
        if not self._launch_is_last:
            self.counts.starts += 1
        self._launch_is_last = True
        self._launch(event.gpus)

    def _ended(self, event: RunEnded) -> None:
        self._launch_is_last = False
        if self._running:
            if event.outcome == "failed":
                self._settle()
                self._fail(event, event.reason or "attempt failed")
                self._abandon(Category.DEAD_UNDETECTED)
            elif event.outcome == "completed":
                self._waste(Category.PLANNED_STOP)
            else:
                self._abandon(Category.UNATTRIBUTED)
        self._enter(_AFTER_END[event.outcome])
        self._running = False
        self._alarm = self._degraded = None
        self.members.start(0)
        self._reshape(self.members.shape())

    def _name(self, event: RunSubmitted | RunStarted) -> None:
        self.declared.name = event.name or self.declared.name
        self.declared.team = event.team or self.declared.team

    def _launch(self, gpus: int) -> None:
        self._enter(LAUNCH)
        self._running = self._warm = True
        self._alarm = self._leader = self._degraded = None
        self.members.start(gpus)
        self._reshape(self.members.shape())

    def _heard(self) -> None:
        """The run itself spoke: it is up, and it tells what it does."""
        self._launch_is_last = False
        self.instrumented = True
        if not self._running and not self.counts.launches:
            self.counts.launches = self.counts.starts = 1
            self._launch(0)

    # -- members -----------------------------------------------------------------------------------

    def _joined(self, event: MemberJoined) -> None:
        if not self._running:
            if self.counts.launches:
                return  # a straggler of an attempt that is over
            self.counts.launches = self.counts.starts = 1
            self._launch(0)
        late = event.role == "active" and self._elastic and self._is_stepping()
        self.members.join(event.subject, event.gpus, "joining" if late else event.role)
        self._reshape(self.members.shape())

    def _lost(self, event: MemberLost) -> None:
        self.counts.members_lost += 1
        if not self._running:
            return
        self._launch_is_last = False
        if self.members.leave(event.subject):
            self._sound_alarm(event.onset_ns)
            self._settle()
            incident = self.incidents[self._fail(event, "member lost", event.onset_ns)]
            incident.members_lost += 1
            if incident.members_lost > 1 and incident.what in GUESSES:
                incident.subject = ""  # where several go, none of their names says what failed
            self._abandon(Category.DEAD_UNDETECTED)
            self._enter(Category.RECOVERING)
        self._reshape(self.members.shape())

    def _generation(self, event: GenerationOpened) -> None:
        self._heard()
        if not self._running:
            return
        self._elastic = True
        self._abandon(Category.UNATTRIBUTED)
        if event.gpus is not None:
            self.members.size_gpus = event.gpus
        self.members.open_generation(event.members)
        self._enter(Category.STARTING if self._open is None else Category.RECOVERING)
        self._reshape(self.members.shape())
        self._warm = True
        self._leader = None
        if event.step is not None:
            self._resume_at(event.step, event)

    # -- steps -------------------------------------------------------------------------------------

    def _begun(self, event: StepBegun) -> None:
        if self._state != STEPPING:
            self._heard()
            if not self._running:
                return
            self._enter(STEPPING)
        position = self.progress.position
        if position is None:
            self.progress.jump(event.step - 1)
        elif event.step <= position and (self._warm or event.subject == self._leader):
            self._resume_at(event.step - 1, event)

    def _committed(self, event: StepCommitted) -> None:
        step, progress = event.step, self.progress
        if self._calm and step == progress.high + 1 and self.now_ns > self._since_ns:
            # What nearly every commit is: the next step, by everyone, with nothing to explain. This is what
            # `_reach` does, without asking.
            from_ns, now_ns, gpus = self._since_ns, self.now_ns, self.shape.active
            work = (now_ns - from_ns) * gpus
            key = _USEFUL_STEP + work_bin(work) * BIN
            self.paid_gpu_ns += work
            self.tally.add(key, work, 1)
            self.timeline.add(key, from_ns, now_ns, gpus)
            progress.entries_gpu_ns.append(work)
            progress.position = progress.high = step
            self._since_ns = now_ns
            self._leader = event.subject
            return
        self._heard()
        position = progress.position
        if position is not None and step <= position:
            if not self._warm and (step == position or event.subject != self._leader):
                return  # another member's word on a commit that is known
            self._resume_at(step - 1, event)
        self._leader = event.subject
        self._reach(step)
        self._calm = self._is_calm()

    def _is_calm(self) -> bool:
        """Whether the next commit, should it be that of the next step, needs no explanation."""
        return (
            self._state == STEPPING
            and not self._pieces
            and not self._warm
            and self.progress.position == self.progress.high
            and self._segment_steps == 1
            and self._open is None
            and self._degraded is None
            and self._alarm is None
            and 0 < self.shape.active == self.shape.paid
        )

    def _reach(self, step: int) -> None:
        """The run has this step now; the uncommitted work was for it."""
        progress = self.progress
        if progress.position is None:
            progress.jump(step - 1)
        assert progress.position is not None
        if step <= progress.position:
            return
        if not self._running:
            progress.jump(step)  # said after the end: progress, and no time to go with it
            return
        self._settle()
        pieces, self._pieces = self._pieces, []
        steps = step - progress.position
        again = max(0, min(step, progress.high) - progress.position)
        if again:
            pieces = self._redo(pieces, again, steps)
        if steps > again:
            excess = Category.STARTING if self._warm else Category.SLOWDOWN
            gpu_ns = self._measure(pieces, steps - again, Category.USEFUL, excess, self._blamed())
            progress.advance(step, gpu_ns, warm=self._warm)
        progress.position = step
        progress.settle()
        self._segment_steps = steps
        self._recover()

    def _redo(self, pieces: list[Piece], again: int, steps: int) -> list[Piece]:
        """Charge the steps that were done before to the incidents that rolled them back; the pieces of the
        rest.
        """
        progress = self.progress
        assert progress.position is not None
        end = progress.position + again
        while progress.position < end:
            upto, incident = progress.debts[-1] if progress.debts else (end, self._open)
            done = min(upto, end) - progress.position
            part, pieces = cut(pieces, done, steps)
            excess = Category.STARTING if self._warm else Category.SLOWDOWN
            self._measure(part, done, Category.RECOMPUTED, excess, incident)
            steps -= done
            progress.position += done
            progress.settle()
        return pieces

    def _resume_at(self, step: int, event: AnyEvent) -> None:
        position = self.progress.position
        if position is None or step > position:
            self.progress.jump(step)
        elif step < position:
            incident = self._open if self._open is not None else self._fail(event, "rollback")
            self.incidents[incident].steps_rolled_back += position - step
            self.progress.roll_back(step, incident)

    # -- checkpoints and phases --------------------------------------------------------------------

    def _checkpoint_begun(self, event: CheckpointBegun) -> None:
        self._heard()
        if event.blocking and self._is_stepping():
            self._enter(Category.CHECKPOINT_STALL)

    def _checkpoint_saved(self, event: CheckpointSaved) -> None:
        self._heard()
        self.counts.saves += 1
        self.saved_step_max = max(event.step, self.saved_step_max or 0)
        if event.stall_ns:
            self._stall(event.stall_ns)
        self._reach(event.step)
        self._unstall()

    def _checkpoint_failed(self, event: CheckpointFailed) -> None:
        self._heard()
        self._unstall()

    def _checkpoint_loaded(self, event: CheckpointLoaded) -> None:
        self._heard()
        self.counts.loads += 1
        self.loaded_step_min = (
            event.step if self.loaded_step_min is None else min(event.step, self.loaded_step_min)
        )
        self._settle()
        self._resume_at(event.step, event)
        if self._running:
            self._abandon(Category.STARTING)
            self._enter(STEPPING)
            self._warm = True

    def _phase(self, event: PhaseEntered) -> None:
        if event.subject not in ("", event.run):
            return  # one member's own; the run's time is the run's to tell
        self._heard()
        if not self._running:
            return
        state = _PHASES[event.phase]
        if state == Category.STARTING and self._is_stepping():
            self._abandon(Category.UNATTRIBUTED)
            self._warm = True
        self._enter(state)

    def _unstall(self) -> None:
        if self._state == Category.CHECKPOINT_STALL:
            self._enter(STEPPING)

    # -- faults and what is done about them --------------------------------------------------------

    def _fault(self, event: FaultObserved) -> None:
        if event.severity == "degraded":
            self._degraded = self._new_incident(event, event.fault, event.onset_ns, "degraded")
            return
        known = self._open is not None
        incident = self.incidents[self._fail(event, event.fault, event.onset_ns)]
        if known and incident.what in GUESSES:
            incident.what, incident.subject = event.fault, event.subject or incident.subject
        if self._is_stepping():
            # The run may survive it, so nothing is lost yet: the next event tells (see `_abandon`).
            self._sound_alarm(event.onset_ns)

    def _action(self, event: ActionTaken) -> None:
        if event.action == "drain":
            self._drain(event.gpus)
        elif event.action == "restore":
            self._drain(-event.gpus)
        if self._degraded is not None:
            self.incidents[self._degraded].recovered_ns = self.now_ns
            self.incidents[self._degraded].add_evidence(event)
            self._degraded = None
        if self._open is not None:
            self.incidents[self._open].add_evidence(event)
            if self._alarm is not None and self._running:
                self._abandon(Category.DEAD_UNDETECTED)
                self._enter(Category.RECOVERING)

    def _drain(self, gpus: int) -> None:
        self.members.drained_gpus = max(0, self.members.drained_gpus + gpus)
        self._reshape(self.members.shape())

    # -- what is declared, and what says nothing about time ----------------------------------------

    def _cost(self, event: CostRate) -> None:
        if event.usd_per_gpu_hour is not None:
            self.declared.usd_per_gpu_hour = event.usd_per_gpu_hour
        if event.gpus is not None:
            self.members.held_gpus = event.gpus
            self._reshape(self.members.shape())

    def _reference(self, event: ReferenceDeclared) -> None:
        declared = self.declared
        if event.step_ns is not None:
            declared.step_ns, declared.step_gpus = event.step_ns, event.gpus or declared.step_gpus
        for name in _WORK_FIELDS:
            value = getattr(event, name)
            if value is not None:
                setattr(declared, name, value)

    def _collective(self, event: CollectiveTimed) -> None:
        traffic = self.traffic.setdefault((event.collective, event.ranks), Traffic())
        traffic.size_bytes += event.size_bytes
        traffic.duration_ns += event.duration_ns

    def _unknown(self, event: Unknown) -> None:
        self.counts.unknown_events += 1

    def _nothing(self, event: AnyEvent) -> None:
        """Kept in the record, and no matter of time: a check of a checkpoint; a correction, which the
        ledger applies.
        """


_HANDLERS: dict[type, Callable[[Fold, Any], None]] = {
    RunSubmitted: Fold._submitted,
    RunStarted: Fold._started,
    RunEnded: Fold._ended,
    GenerationOpened: Fold._generation,
    MemberJoined: Fold._joined,
    MemberLost: Fold._lost,
    StepBegun: Fold._begun,
    StepCommitted: Fold._committed,
    CheckpointBegun: Fold._checkpoint_begun,
    CheckpointSaved: Fold._checkpoint_saved,
    CheckpointLoaded: Fold._checkpoint_loaded,
    CheckpointFailed: Fold._checkpoint_failed,
    CheckpointVerified: Fold._nothing,
    PhaseEntered: Fold._phase,
    FaultObserved: Fold._fault,
    ActionTaken: Fold._action,
    CostRate: Fold._cost,
    ReferenceDeclared: Fold._reference,
    CollectiveTimed: Fold._collective,
    Correction: Fold._nothing,
    Unknown: Fold._unknown,
}
