"""Fold a run's events into sums of where its GPU-time went. Pure: the same events give the same sums.

`Fold` knows what each event means for the run: what it does, how far it has come, what went wrong. `Attempts`
knows whether it is up and which members it has, and `Accounts` keeps the sums. Events must come in order of
time. One that comes too late counts as happening now, so no stretch of time is negative and the sum is exact
for any input.
"""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.ledger.accounts import STEPPING, Piece, cut
from holdfast.ledger.attempts import Attempts
from holdfast.ledger.categories import Category
from holdfast.ledger.copies import copied
from holdfast.ledger.counts import (
    SCHEDULERS,
    AssumedOpening,
    HeldUp,
    MovedBytes,
    MovedFor,
    Opening,
    Saves,
    Stages,
    Traffic,
)
from holdfast.ledger.dangers import Dangers
from holdfast.ledger.tally import BIN, IN_FLIGHT, LAUNCH, STAGE, Tally, measured_key, work_bin
from holdfast.record import events
from holdfast.record.events import (
    CPU,
    IMPORTED,
    UNTIMED,
    AnyEvent,
    Collective,
    StepBegun,
    StepCommitted,
    is_undated,
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
OPENING_ENTRIES = 3
"""Entries of progress at a run's second step: what was not seen, the first step, and the second."""
OPENING_PACE_MAX = 2
"""The steps before a run's first report may have been quicker than the next ones by this factor."""
LATE_SHARE_MIN = 0.05
"""A member that takes longer than the others by less than this share of a step does not make the run slow."""
_USEFUL_STEP = measured_key(Category.USEFUL, Category.SLOWDOWN, 0)

_WORK_FIELDS = (
    *("tokens_per_step", "model_flops_per_step", "hardware_flops_per_step"),
    *("params", "chip", "precision", "attention"),
)


class Fold(Attempts):
    """One run up to the last event. `apply` takes the next event, `settled` returns accounts to read."""

    def __init__(self, cuts_ns: Iterable[int] = ()) -> None:
        self._cuts_ns = tuple(cuts_ns)
        super().__init__(self._cuts_ns)
        self._is_dated = False  # whether anything but a log without dates told of the run
        self.stages = Stages()
        self.source = ""  # of the last sign of what the run does
        self.traffic: dict[tuple[Collective, int], Traffic] = {}
        self.moved: dict[MovedFor, MovedBytes] = {}
        self.unhindered = Tally()  # steps that one member held up, without that delay
        self.held_up: list[HeldUp] = []
        self.loaded_step_min: int | None = None
        self.saves = Saves()
        self.dangers = Dangers()
        self.skipped: dict[int, int] = {}  # number of lanes that no member computed, by step
        self.opening_short: Opening | None = None  # if steps before it are not known to be of this run
        self.devices: frozenset[str] = frozenset()  # what its members have computed on, as far as known
        self.opening_assumed: AssumedOpening | None = None  # if many were taken to be
        self._calm = False  # see `_is_calm`
        self._useful_step = _USEFUL_STEP  # the key of a useful step, without its bin
        self._reports_steps = False
        self._stall_step = -1  # the step of the checkpoint that training last waited for
        self._writing = (-1, 0)  # the last background checkpoint: its step, and when it began

    def apply(self, event: AnyEvent) -> None:
        """Take the next event. One that makes no sense here only advances the time."""
        if (event.source == UNTIMED or not self._is_dated) and self._is_outdone(event):
            return
        if event.occurred_ns > self.accounts.now_ns:
            self.accounts.advance(event.occurred_ns)
        if type(event) not in events.REMARKS:
            self.source = event.source
        if type(event) is StepCommitted:
            if event.skipped_lanes:
                self.skipped[event.step] = len(event.skipped_lanes)
            elif self.skipped:  # the run went back and computed this step again
                self.skipped.pop(event.step, None)
            self._committed(event)
        elif type(event) is StepBegun and self._calm and event.step == self.progress.high + 1:
            self._launch.begun_step = event.step
        else:
            self._calm = False
            _HANDLERS[type(event)](self, event)

    def _is_outdone(self, event: AnyEvent) -> bool:
        """Whether the run's dates are known and not this event's. What has no dates counts only by itself:
        between it and the rest of the record would be decades.
        """
        if is_undated(event):
            return self._is_dated
        if not self._is_dated:
            if self.accounts.now_ns >= 0:
                vars(self).update(vars(Fold(self._cuts_ns)))
            self._is_dated = True
        return False

    @property
    def on_cpu(self) -> bool:
        """Whether no member ever had a GPU."""
        return self.devices == {CPU}

    @property
    def was_on_cpu(self) -> bool:
        """Whether members had no GPU in some attempts, but not in all."""
        return CPU in self.devices and not self.on_cpu

    @property
    def is_cut_off(self) -> bool:
        """Whether the run was told of by a log that ends before the run does."""
        return self.accounts.is_up and self.source in IMPORTED

    def settled(self) -> "Fold":
        """A copy with all time charged: work in flight as unattributed, rolled-back work as discarded."""
        twin = self.copy()
        accounts, debts = twin.accounts, twin.progress.debts
        if accounts.is_up and not twin._launch.is_phased:
            accounts.disown_silence(unless_short=True)
        accounts.dismiss(IN_FLIGHT)
        for silence in accounts.silences:
            accounts.tell_silence(silence, was_start=None)
        for lost in twin.progress.lost():
            bin_ = work_bin(lost.entry_gpu_ns // lost.entry_steps)
            stage_key = twin.stages.number_at(lost.entry) * STAGE
            useful = stage_key + measured_key(Category.USEFUL, lost.excess, bin_)
            discarded = stage_key + measured_key(Category.DISCARDED, lost.excess, bin_)
            accounts.tally.move(useful, discarded, lost.gpu_ns, lost.steps)
            spent_ns = accounts.timeline.move_latest(useful, discarded, lost.gpu_ns)
            if lost.incident is not None:
                accounts.own(lost.incident).tally.add(useful, -lost.gpu_ns, -lost.steps)
            owed = next((incident for upto, incident in reversed(debts) if lost.last_step <= upto), None)
            if accounts.timeline.cuts is not None:
                accounts.timeline.cuts.discard(useful, discarded, lost.gpu_ns, lost.incident, owed)
            if owed is not None:
                incident = accounts.own(owed)
                incident.tally.add(discarded, lost.gpu_ns, lost.steps)
                incident.spend(spent_ns, incident.began_ns)
        return twin

    def copy(self) -> "Fold":
        """A copy. Only one of the two may take further events, and the copy only after `adopt`."""
        twin = copied(
            self,
            *(
                "accounts",
                "members",
                "progress",
                "counts",
                "declared",
                "saves",
                "dangers",
                "moved",
                "unhindered",
            ),
            *("held_up", "stages", "gaps", "disorder", "skipped", "_launch"),
        )
        twin.traffic = {key: copied(traffic) for key, traffic in self.traffic.items()}
        return twin

    def adopt(self) -> None:
        """Continue in place of the fold that this is a copy of."""
        self.progress.adopt()

    # -- steps --------------------------------------------------------------------------------------

    def _generation(self, event: events.GenerationOpened) -> None:
        self._be_up()
        self._is_bare = False
        accounts = self.accounts
        beyond = Category.UNATTRIBUTED
        if accounts.open is None and accounts.is_stepping and self.members.are(event.members):
            # The same members as before: they could not go on, and all of them try again.
            accounts.fail(event, "generation broke")
            beyond = Category.DEAD_UNDETECTED
        self._keep_silence(failed=False)
        self._abandon(beyond)
        self.disorder.forget()
        self._launch.begun_step = -1
        if event.device:
            self.devices |= {event.device}
        if event.gpus is not None:
            self.members.size_gpus = event.gpus
            if event.source in SCHEDULERS:
                self.members.allocated_gpus = event.gpus
        self.members.open_generation(event.members)
        # A scheduler may resize a run that reports nothing itself; such a run is not known to be starting.
        # Nor is a run known to be recovering if it was launched again and never reports that it works.
        is_launched = accounts.nature == LAUNCH and event.step is None
        accounts.enter(LAUNCH if accounts.open is None or is_launched else Category.RECOVERING)
        self._reshape()
        launch = self._launch
        launch.is_warm, launch.leader, launch.loaded, launch.grouped = True, None, None, True
        launch.is_phased = False
        launch.knows_position = event.step is not None
        if event.step is not None:
            self._resume_after(event.step, event)

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
            # Nearly every commit is like this: the next step, by all members, and nothing unusual. Do what
            # `_reach` would do, without its checks.
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
            # A straggler's last commit after the end: it advances progress and adds no time.
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
                return  # the clock was set back; the run has already gone further
            if not self._may_go_back(event):
                return  # another member reports a known commit
            if not self._launch.is_warm:
                excess = Category.DEAD_UNDETECTED  # unreported, but the run failed and came back
            # A run that reports one step in a hundred has done those before it as well.
            known_steps = 1 if self._launch.begun_step >= 0 else self._segment_steps
            self._resume_after(max(self.progress.first_step - 1, step - known_steps), event)
        self._launch.leader, self._launch.stepped = event.subject, True
        position = progress.position
        if position is not None and step - position > self._segment_steps and not self._launch.is_warm:
            self.disorder.skip(position, step, accounts.now_ns)
        self._reach(step, excess)
        self._calm = self._is_calm()

    def _may_go_back(self, event: StepBegun | StepCommitted) -> bool:
        """Whether the run repeats a step it already has, rather than a lagging member reporting it late."""
        launch, position = self._launch, self.progress.position
        if launch.is_warm and not launch.knows_position:
            return True
        is_before = event.step < (position or 0) or isinstance(event, StepBegun)
        return is_before and event.subject == launch.leader

    def _is_calm(self) -> bool:
        """Whether a commit of the next step would need no special treatment."""
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
        """The run reached this step: the uncommitted work was for it; its excess time is `excess`."""
        progress, accounts, launch = self.progress, self.accounts, self._launch
        is_first = progress.position is None
        if is_first:
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
            opening, self._opening = self._opening, None
            if opening is not None and steps > 1 and progress.entry == OPENING_ENTRIES:
                self._count_opening(opening, steps, gpu_ns)
            if is_first and step > 1 and gpu_ns and excess in (Category.STARTING, Category.RECOVERING):
                key = accounts.stage_key + measured_key(Category.USEFUL, excess, work_bin(gpu_ns))
                self._opening = Opening(step, key, gpu_ns, blamed)
        progress.position = step
        progress.settle()
        stage = self.stages.current
        if stage.step_ns is not None and stage.step_gpus is None:
            stage.step_gpus = accounts.shape.active or None
        self._is_complete = False
        launch.is_warm = False
        if accounts.silences and self._opening is None:
            self._tell_silences(step - 1, is_certain=False)
        self._segment_steps = steps
        accounts.recover()
        if accounts.nature != STEPPING:
            accounts.enter(STEPPING)

    def _count_opening(self, opening: Opening, every: int, gpu_ns: int) -> None:
        """The run reports one step in `every`, and its next ones took so long: how many were done before the
        first report? All from 0 on, if there was time for them. If there was not, the run went on from a
        checkpoint that was not recorded.
        """
        counts_from_0 = not (opening.step + 1) % every
        steps = opening.step + counts_from_0
        if steps * gpu_ns > opening.gpu_ns * every:
            steps = min(steps, every)
            if steps * gpu_ns > OPENING_PACE_MAX * opening.gpu_ns * every:
                steps = 1
        if steps > 1:
            self.accounts.recount(opening.key, opening.gpu_ns, steps, opening.incident)
            self.progress.begin_from(opening.step - steps)
        if steps < opening.step:
            self.opening_short = opening
        elif steps > every:
            took_ns = (steps - every) * gpu_ns // every // (self.accounts.shape.active or 1)
            self.opening_assumed = AssumedOpening(opening.step, every, took_ns)
        for key in opening.losses:
            self.accounts.tally.add(key, 0, every - 1)

    def _redo(self, pieces: list[Piece], again: int, steps: int, excess: Category) -> list[Piece]:
        """Charge repeated steps to the incidents that rolled them back. Return the rest of the work."""
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
        if accounts.silences:
            self._tell_silences(step, is_certain=True)
        self._launch.begun_step = -1
        if position is None or step > position:
            self.progress.jump(step)
        elif step < position and self._is_complete:
            # A completed run does not repeat steps because they were lost: this is another run of that name.
            self.counts.begun_again += 1
            self.progress.begin_again(step)
        elif step < position:
            self.counts.from_scratch += step < self.progress.first_step
            if accounts.open is None:
                accounts.settle()
                accounts.fail(event, "rollback", accounts.pieces[0].from_ns if accounts.pieces else None)
            assert accounts.open is not None
            accounts.own(accounts.open).steps_rolled_back += position - step
            self.saves.came_to(position)
            self.progress.roll_back(step, accounts.open)

    def _tell_silences(self, after: int, *, is_certain: bool) -> None:
        """The run goes on after this step. Attempts that failed in silence when it had come as far brought
        nothing; if it goes on from further, they may have done those steps. is_certain: the record says that
        it goes on from there.
        """
        accounts, first, saved_step = self.accounts, self.progress.first_step, self.saves.last_step or 0
        silences, accounts.silences = accounts.silences, []
        for silence in silences:
            reached = after if silence.position >= first else first - 1
            is_start = not silence.failed or reached < max(
                silence.position + self._segment_steps, saved_step + 1
            )
            accounts.tell_silence(silence, was_start=is_start or (False if is_certain else None))

    # -- checkpoints and phases ----------------------------------------------------------------------

    def _checkpoint_begun(self, event: events.CheckpointBegun) -> None:
        self._hear()
        self._is_bare = False
        self.dangers.begun(event)
        if event.blocking and self.accounts.is_stepping and event.step > (self.saves.last_step or -1):
            self._stall_step = event.step
            self.accounts.enter(Category.CHECKPOINT_STALL)
        elif not event.blocking:
            self._writing = event.step, self.accounts.now_ns

    def _checkpoint_saved(self, event: events.CheckpointSaved) -> None:
        self._hear()
        self._is_bare = False
        is_part = self.saves.is_part(event)
        self.counts.saves += not is_part
        self.dangers.saved(event)
        self._count_bytes("checkpoints_saved", event.size_bytes)
        begun_step, begun_ns = self._writing
        tells_stall = event.stall_ns is not None or event.step in (begun_step, self._stall_step)
        self.saves.add(event.step, tells_stall=tells_stall)
        if is_part:
            self.saves.measure_part(event)
        else:
            self.saves.measure(event)
        now_ns = self.accounts.now_ns
        if event.stall_ns:
            self.accounts.stall(now_ns - event.stall_ns, now_ns)
        if event.step == begun_step:
            self._written_ns = begun_ns, now_ns
        if not (self._reports_steps and self._launch.stepped):  # else it says nothing new about progress
            self._reach(event.step)
        self._end_stall(event.step)

    def _checkpoint_failed(self, event: events.CheckpointFailed) -> None:
        self._hear()
        self.dangers.failed(event)
        if not event.is_snapshot:
            self._end_stall(event.step)

    def _end_stall(self, step: int) -> None:
        """End the wait for a checkpoint. An earlier one, written in the background, may finish first."""
        if self.accounts.nature == Category.CHECKPOINT_STALL and step >= self._stall_step:
            self.accounts.enter(STEPPING)

    def _verified(self, event: events.CheckpointVerified) -> None:
        self.saves.verified(event)
        self.dangers.verified(event)

    def _copied(self, event: events.CheckpointCopied) -> None:
        if not event.origin:  # else it was fetched to start the run from
            self.saves.copied(event)
            self.dangers.copied(event)

    def _checkpoint_loaded(self, event: events.CheckpointLoaded) -> None:
        self._hear()
        launch = self._launch
        loaded = (event.step, event.subject)
        if launch.loaded is not None and launch.loaded[0] == event.step and launch.loaded != loaded:
            return  # another member reports the same load
        launch.loaded = loaded
        self._is_bare = False
        self.disorder.forget()
        self.counts.loads += 1
        self.dangers.loaded(event)
        self._count_bytes("checkpoints_loaded", event.size_bytes)
        self.saves.measure_load(event)
        known = self.loaded_step_min
        self.loaded_step_min = event.step if known is None else min(event.step, known)
        self._resume_after(event.step, event)
        self._abandon(Category.STARTING)
        self.accounts.enter(Category.STARTING if self._reports_steps else STEPPING)
        launch.is_warm = launch.knows_position = True
        launch.is_phased = False

    def _phase(self, event: events.PhaseEntered) -> None:
        if event.subject not in ("", event.run):
            return  # the phase of one member; only the run's own phases count
        self._hear()
        self._is_bare = False
        nature = _PHASES[event.phase]
        self._launch.is_phased = True
        if nature == Category.STARTING and self.accounts.is_stepping:
            self._abandon(Category.UNATTRIBUTED)
            self._launch.is_warm = True
        if nature == STEPPING and self.accounts.nature == Category.PLANNED_STOP:
            self.accounts.alarm = None  # faults noticed during the stop did not prevent the run from going on
        self.accounts.enter(nature)

    # -- faults and what is done about them ----------------------------------------------------------

    def _fault(self, event: events.FaultObserved) -> None:
        accounts = self.accounts
        if event.severity == "degraded":
            accounts.end_degradation({event.subject} & accounts.degraded.keys())
            incident = accounts.begin_incident(event, event.fault, event.onset_ns, "degraded")
            accounts.degraded[event.subject] = incident
            return
        accounts.fail(event, event.fault, event.onset_ns)
        if accounts.nature != Category.RECOVERING:
            # The run may survive the fault, so nothing is lost yet; later events will show.
            accounts.sound_alarm(event.onset_ns)

    def _action(self, event: events.ActionTaken) -> None:
        accounts = self.accounts
        if event.action == events.TAKE_OVER:
            # A successor took over the coordinator's work. Members went on; it is no response to a failure.
            self.counts.takeovers += 1
            return
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
        # Returning a node to service does not respond to a current failure.
        if accounts.alarm is not None and accounts.alarm.acted_ns is None and event.action != "restore":
            accounts.settle()
            accounts.alarm = accounts.alarm._replace(acted_ns=accounts.now_ns)

    # -- declarations, and events that do not affect time --------------------------------------------

    def _cost(self, event: events.CostRate) -> None:
        if event.usd_per_gpu_hour is not None:
            self.accounts.charge_price(event.usd_per_gpu_hour)
        if event.gpus is not None:
            self.members.held_gpus = event.gpus
            self._reshape()

    def _reference(self, event: events.ReferenceDeclared) -> None:
        declared = self.declared
        self.stages.declare(event, self.accounts.now_ns, self.progress.entry)
        self.accounts.stage_key = (len(self.stages) - 1) * STAGE
        self._useful_step = _USEFUL_STEP + self.accounts.stage_key
        for name in _WORK_FIELDS:
            value = getattr(event, name)
            if value is not None:
                setattr(declared, name, value)

    def _collective(self, event: events.CollectiveTimed) -> None:
        traffic = self.traffic.setdefault((event.collective, event.ranks), Traffic())
        traffic.size_bytes += event.size_bytes
        traffic.duration_ns += event.duration_ns

    def _timed(self, event: events.MembersTimed) -> None:
        """Note the time that steps would have taken if a late member had been as quick as the others."""
        late_ns = event.slowest_ns - event.quick_ns
        if late_ns > LATE_SHARE_MIN * event.step_ns and self.accounts.is_up:
            work = max(0, event.step_ns - late_ns) * self.accounts.shape.active
            self.unhindered.add(self._useful_step + work_bin(work) * BIN, work * event.steps, event.steps)
            lasted_ns = event.steps * event.step_ns
            self.held_up.append(HeldUp(event.occurred_ns - lasted_ns, event.occurred_ns, event.subject))

    def _count_bytes(self, use: MovedFor, size_bytes: int | None, usd: float | None = None) -> None:
        known_bytes = size_bytes or 0
        once = MovedBytes(
            times=1,
            sized=int(size_bytes is not None),
            size_bytes=known_bytes,
            usd=usd or 0.0,
            unpriced_bytes=known_bytes if usd is None else 0,
        )
        self.moved[use] = self.moved.get(use, MovedBytes()).plus(once)

    def _unknown(self, event: events.Unknown) -> None:
        self.counts.unknown_events += 1

    def _nothing(self, event: AnyEvent) -> None:
        """Ignore events that do not affect time: a lane that was computed again, or an opinion."""


_HANDLERS: dict[type, Callable[[Fold, Any], None]] = {
    events.RunSubmitted: Fold._submitted,
    events.RunStarted: Fold._started,
    events.RunEnded: Fold._ended,
    events.GenerationOpened: Fold._generation,
    events.MemberJoined: Fold._joined,
    events.MemberLost: Fold._lost,
    StepBegun: Fold._begun,
    StepCommitted: Fold._committed,
    events.CheckpointBegun: Fold._checkpoint_begun,
    events.CheckpointSaved: Fold._checkpoint_saved,
    events.CheckpointLoaded: Fold._checkpoint_loaded,
    events.CheckpointFailed: Fold._checkpoint_failed,
    events.CheckpointVerified: Fold._verified,
    events.CheckpointCopied: Fold._copied,
    events.LaneExamined: Fold._nothing,
    events.StepWitnessed: Fold._nothing,
    events.PhaseEntered: Fold._phase,
    events.RunEndangered: lambda fold, event: fold.dangers.endangered(event),
    events.FaultObserved: Fold._fault,
    events.ActionTaken: Fold._action,
    events.CostRate: Fold._cost,
    events.ReferenceDeclared: Fold._reference,
    events.CollectiveTimed: Fold._collective,
    events.MembersTimed: Fold._timed,
    events.DataMoved: lambda fold, event: fold._count_bytes(event.what, event.size_bytes, event.usd),
    events.IncidentDiagnosed: Fold._nothing,
    events.ControlActed: Fold._nothing,
    events.BreakerChanged: Fold._nothing,
    events.Correction: Fold._nothing,
    events.Unknown: Fold._unknown,
}
