"""A run that stops as a whole when anything fails, and goes back to the last saved state.

torchrun with a scheduler behind it works like this; with warm spares and snapshots in memory, so do the best
published systems. The simulation jumps from one event to the next: a failure, a checkpoint, a launch. Steps
in between are counted, not simulated one by one.
"""

from collections.abc import Sequence
from functools import partial

from holdfast.ledger.categories import Category
from holdfast.record import events as ev
from holdfast.run.waits import ns
from holdfast.twin.agenda import Agenda
from holdfast.twin.cluster import name
from holdfast.twin.failures import Failure
from holdfast.twin.ground import Ground
from holdfast.twin.study import interval_s
from holdfast.wording.units import SECOND_NS

PLACE = "storage"
RETRY_NS = 600 * SECOND_NS
"""A stop requested while the run is not stepping is tried again after this time."""


class RestartingRun:
    """One run under a `restart` policy. `run` plays it to the end."""

    def __init__(self, ground: Ground, failures: Sequence[Failure]) -> None:
        self.ground, self.truth = ground, ground.truth
        self.policy, self.job = ground.policy, ground.job
        self.horizon_ns = ground.study.duration_ns
        self._failures = failures
        self._agenda = Agenda()
        self._is_up = self._is_stepping = self._is_first = False
        self._is_undecided = False  # between a failure and the action
        self._since_ns = 0  # when the current state began; while stepping, the last commit or stall
        self._segment = 1  # steps in the last commit
        self._waiting: list[tuple[int, int]] = []  # (machine, repair time), until the cause is known
        self._down_as = Category.RECOVERING  # category of the time until the next launch
        self._is_held_up = False  # a launch waits for machines
        self._target = 0  # the last saved step, from which a launch resumes
        self._stall_begun_ns: int | None = None
        self._interval_ns = ns(interval_s(ground.study, self.policy))
        self._next_save_ns = self._interval_ns
        self._stall_ns = ns(self.job.checkpointing.stall_s)

    def run(self) -> None:
        self.ground.declare()
        self._launch(0)
        for failure in self._failures:
            if failure.at_ns >= self.horizon_ns or self._is_complete:
                break
            self._pass_to(failure.at_ns)
            if not self._is_complete:
                self._strike(failure)
        self._pass_to(self.horizon_ns)
        if not self._is_complete:
            self._stop_at_horizon()

    @property
    def _is_complete(self) -> bool:
        return self.truth.step == self.job.steps_total

    # ---- time --------------------------------------------------------------------------------------------

    def _pass_to(self, now_ns: int) -> None:
        """Run all actions planned up to this moment, and the steps in between."""
        while not self._is_complete:
            next_ns = self._agenda.next_ns
            due_ns = now_ns if next_ns is None else min(now_ns, next_ns)
            if self._step_to(due_ns):
                continue  # a checkpoint began, and its actions may come before that moment
            if next_ns is not None and next_ns <= due_ns:
                at_ns, action = self._agenda.pop()
                if not self._is_complete:
                    action(at_ns)
            elif due_ns == now_ns:
                return

    def _step_to(self, limit_ns: int) -> bool:
        """Do the steps until then or until the next checkpoint. Return whether a checkpoint began."""
        while self._is_stepping and self._stall_begun_ns is None:
            if self._since_ns >= self._next_save_ns and not self._is_first:
                self._begin_save()
                return True
            step_ns = self._step_ns()
            steps = (limit_ns - self._since_ns) // step_ns
            if steps <= 0:
                break
            steps = min(steps, self._steps_at_this_rate(step_ns))
            self._since_ns, self._segment = self._since_ns + steps * step_ns, steps
            excess = Category.STARTING if self._is_first else Category.SLOWDOWN
            self._is_first = False
            self.ground.commit(self._since_ns, steps, step_ns, excess)
            if self._is_complete:
                self._is_stepping = False
                self.ground.complete(self._since_ns)
        return False

    def _step_ns(self) -> int:
        """The time of a step now: all wait for the slowest machine."""
        slow = self.ground.slow_at(self._since_ns)
        return round(self.job.step_ns * max((one.factor for one in slow), default=1))

    def _steps_at_this_rate(self, step_ns: int) -> int:
        """How many steps fit before a change that a single commit must not hide."""
        if self._is_first:
            return 1
        moments = [self._next_save_ns]
        if (change_ns := self.ground.slow_change_ns(self._since_ns)) is not None:
            moments.append(change_ns)
        steps = max(1, -((self._since_ns - min(moments)) // step_ns))
        if self.truth.step < self.truth.high:
            steps = min(steps, self.truth.high - self.truth.step)
        if self.job.steps_total is not None:
            steps = min(steps, self.job.steps_total - self.truth.step)
        return steps

    # ---- checkpoints -------------------------------------------------------------------------------------

    def _begin_save(self) -> None:
        step, begun_ns = self.truth.step, self._since_ns
        self._next_save_ns = begun_ns + self._interval_ns
        self.ground.tape.record(
            ev.CheckpointBegun, begun_ns, step=step, blocking=self._stall_ns > 0, place=PLACE
        )
        if self._stall_ns:
            self._stall_begun_ns = begun_ns
            self._agenda.plan_here(begun_ns + self._stall_ns, self._end_stall)
        written_ns = begun_ns + self._stall_ns + ns(self.job.checkpointing.write_s)
        self._agenda.plan_here(written_ns, partial(self._saved, step))

    def _end_stall(self, now_ns: int) -> None:
        self.truth.work(Category.CHECKPOINT_STALL, now_ns - self._stall_ns, now_ns)
        self.ground.tape.record(ev.PhaseEntered, now_ns, phase="step")
        self._stall_begun_ns = None
        self._since_ns = now_ns

    def _saved(self, step: int, now_ns: int) -> None:
        self.ground.checkpoints += 1
        self._target = step
        self.ground.tape.record(ev.CheckpointSaved, now_ns, step=step, place=PLACE)

    # ---- failures ----------------------------------------------------------------------------------------

    def _strike(self, failure: Failure) -> None:
        ground, now_ns = self.ground, failure.at_ns
        machines = ground.fleet.struck(failure)
        at_work = ground.fleet.at_work(failure)
        if failure.kind == "gray":
            ground.slow_down(failure, at_work)
            if at_work:
                self._agenda.plan(now_ns + ns(self.policy.gray_s), partial(self._notice_slow, failure))
        elif not at_work or not self._is_up:
            # No member works on these machines, so there is nothing to interrupt.
            if not failure.is_transient:
                self._take_out(machines, failure.repair_ns, now_ns)
        elif failure.kind == "planned":
            ground.count(failure)
            self._stop_at_boundary(failure, now_ns)
        else:
            ground.count(failure)
            self._fail(failure, machines)

    def _fail(self, failure: Failure, machines: list[int]) -> None:
        now_ns = failure.at_ns
        self._charge_unfinished(now_ns)
        self._halt(now_ns)
        self._is_undecided, self._down_as = True, Category.RECOVERING
        if not failure.is_transient:
            self._waiting += [(machine, failure.repair_ns) for machine in machines]
        wait_s = (self.policy.hang_s or 0.0) if failure.kind == "hang" else self.policy.detect_s
        self._agenda.plan(min(now_ns + ns(wait_s), self.horizon_ns), partial(self._notice, failure))

    def _charge_unfinished(self, now_ns: int) -> None:
        """Charge the unfinished work as lost."""
        if self._stall_begun_ns is not None:
            self.truth.work(Category.CHECKPOINT_STALL, self._stall_begun_ns, now_ns)
        elif not self._is_stepping or self._is_first:
            self.truth.stand(Category.STARTING, self._since_ns, now_ns)
        else:
            self.truth.work(Category.DISCARDED, self._since_ns, now_ns)

    def _halt(self, now_ns: int) -> None:
        self._agenda.disturb()
        self._is_up = self._is_stepping = False
        self._stall_begun_ns = None
        self._since_ns = now_ns
        every = self.policy.snapshot_steps
        if every is not None:
            self._target = max(self._target, self.truth.step - self.truth.step % every)

    def _notice(self, failure: Failure, now_ns: int) -> None:
        self.truth.stand(Category.DEAD_UNDETECTED, self._since_ns, now_ns)
        self._since_ns = now_ns
        self.ground.observe(now_ns, failure, failure.at_ns)
        self._agenda.plan(now_ns + ns(self.policy.locate_s), partial(self._act, failure))

    def _act(self, failure: Failure, now_ns: int) -> None:
        """The faulty machine is known: take it out, and ask for another launch."""
        self.truth.stand(Category.LOCALISING, self._since_ns, now_ns)
        self._since_ns = now_ns
        subject = name("node", failure.node)
        self.ground.tape.record(
            ev.ActionTaken, now_ns, subject=subject, action="restart", reason=failure.row.name
        )
        self._is_undecided = False
        waiting, self._waiting = self._waiting, []
        for machine, repair_ns in waiting:
            self._take_out([machine], repair_ns, now_ns)
        self._ask_for_launch(now_ns)

    def _take_out(self, machines: list[int], repair_ns: int, now_ns: int) -> None:
        """Take machines out and bring in spares, if any. Until the cause is known, only note them."""
        if self._is_undecided:
            self._waiting += [(machine, repair_ns) for machine in machines]
            return
        for machine in machines:
            if machine not in self.ground.fleet.out:
                self.ground.drain(machine, repair_ns, now_ns)
                self._agenda.plan(max(now_ns, self.ground.fleet.repaired_ns or now_ns), self._mend)
        self.ground.fill_places(now_ns)

    def _mend(self, now_ns: int) -> None:
        """A machine returns; a launch may be waiting for it."""
        if not self.ground.is_mended(now_ns, self._agenda, self._mend):
            return
        self.ground.restore(now_ns)
        if self._is_held_up:
            self._ask_for_launch(now_ns)

    def _ask_for_launch(self, now_ns: int) -> None:
        self._is_held_up = bool(self.ground.fleet.vacant)
        if not self._is_held_up:
            self._agenda.plan(now_ns + ns(self.policy.requeue_s), self._relaunch)

    def _relaunch(self, now_ns: int) -> None:
        if self.ground.fleet.vacant:  # a machine failed while the job was in the queue
            self._is_held_up = True
            return
        self.truth.stand(self._down_as, self._since_ns, now_ns)
        self.ground.restarts += 1
        self._launch(now_ns)

    def _launch(self, now_ns: int) -> None:
        self.ground.tape.record(ev.RunStarted, now_ns, gpus=self.job.gpus, name=self.job.model)
        self.ground.tape.record(ev.PhaseEntered, now_ns, phase="launch")
        self.ground.active_gpus = self.job.gpus
        self.ground.show_spares(now_ns)
        self._is_up, self._since_ns = True, now_ns
        is_read = self._target > 0 and self.policy.snapshot_steps is None
        restore_s = self.job.checkpointing.restore_s if is_read else 0
        self._agenda.plan_here(now_ns + ns(self.policy.restart_s + restore_s), self._begin_stepping)

    def _begin_stepping(self, now_ns: int) -> None:
        """Start from the last saved step, or from the beginning; the record must show a rollback."""
        self.truth.stand(Category.STARTING, self._since_ns, now_ns)
        self.ground.rolled_back_steps += self.truth.step - self._target
        self.truth.roll_back(self._target)
        if self.truth.high:
            self.ground.tape.record(ev.CheckpointLoaded, now_ns, step=self._target, place=PLACE)
        self._is_stepping = self._is_first = True
        self._since_ns = now_ns
        self._next_save_ns = now_ns + self._interval_ns

    # ---- slow machines and planned stops -----------------------------------------------------------------

    def _notice_slow(self, failure: Failure, now_ns: int) -> None:
        """The cause of slow steps is known: the slowness passes by itself, or the machine is replaced."""
        self.ground.observe(now_ns, failure, failure.at_ns)
        if not failure.is_transient:
            self._stop_at_boundary(failure, now_ns)

    def _stop_at_boundary(self, failure: Failure, now_ns: int) -> None:
        """A planned stop: the run first finishes and saves its step, so nothing is lost."""
        if now_ns >= self.horizon_ns:
            return
        if not self._is_stepping or self._is_first or self._stall_begun_ns is not None:
            self._agenda.plan(now_ns + RETRY_NS, partial(self._stop_at_boundary, failure))
            return
        step_ns = self._step_ns()
        boundary_ns = self._since_ns - (self._since_ns - now_ns) // step_ns * step_ns
        self._agenda.plan_here(boundary_ns, partial(self._stop, failure))

    def _stop(self, failure: Failure, now_ns: int) -> None:
        if self._since_ns != now_ns or self._stall_begun_ns is not None:
            self._stop_at_boundary(failure, now_ns)  # a checkpoint came first
            return
        self._halt(now_ns)
        self._target, self._down_as = self.truth.step, Category.PLANNED_STOP
        self.ground.tape.record(ev.CheckpointSaved, now_ns, step=self._target, place=PLACE)
        self.ground.tape.record(ev.PhaseEntered, now_ns, phase="stop")
        if not failure.is_transient:
            self._take_out(self.ground.fleet.at_work(failure), failure.repair_ns, now_ns)
        self._ask_for_launch(now_ns)

    # ---- the end -----------------------------------------------------------------------------------------

    def _stop_at_horizon(self) -> None:
        """End the run at the horizon, whatever it is doing."""
        now_ns = self.horizon_ns
        if self._is_stepping and not self._is_first:
            stalled_ns = self._stall_begun_ns
            did = Category.DISCARDED if stalled_ns is None else Category.CHECKPOINT_STALL
            self.truth.lose(did, self._since_ns, now_ns, steps=self._segment, beyond=Category.UNATTRIBUTED)
        elif self._is_up:
            self._charge_unfinished(now_ns)
        else:
            self.truth.stand(
                Category.LOCALISING if self._is_undecided else self._down_as, self._since_ns, now_ns
            )
        self.ground.end(now_ns)
