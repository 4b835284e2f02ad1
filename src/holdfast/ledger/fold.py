"""The fold from a run's events to where its GPU-time went. Pure: the same events give the same sums.

`Fold` says what each event means for the run: whether an attempt is there, what it does, how far it has come,
what went wrong. `Accounts` keeps the sums. Events must come in the order of their time; one that does not is
taken to happen now, so no stretch of time is ever negative and the sum is exact for any input whatsoever.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.ledger.accounts import STEPPING, Accounts, Piece, cut
from holdfast.ledger.categories import Category
from holdfast.ledger.counts import Counts, Declared, HeldUp, LaunchAttempt, Moved, MovedFor, Saves, Traffic
from holdfast.ledger.disorder import Disorder
from holdfast.ledger.gaps import SCHEDULERS, Gap, Gaps
from holdfast.ledger.membership import Membership
from holdfast.ledger.progress import StepProgress
from holdfast.ledger.stages import Stages
from holdfast.ledger.tally import BIN, LAUNCH, STAGE, Tally, measured_key, work_bin
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointBegun,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointVerified,
    Collective,
    CollectiveTimed,
    Correction,
    CostRate,
    DataMoved,
    FaultObserved,
    GenerationOpened,
    IncidentDiagnosed,
    MemberJoined,
    MemberLost,
    MembersTimed,
    PhaseEntered,
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
LATE_SHARE_MIN = 0.05
"""Of a step: whoever needs less than this longer than others does not make the run slow."""
_USEFUL_STEP = measured_key(Category.USEFUL, Category.SLOWDOWN, 0)

_NAMES = ("name", "team", "project", "cluster")
_WORK_FIELDS = (
    "tokens_per_step",
    "model_flops_per_step",
    "hardware_flops_per_step",
    "params",
    "chip",
    "precision",
    "attention",
)


class Fold:
    """One run up to the last event. `apply` takes the next one, `settled` gives accounts to read."""

    def __init__(self, cuts_ns: Iterable[int] = ()) -> None:
        self.accounts = Accounts(cuts_ns)
        self.counts = Counts()
        self.declared = Declared()
        self.members = Membership()
        self.progress = StepProgress()
        self.stages = Stages()
        self.gaps = Gaps()
        self.disorder = Disorder()
        self.traffic: dict[tuple[Collective, int], Traffic] = {}
        self.moved: dict[MovedFor, Moved] = {}
        self.unhindered = Tally()  # steps as they would have been, where one member held up the others
        self.held_up: list[HeldUp] = []
        self.instrumented = False  # whether the run ever told what it does, beyond starting and ending
        self.ended = False
        self.ending: RunEnded | None = None  # the last one, unless the run went on after it
        self.loaded_step_min: int | None = None
        self.saves = Saves()
        self._calm = False  # see `_is_calm`
        self._useful_step = _USEFUL_STEP  # the key of a step that is nothing but useful, less its bin
        self._launch = LaunchAttempt()
        self._is_complete = False  # an attempt was, and no step was done since
        self._is_bare = True  # nothing but commits, starts and ends is told
        self._reports_steps = False  # so that a checkpoint says nothing new about progress
        self._stall_step = 0  # whose checkpoint training stood still for last
        self._writing = (-1, 0)  # the last checkpoint begun in the background: its step, and when
        self._written_ns = (0, 0)  # from when to when the last such was written
        self._segment_steps = 1  # how many steps the last commit brought: 1, or a checkpoint's interval

    def apply(self, event: AnyEvent) -> None:
        """Take the next event, whatever it is; one that makes no sense here changes nothing but the time."""
        if event.occurred_ns > self.accounts.now_ns:
            self.accounts.advance(event.occurred_ns)
        if type(event) is StepCommitted:
            self._committed(event)
        elif type(event) is StepBegun and self._calm and event.step == self.progress.high + 1:
            self._launch.begun_step = event.step
        else:
            self._calm = False
            _HANDLERS[type(event)](self, event)

    def settled(self) -> "Fold":
        """A copy in which all is charged: work in flight as unattributed, rolled back as discarded."""
        twin = self.copy()
        accounts, debts = twin.accounts, twin.progress.debts
        accounts.dismiss(Category.UNATTRIBUTED)
        for lost in twin.progress.lost():
            bin_ = work_bin(lost.entry_gpu_ns // lost.entry_steps)
            stage_key = twin.stages.number_at(lost.entry) * STAGE
            useful = stage_key + measured_key(Category.USEFUL, lost.excess, bin_)
            discarded = stage_key + measured_key(Category.DISCARDED, lost.excess, bin_)
            accounts.tally.move(useful, discarded, lost.gpu_ns, lost.steps)
            accounts.timeline.move_latest(useful, discarded, lost.gpu_ns)
            if lost.incident is not None:
                accounts.own(lost.incident).tally.add(useful, -lost.gpu_ns, -lost.steps)
            owed = next((incident for upto, incident in reversed(debts) if lost.last_step <= upto), None)
            if accounts.timeline.cuts is not None:
                accounts.timeline.cuts.discard(useful, discarded, lost.gpu_ns, lost.incident, owed)
            if owed is not None:
                accounts.own(owed).tally.add(discarded, lost.gpu_ns, lost.steps)
        return twin

    def copy(self) -> "Fold":
        """A copy to go on from. Of this one and the copy only one may, and the copy only after `adopt`."""
        twin = copy.copy(self)
        twin.accounts, twin.members, twin.progress = (
            self.accounts.copy(),
            self.members.copy(),
            self.progress.copy(),
        )
        twin.counts, twin.declared = copy.copy(self.counts), copy.copy(self.declared)
        twin.saves, twin._launch = copy.copy(self.saves), copy.copy(self._launch)
        twin.traffic = {key: copy.copy(traffic) for key, traffic in self.traffic.items()}
        twin.moved = {use: copy.copy(moved) for use, moved in self.moved.items()}
        twin.unhindered, twin.held_up = self.unhindered.copy(), self.held_up.copy()
        twin.stages, twin.gaps, twin.disorder = self.stages.copy(), self.gaps.copy(), self.disorder.copy()
        return twin

    def adopt(self) -> None:
        """Take over from the fold this is a copy of."""
        self.progress.adopt()

    # -- attempts ------------------------------------------------------------------------------------

    def _submitted(self, event: RunSubmitted) -> None:
        self._name(event)
        if not self.accounts.is_up:
            self.accounts.enter(Category.QUEUED)

    def _started(self, event: RunStarted) -> None:
        self._name(event)
        accounts = self.accounts
        if self._is_known_launch(event):
            self._launch.is_implied = self._launch.is_scheduled = False
            self.members.size_gpus = event.gpus or self.members.size_gpus
            self._reshape()
            return
        if accounts.is_up and accounts.nature == Category.PLANNED_STOP:
            accounts.dismiss(Category.UNATTRIBUTED)  # it stopped on purpose, and starts again
        elif accounts.is_up:
            # The attempt before died and nobody wrote it down: its last sign of life is all there is.
            accounts.settle()
            last_sign_ns = accounts.pieces[0].from_ns if accounts.pieces else None
            accounts.fail(event, "unexplained restart", last_sign_ns)
            self._abandon(Category.DEAD_UNDETECTED)
        if accounts.open is not None:
            incident = accounts.own(accounts.open)
            incident.restarts += 1
            incident.restarted_ns = accounts.now_ns
        self._begin_attempt(event.gpus)
        self.counts.starts += not self._launch.is_last
        self._launch.is_last = True
        self._launch.is_scheduled = event.source in SCHEDULERS

    def _is_known_launch(self, event: RunStarted) -> bool:
        """Whether the attempt that is up is this one: a scheduler and the run itself both tell of it, or
        somebody spoke up a moment before the launch was recorded.
        """
        launch, members = self._launch, self.members
        by_scheduler, allocated_gpus = event.source in SCHEDULERS, members.allocated_gpus
        if by_scheduler:
            members.allocated_gpus = event.gpus
        if not self.accounts.is_up:
            return False
        if by_scheduler and not allocated_gpus and not launch.is_scheduled and not launch.stepped:
            return self.counts.launches == 1
        return (launch.is_implied and not launch.stepped) or (launch.is_scheduled and not by_scheduler)

    def _ended(self, event: RunEnded) -> None:
        accounts = self.accounts
        self.ending = self.ending or event
        by_scheduler = event.source in SCHEDULERS
        if by_scheduler:
            self.members.allocated_gpus = 0
            self.gaps.give_back(accounts.now_ns)
        if not accounts.is_up:
            self._reshape()
            return
        self.gaps.down = Gap(
            from_ns=accounts.now_ns,
            to_ns=accounts.now_ns,
            gpus=accounts.shape.paid,
            outcome=event.outcome,
            given_back=by_scheduler,
        )
        self._is_complete = event.outcome == "completed"
        if event.outcome == "failed":
            accounts.fail(event, event.reason or "attempt failed")
            self._abandon(Category.DEAD_UNDETECTED)
        elif event.outcome == "completed":
            # The last checkpoint is waited for; the rest is what it takes to get out of a run again.
            accounts.stall(*self._written_ns)
            accounts.dismiss(Category.UNATTRIBUTED if self._is_bare else Category.STARTING)
            if accounts.open is not None:
                restarted_ns = accounts.incidents[accounts.open].restarted_ns
                open_incident = accounts.own(accounts.open)
                accounts.recover()
                open_incident.recovered_ns = restarted_ns or open_incident.recovered_ns
        else:
            self._abandon(Category.UNATTRIBUTED)
        accounts.enter(_AFTER_END[event.outcome])
        accounts.end_degradation(accounts.degraded)
        accounts.is_up = False
        accounts.alarm = None
        self.ended = True
        self._launch = LaunchAttempt(size_gpus=self.members.size_gpus)
        self.members.start(0)
        self._reshape()

    def _name(self, event: RunSubmitted | RunStarted) -> None:
        for field in _NAMES:
            setattr(self.declared, field, getattr(event, field) or getattr(self.declared, field))

    def _begin_attempt(self, gpus: int) -> None:
        accounts = self.accounts
        accounts.settle()
        self.gaps.close(accounts.now_ns, accounts.shape.paid)
        self.disorder.forget()
        accounts.enter(LAUNCH)
        accounts.end_degradation(accounts.degraded)
        accounts.is_up = True
        accounts.alarm = None
        self.counts.launches += 1
        self.ended = False
        self.ending = None
        self._launch = LaunchAttempt(size_gpus=gpus, is_last=self._launch.is_last)
        self.members.start(gpus)
        self._reshape()

    def _hear(self) -> None:
        """The run itself told what it does."""
        self.instrumented = True
        self._launch.is_scheduled = False
        self._be_up()

    def _be_up(self) -> None:
        """The run is up, whether or not anybody wrote down that it was started."""
        if not self.accounts.is_up:
            size_gpus, was_ended = self._launch.size_gpus, self.ended
            self._begin_attempt(size_gpus)
            self._launch.is_implied = True
            if was_ended:
                self.counts.launches -= 1  # the end was another attempt's, or came too early
            else:
                self.counts.starts += 1
        self._launch.is_last = False

    def _abandon(self, beyond: Category) -> None:
        work = Category.STARTING if self._launch.is_warm else Category.DISCARDED
        position, begun_step = self.progress.position, self._launch.begun_step
        # Where the run tells when a step begins, and none had, no work was lost.
        in_flight = position is None or not 0 <= begun_step <= position
        self.accounts.abandon(
            steps=self._segment_steps,
            work=work if in_flight else beyond,
            beyond=beyond,
            in_flight=in_flight,
        )

    def _reshape(self) -> None:
        self.accounts.reshape(self.members.shape())

    # -- members -------------------------------------------------------------------------------------

    def _joined(self, event: MemberJoined) -> None:
        accounts = self.accounts
        self._is_bare = False
        if not accounts.is_up:
            # The launch itself is recorded a moment later, by somebody else's clock.
            self._begin_attempt(0)
            self._launch.is_implied = True
            self.counts.starts += not self._launch.is_last
            self._launch.is_last = True
        if accounts.open is not None and not self.instrumented:
            accounts.own(accounts.open).restarted_ns = accounts.now_ns  # all that such a run tells of it
        stepping = accounts.is_stepping or self._launch.grouped
        self.members.join(event.subject, event.gpus, event.role, stepping=stepping)
        self._reshape()

    def _lost(self, event: MemberLost) -> None:
        self.counts.members_lost += 1
        if not self.accounts.is_up:
            return
        self._launch.is_last = False
        if self.members.leave(event.subject):
            self._launch.grouped = False
            self.accounts.sound_alarm(event.onset_ns)
            incident = self.accounts.fail(event, "member lost", event.onset_ns)
            incident.members_lost += 1
            if incident.members_lost > 1 and incident.what == "member lost":
                incident.subject = ""  # where several go, none of their names says what failed
            self._abandon(Category.DEAD_UNDETECTED)
            self.accounts.enter(Category.RECOVERING)
        self._reshape()

    def _generation(self, event: GenerationOpened) -> None:
        self._be_up()
        self._is_bare = False
        accounts = self.accounts
        beyond = Category.UNATTRIBUTED
        if accounts.open is None and accounts.is_stepping and self.members.are(event.members):
            # Nobody was lost and nobody came: they could not go on, and all of them try again.
            accounts.fail(event, "generation broke")
            beyond = Category.DEAD_UNDETECTED
        self._abandon(beyond)
        self.disorder.forget()
        self._launch.begun_step = -1
        if event.gpus is not None:
            self.members.size_gpus = event.gpus
            if event.source in SCHEDULERS:
                self.members.allocated_gpus = event.gpus
        self.members.open_generation(event.members)
        # A scheduler may resize a run that itself tells nothing: then it is not known to be starting. Nor is
        # one to be recovering that was launched again and will never say that it works.
        is_launched = accounts.nature == LAUNCH and event.step is None
        accounts.enter(LAUNCH if accounts.open is None or is_launched else Category.RECOVERING)
        self._reshape()
        launch = self._launch
        launch.is_warm, launch.leader, launch.loaded, launch.grouped = True, None, None, True
        launch.knows_position = event.step is not None
        if event.step is not None:
            self._resume_after(event.step, event)

    # -- steps ---------------------------------------------------------------------------------------

    def _begun(self, event: StepBegun) -> None:
        self._hear()
        if self.accounts.nature != STEPPING:
            self.accounts.enter(STEPPING)
        launch, position = self._launch, self.progress.position
        launch.stepped = self._reports_steps = True
        self._is_bare = False
        if position is None:
            self.progress.jump(event.step - 1)
        elif event.step <= position:
            if self.disorder.is_late(event.step, position, self.accounts.now_ns):
                return
            if self._may_go_back(event):
                self._resume_after(event.step - 1, event)
        launch.knows_position = True
        launch.begun_step = event.step

    def _committed(self, event: StepCommitted) -> None:
        step, progress, accounts = event.step, self.progress, self.accounts
        if self._calm and step == progress.high + 1 and accounts.now_ns > accounts.since_ns:
            # What nearly every commit is: the next step, by everyone, with nothing to explain. This is what
            # `_reach` does, without asking.
            from_ns, now_ns, gpus = accounts.since_ns, accounts.now_ns, accounts.shape.active
            work = (now_ns - from_ns) * gpus
            key = self._useful_step + work_bin(work) * BIN
            accounts.paid_gpu_ns += work
            accounts.tally.add(key, work, 1)
            accounts.timeline.add(key, from_ns, now_ns, gpus)
            accounts.timeline.timed[-1] += 1
            accounts.since_ns = now_ns
            progress.entries_gpu_ns.append(work)
            progress.position = progress.high = step
            self._launch.leader = event.subject
            return
        self._calm = False
        if not accounts.is_up and self.ended and not self._launch.spoke_after_end:
            # A straggler's last word after the end: progress, and no time to go with it.
            self._launch.spoke_after_end = True
            if progress.position is not None and step > progress.position:
                progress.jump(step)
            return
        self._hear()
        self._reports_steps = True
        excess: Category | None = None
        if progress.position is not None and step <= progress.position:
            if self.disorder.was_late(step) or self.disorder.is_late(
                step, progress.position, accounts.now_ns
            ):
                return  # its clock was set back meanwhile: the run has gone on
            if not self._may_go_back(event):
                return  # another member's word on a commit that is known
            if not self._launch.is_warm:
                excess = Category.DEAD_UNDETECTED  # nobody said so, but it went away and came back
            self._resume_after(step - 1, event)
        self._launch.leader, self._launch.stepped = event.subject, True
        position = progress.position
        if position is not None and step - position > self._segment_steps and not self._launch.is_warm:
            self.disorder.skip(position, step, accounts.now_ns)
        self._reach(step, excess)
        self._calm = self._is_calm()

    def _may_go_back(self, event: StepBegun | StepCommitted) -> bool:
        """Whether a step that the run has already is done again, rather than told by somebody who lags."""
        launch, position = self._launch, self.progress.position
        if launch.is_warm and not launch.knows_position:
            return True
        is_before = event.step < (position or 0) or isinstance(event, StepBegun)
        return is_before and event.subject == launch.leader

    def _is_calm(self) -> bool:
        """Whether the next commit, should it be that of the next step, needs no explanation."""
        accounts = self.accounts
        return (
            accounts.nature == STEPPING
            and not accounts.pieces
            and not accounts.degraded
            and accounts.open is None
            and accounts.alarm is None
            and not self._launch.is_warm
            and self.progress.position == self.progress.high
            and self._segment_steps == 1
            and 0 < accounts.shape.active == accounts.shape.paid
        )

    def _reach(self, step: int, excess: Category | None = None) -> None:
        """The run has this step now; the uncommitted work was for it, and `excess` what it took too much."""
        progress, accounts, launch = self.progress, self.accounts, self._launch
        if progress.position is None:
            progress.jump(step - 1)
        assert progress.position is not None
        if step <= progress.position:
            return
        pieces, before = accounts.take_work()
        excess = excess or before or (Category.STARTING if launch.is_warm else Category.SLOWDOWN)
        steps = step - progress.position
        again = max(0, min(step, progress.high) - progress.position)
        if again:
            pieces = self._redo(pieces, again, steps, excess)
        if steps > again:
            blamed = accounts.blamed()
            gpu_ns = accounts.measure(pieces, steps - again, Category.USEFUL, excess, blamed)
            progress.advance(step, gpu_ns, excess, blamed)
        progress.position = step
        progress.settle()
        stage = self.stages.current
        if stage.step_ns is not None and stage.step_gpus is None:
            stage.step_gpus = accounts.shape.active or None
        self._segment_steps = steps
        self._is_complete = False
        launch.is_warm = False
        accounts.recover()
        if accounts.nature != STEPPING:
            accounts.enter(STEPPING)

    def _redo(self, pieces: list[Piece], again: int, steps: int, excess: Category) -> list[Piece]:
        """Charge steps that were done before to those who rolled them back; what is left of the work."""
        progress, accounts = self.progress, self.accounts
        assert progress.position is not None
        end = progress.position + again
        while progress.position < end:
            upto, incident = progress.debts[-1] if progress.debts else (end, accounts.open)
            done = min(upto, end) - progress.position
            part, pieces = cut(pieces, done, steps)
            accounts.measure(part, done, Category.RECOMPUTED, excess, incident)
            steps -= done
            progress.position += done
            progress.settle()
        return pieces

    def _resume_after(self, step: int, event: AnyEvent) -> None:
        """The run goes on from the step after this one."""
        position, accounts = self.progress.position, self.accounts
        self._launch.begun_step = -1
        if position is None or step > position:
            self.progress.jump(step)
        elif step < position and self._is_complete:
            # What was complete is not done again because it was lost: this is another run of that name.
            self.counts.begun_again += 1
            self.progress.begin_again(step)
        elif step < position:
            self.counts.from_scratch += step < self.progress.first_step
            if accounts.open is None:
                accounts.settle()
                accounts.fail(event, "rollback", accounts.pieces[0].from_ns if accounts.pieces else None)
            assert accounts.open is not None
            accounts.own(accounts.open).steps_rolled_back += position - step
            self.progress.roll_back(step, accounts.open)

    # -- checkpoints and phases ----------------------------------------------------------------------

    def _checkpoint_begun(self, event: CheckpointBegun) -> None:
        self._hear()
        self._is_bare = False
        if event.blocking and self.accounts.is_stepping and event.step > (self.saves.last_step or -1):
            self._stall_step = event.step
            self.accounts.enter(Category.CHECKPOINT_STALL)
        elif not event.blocking:
            self._writing = event.step, self.accounts.now_ns

    def _checkpoint_saved(self, event: CheckpointSaved) -> None:
        self._hear()
        self._is_bare = False
        self.counts.saves += 1
        self._count_bytes("checkpoints_saved", event.size_bytes)
        self.saves.add(event.step)
        now_ns = self.accounts.now_ns
        if event.stall_ns:
            self.accounts.stall(now_ns - event.stall_ns, now_ns)
        begun_step, begun_ns = self._writing
        if event.step == begun_step:
            self._written_ns = begun_ns, now_ns
        if not self._reports_steps:
            self._reach(event.step)
        self._end_stall(event.step)

    def _checkpoint_failed(self, event: CheckpointFailed) -> None:
        self._hear()
        self._end_stall(event.step)

    def _end_stall(self, step: int) -> None:
        """An earlier checkpoint, written in the background, may be done while the next is waited for."""
        if self.accounts.nature == Category.CHECKPOINT_STALL and step >= self._stall_step:
            self.accounts.enter(STEPPING)

    def _checkpoint_loaded(self, event: CheckpointLoaded) -> None:
        self._hear()
        launch = self._launch
        loaded = (event.step, event.subject)
        if launch.loaded is not None and launch.loaded[0] == event.step and launch.loaded != loaded:
            return  # another member's word on the same load
        launch.loaded = loaded
        self._is_bare = False
        self.disorder.forget()
        self.counts.loads += 1
        self._count_bytes("checkpoints_loaded", event.size_bytes)
        known = self.loaded_step_min
        self.loaded_step_min = event.step if known is None else min(event.step, known)
        self._resume_after(event.step, event)
        self._abandon(Category.STARTING)
        self.accounts.enter(Category.STARTING if self._reports_steps else STEPPING)
        launch.is_warm = launch.knows_position = True

    def _phase(self, event: PhaseEntered) -> None:
        if event.subject not in ("", event.run):
            return  # one member's own; the run's time is the run's to tell
        self._hear()
        self._is_bare = False
        nature = _PHASES[event.phase]
        if nature == Category.STARTING and self.accounts.is_stepping:
            self._abandon(Category.UNATTRIBUTED)
            self._launch.is_warm = True
        if nature == STEPPING and self.accounts.nature == Category.PLANNED_STOP:
            self.accounts.alarm = None  # what was noticed meanwhile does not keep the run from going on
        self.accounts.enter(nature)

    # -- faults and what is done about them ----------------------------------------------------------

    def _fault(self, event: FaultObserved) -> None:
        accounts = self.accounts
        if event.severity == "degraded":
            accounts.end_degradation({event.subject} & accounts.degraded.keys())
            incident = accounts.begin_incident(event, event.fault, event.onset_ns, "degraded")
            accounts.degraded[event.subject] = incident
            return
        accounts.fail(event, event.fault, event.onset_ns)
        if accounts.nature != Category.RECOVERING:
            # The run may survive it, so nothing is lost yet: what follows tells.
            accounts.sound_alarm(event.onset_ns)

    def _action(self, event: ActionTaken) -> None:
        accounts = self.accounts
        if event.action == "drain":
            self.members.drain(event.subject, event.gpus)
        elif event.action == "restore":
            self.members.restore(event.subject)
        self._reshape()
        meant = [
            subject
            for subject, number in accounts.degraded.items()
            if event.subject in ("", subject) or set(event.causes) & set(accounts.incidents[number].evidence)
        ]
        for subject in meant:
            accounts.own(accounts.degraded[subject]).add_evidence(event)
        accounts.end_degradation(meant)
        if accounts.open is not None:
            accounts.own(accounts.open).add_evidence(event)
        # To give a node back is no answer to what fails now.
        if accounts.alarm is not None and accounts.alarm.acted_ns is None and event.action != "restore":
            accounts.settle()
            accounts.alarm = accounts.alarm._replace(acted_ns=accounts.now_ns)

    # -- what is declared, and what says nothing about time ------------------------------------------

    def _cost(self, event: CostRate) -> None:
        if event.usd_per_gpu_hour is not None:
            self.accounts.charge_price(event.usd_per_gpu_hour)
        if event.gpus is not None:
            self.members.held_gpus = event.gpus
            self._reshape()

    def _reference(self, event: ReferenceDeclared) -> None:
        declared = self.declared
        self.stages.declare(event, self.accounts.now_ns, self.progress.entry)
        self.accounts.stage_key = (len(self.stages) - 1) * STAGE
        self._useful_step = _USEFUL_STEP + self.accounts.stage_key
        for name in _WORK_FIELDS:
            value = getattr(event, name)
            if value is not None:
                setattr(declared, name, value)

    def _collective(self, event: CollectiveTimed) -> None:
        traffic = self.traffic.setdefault((event.collective, event.ranks), Traffic())
        traffic.size_bytes += event.size_bytes
        traffic.duration_ns += event.duration_ns

    def _timed(self, event: MembersTimed) -> None:
        """What steps would have taken had the slowest member been as quick as others were, where it holds
        them up.
        """
        late_ns = event.slowest_ns - event.quick_ns
        if late_ns > LATE_SHARE_MIN * event.step_ns and self.accounts.is_up:
            work = max(0, event.step_ns - late_ns) * self.accounts.shape.active
            self.unhindered.add(self._useful_step + work_bin(work) * BIN, work * event.steps, event.steps)
            lasted_ns = event.steps * event.step_ns
            self.held_up.append(HeldUp(event.occurred_ns - lasted_ns, event.occurred_ns, event.subject))

    def _data(self, event: DataMoved) -> None:
        self._count_bytes(event.what, event.size_bytes, event.usd)

    def _count_bytes(self, use: MovedFor, size_bytes: int | None, usd: float | None = None) -> None:
        self.moved.setdefault(use, Moved()).add(size_bytes, usd)

    def _unknown(self, event: Unknown) -> None:
        self.counts.unknown_events += 1

    def _nothing(self, event: AnyEvent) -> None:
        """Kept in the record, and no matter of time: a check of a checkpoint, or an opinion."""


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
    MembersTimed: Fold._timed,
    DataMoved: Fold._data,
    IncidentDiagnosed: Fold._nothing,
    Correction: Fold._nothing,
    Unknown: Fold._unknown,
}
