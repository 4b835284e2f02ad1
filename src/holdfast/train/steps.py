"""The training loop's side of a run: steps, their lanes, and how they continue when members come and go.

A step's exchanges with other members all happen inside the iteration over `step.lanes`: when the member's own
lanes are done, the iterator reduces, and if a member died, it regroups and hands out the lanes that remain to
be computed. So `step.commit()` is local and cannot fail half-way, and a loop body runs exactly once for each
step that is kept.
"""

import inspect
import math
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from holdfast.record.errors import InputError
from holdfast.run import whereabouts, wire
from holdfast.train import randomness, shards
from holdfast.train.audits import Auditor, Dispute
from holdfast.train.checkpoint import Writer
from holdfast.train.control import Control
from holdfast.train.corruption import Corruption
from holdfast.train.gradients import Computed, Gradients, Sum
from holdfast.train.group import GroupBroken, Superseded
from holdfast.train.log import Log
from holdfast.train.manifest import size_of
from holdfast.train.manifest_file import ALL
from holdfast.train.measures import FETCHING, Collections, CudaWatch, HostWatch, Measures, OfLanes
from holdfast.train.meeting import Meeting
from holdfast.train.prints import print_of_state, text_of
from holdfast.train.protected import Protected
from holdfast.train.replay import LaneReplay
from holdfast.train.replica import Agreed, agree
from holdfast.train.seat import Number, RunOver, Seat
from holdfast.train.snapshots import BUSY as SNAPSHOT_BUSY
from holdfast.train.snapshots import DUE as SNAPSHOT_DUE
from holdfast.train.snapshots import MemorySnapshots
from holdfast.train.transfer import Numbers

CLIP_EPSILON = 1e-6
"""As in torch's clip_grad_norm_."""
BUSY, READY, DUE, TROUBLED = -1, 0, 1, 2
"""What a member tells the others of its checkpoints: it is writing one; it could write one; one is due.
TROUBLED is added to these if the last one failed.
"""
READINESSES = 8
"""More than the number of these states: a member's state of snapshots is sent in multiples of it."""


@dataclass(frozen=True, kw_only=True)
class ProtectSettings:
    """The settings given to `protect`."""

    lanes: int
    seed: int
    clip_norm: float | None
    on_commit: Callable[[], None] | None


class Lane:
    """One slice of a step's batch: number `index` of `of`, in step `step`."""

    def __init__(
        self, gradients: Gradients, step: int, index: int, of: int, seed: int, *, is_again: bool = False
    ) -> None:
        self._gradients = gradients
        self._seed = seed
        self.is_again = is_again
        """Whether the lane is computed only for comparison with another member's, or an earlier, result."""
        self.step = step
        self.index = index
        self.of = of
        self.cost: float = 1.0
        """The amount of work of this lane, if lanes differ; for example its number of tokens."""

    def backward(self, loss: torch.Tensor) -> None:
        """Compute this lane's gradients. `loss`: the mean over the lane's samples."""
        self._gradients.backward(loss)

    def pipeline(self, schedule: Any, *inputs: Any, target: Any = None, **told: Any) -> Any:
        """Compute this lane's gradients with a schedule of torch.distributed.pipelining, which cuts it into
        microbatches. Every stage makes the same call; the first one uses the inputs, the last one the target.

        told: further arguments of `schedule.step`. Returns its result.
        """
        from holdfast.train.pipelines import Pipeline

        pipeline = Pipeline.of(schedule)
        if pipeline.rank:  # not before: all stages must draw the same data
            randomness.begin(self._seed, self.step, self.index, pipeline.rank)
        self._gradients.pipeline(lambda share: pipeline.step(share, inputs, target, told))
        result, pipeline.result = pipeline.result, None  # it may hold a whole graph
        return result


class Step:
    """One step of the run."""

    def __init__(self, loop: "Loop", number: int) -> None:
        self._loop = loop
        self._loss: float | None = None
        self._lr: Number = None
        self._grad_norm: Number = None
        self._skipped: tuple[int, ...] = ()
        self.number = number
        self.begun_s: float | None = None
        self.committed = False

    @property
    def lanes(self) -> Iterator[Lane]:
        """This member's lanes, one after the other. Reduces after the last one."""
        return self._loop.lanes(self)

    @property
    def loss(self) -> float:
        """The mean of all lanes' losses: the same on every member."""
        if self._loss is None:
            raise InputError(
                f"The loss of step {self.number} was asked for before its lanes were through.",
                hint="Read step.loss after the loop over step.lanes.",
            )
        return self._loss

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group, as this step's commit uses or has used it."""
        return float(self._loop.lr if self._lr is None else self._lr)

    @property
    def grad_norm(self) -> float:
        """The norm of all gradients before they were clipped: the same on every member. Available after
        `commit()`, if `protect(clip_norm=...)` was given.
        """
        if self._grad_norm is None:
            raise InputError(
                f"The gradient norm of step {self.number} is unknown.",
                hint="Read it after step.commit(), with protect(clip_norm=...); math.inf measures and clips"
                " nothing.",
            )
        return float(self._grad_norm)

    @property
    def skipped(self) -> tuple[int, ...]:
        """The lanes that no member computed, with `protect(on_shortage="smaller batch")`: the same on every
        member. They are known after the loop over `lanes`.
        """
        return self._skipped

    @property
    def reduced(self) -> bool:
        """Whether the lanes are through, on all members."""
        return self._loss is not None

    def reduced_to(self, loss: float, skipped: tuple[int, ...]) -> None:
        self._loss, self._skipped = loss, skipped

    def used(self, lr: Number, grad_norm: Number) -> None:
        """Set what its commit used and found, here or on the member whose state was adopted."""
        self._lr, self._grad_norm = lr, grad_norm

    def commit(self) -> None:
        """Keep the step's result: clip, then step the optimizer and the scheduler."""
        self._loop.commit(self)


class Loop:
    """The steps of a run as one member goes through them."""

    def __init__(
        self,
        control: Control,
        state: Protected,
        settings: ProtectSettings,
        gradients: Gradients,
        seat: Seat,
        writer: Writer | None,
        replay: LaneReplay | None = None,
        snapshots: MemorySnapshots | None = None,
    ) -> None:
        self._replay = replay or LaneReplay(None, state, settings.lanes)
        self._control = control
        self._state = state
        self._settings = settings
        self._gradients = gradients
        self._seat = seat
        self._writer = writer
        self._snapshots = snapshots
        self._changing = False
        self._asked = -1
        self._step: Step | None = None
        self._head = self._place = ""
        self._open: weakref.ref[Generator[Step]] | None = None
        self._optimizing = False
        self._leaving_code: int | None = None
        self._norm: float | None = None
        self._is_due = self._is_snapped = self._is_troubled = False
        self._followed = -1  # the step of the last checkpoint
        seat.on_apply = self.apply
        watch = CudaWatch() if state.device.type == "cuda" else HostWatch()
        self._corruption = Corruption(state)
        self._auditor = Auditor(control, seat, state, settings.seed, watch)
        self._measures = Measures(watch, Collections() if control.is_asked else None)
        control.reports(self._measures.report)
        control.refine(self._phase)
        self.logs: list[Log] = []
        self.meeting = Meeting(control, seat, state.device, settings.seed, self._regroup)
        for optimizer in state.optimizers:
            optimizer.register_step_pre_hook(self._refuse_own_step)

    def _phase(self, stage: wire.Stage) -> wire.Stage:
        """What the script does in a lane. Called in another thread, which only reads existing flags."""
        if stage != "forward":
            return stage
        if FETCHING.is_running:
            return "data"
        return "backward" if self._gradients.in_backward else stage

    def _refuse_own_step(self, *_: object) -> None:
        if not self._optimizing:
            raise InputError("The script calls optimizer.step() itself.", hint="Leave that to step.commit().")

    def steps(self, total: int) -> Iterator[Step]:
        """The steps that remain, up to number `total`."""
        loop = self._go_through(total)
        self._open = weakref.ref(loop)  # a script that breaks out of its loop drops it there
        return loop

    def _go_through(self, total: int) -> Generator[Step]:
        seat = self._seat
        if total <= self._asked and seat.version >= total:
            raise InputError(
                f"steps({total}) was called again: steps count from the run's beginning, none is left.",
                hint="For epochs of n steps: state.steps((epoch + 1) * n).",
            )
        self._asked = max(self._asked, total)
        self._head, self._place = whereabouts.here(), ""
        seat.plan(total)
        seat.minutes.enter(total)
        try:
            yield from self._steps(total)
        finally:
            seat.minutes.leave(total)

    def _steps(self, total: int) -> Iterator[Step]:
        seat = self._seat
        self._take_seat()
        # Skip loops that the others have left: a newcomer's script continues where they are.
        while seat.version < total and not seat.through and total > seat.minutes.place.left:
            if self._changing or seat.lost:
                self._regroup()
                continue
            self._control.at(seat.version, "script")
            step = self._step = Step(self, seat.version + 1)
            randomness.begin(self._settings.seed, step.number, randomness.BEFORE_LANES)
            self._measures.handed()
            seat.minutes.begin_step()
            try:
                yield step
            except GeneratorExit:
                self._place = whereabouts.here()
                raise
            if not step.committed:
                raise InputError(
                    f"Step {step.number} was left without step.commit().",
                    hint="Call it once for every step, after the loop over step.lanes.",
                )
            seat.minutes.enter(total)
            self._gradients.check_buffers_still()
            if self._leaving_code is not None:
                raise SystemExit(self._leaving_code)
            self._keep_durably()
        self._control.at(seat.version, "script")

    def lanes(self, step: Step) -> Iterator[Lane]:
        if step.begun_s is not None:
            raise InputError(
                f"The lanes of step {step.number} were asked for twice.",
                hint="A step has one loop over step.lanes; protect(accumulate=N) is for several passes.",
            )
        step.begun_s = time.monotonic()
        self._measures.asked()
        self._gradients.check_buffers_still()
        if (wanted := self._replay.lane(step.number)) is not None:
            first = yield from self._compute_apart(step, wanted)
            second = yield from self._compute_apart(step, wanted)
            self._replay.conclude((first, second))
            raise SystemExit(0)
        yield from self._lanes(step)
        randomness.begin(self._settings.seed, step.number, randomness.REDUCED)

    def _lanes(self, step: Step) -> Iterator[Lane]:
        seat = self._seat
        while seat.version < step.number:
            for index in self._auditor.begin(step.number):
                self._auditor.computed(index, (yield from self._compute_apart(step, index)))
            for index in seat.todo:
                if seat.lost or not (yield from self._compute(step, index)):
                    break
            else:
                if (yield from self._reduce(step)):
                    return
            if self._leaving_code is not None:
                raise SystemExit(self._leaving_code)
            self._regroup()
        # Another member had committed this step already, and its state was adopted. While a replica was
        # shelved, others made several steps: the script continues with the last of them.
        step.number = seat.version
        numbers = seat.numbers
        assert numbers.loss is not None
        step.reduced_to(numbers.loss, numbers.skipped)
        step.used(numbers.lr, numbers.grad_norm)

    def _compute(self, step: Step, index: int) -> Generator[Lane, None, bool]:
        """Compute one lane, or this rank's slice of it. False: it was lost with a rank of the replica."""
        seat, settings = self._seat, self._settings
        self._control.at(step.number, "forward")
        if fault := self._control.strike(step.number, "lane", seat.rank, seat.size):
            self._corruption.strike(fault)
        leaf = index if seat.sharding is None else index * seat.sharding.shape.slices + seat.sharding.slice
        is_audited = self._auditor.is_audited(index)
        is_last = index == seat.todo[-1]
        self._gradients.begin(index, leaf, seat.reduction, last=is_last, is_audited=is_audited)
        randomness.begin(settings.seed, step.number, leaf)
        lane = Lane(self._gradients, step.number, leaf, settings.lanes, settings.seed)
        yield lane
        self._measures.computed(_checked_cost(lane))
        of_lanes = self._measures.told_of_lanes() if is_last else OfLanes()  # only the last lane's are read
        told = *self._measures.told(), *of_lanes, self._readiness(step.number)
        prints = partial(self._auditor.told, step.number, index)
        broken = self._gradients.end(self._control.pending(seat.number), told, prints)
        if broken is not None:
            seat.say_broken(str(broken), "exchange with the other ranks of its replica")
        return broken is None

    def _compute_apart(self, step: Step, index: int) -> Generator[Lane, None, Computed]:
        """Compute one lane only to compare it with a result from elsewhere, or from before; it
        is not added.
        """
        seed = self._settings.seed
        self._control.at(step.number, "forward")
        self._gradients.begin(index, index, None, last=False)
        randomness.begin(seed, step.number, index)
        lane = Lane(self._gradients, step.number, index, self._settings.lanes, seed, is_again=True)
        yield lane
        self._measures.computed(_checked_cost(lane))
        return self._gradients.end_apart()

    def _is_sound(self, step: Step, total: Sum) -> Generator[Lane, None, bool]:
        """Whether the sum can be used, as far as audits tell. Raises `Superseded`."""
        found = self._auditor.examine(step.number, total)
        if isinstance(found, Dispute):
            first = yield from self._compute_apart(step, found.lane)
            second = yield from self._compute_apart(step, found.lane)
            self._gradients.hand_out()
            self._control.at(step.number, "reduce")
            found = self._auditor.settle(found, (first, second))
        if found is not None and found.kind in ("state", "apart") and self._snapshots is not None:
            self._snapshots.forget()  # they may contain shares of the wrong state
        return found is None or self._auditor.conclude(found)

    def _reduce(self, step: Step) -> Generator[Lane, None, bool]:
        """Sum over all members. False: a member is gone, or wrong, and the step continues in another
        generation.
        """
        seat = self._seat
        self._control.at(step.number, "reduce")
        self._control.strike(step.number, "reduce", seat.rank, seat.size)
        self._measures.arrived()
        if not seat.todo:  # otherwise the exchange began with the last lane
            seat.await_receivers()
        try:
            total = self._gradients.reduce(seat.reduction, self._confirm if seat.sharding is None else None)
            seat.check_skipped(total.skipped)
            if not (yield from self._is_sound(step, total)):
                self._gradients.unsettle()
                return False
            agreed = self._agreed(total, step.number)
        except Superseded:
            self._gradients.unsettle()
            return False
        except GroupBroken as broken:
            seat.say_broken(str(broken), "exchange gradients")
            return False
        self._measures.reduced(agreed.latest)
        # All members see the same sum, so either all of them change generations at this boundary, or none.
        self._changing = seat.number < agreed.pending[0] == agreed.pending[1]
        self._norm, self._is_due, self._is_snapped = agreed.norm, agreed.is_due, agreed.is_snapped
        seat.whole = max(seat.whole, agreed.saved)
        seat.shares_due = agreed.shares
        step.reduced_to(agreed.loss, total.skipped)
        return True

    def _agreed(self, total: Sum, step: int) -> Agreed:
        """What the members know of the step: the same on all of them. Raises `GroupBroken`."""
        seat = self._seat
        mine = Agreed(
            loss=total.loss,
            pending=(min(total.pending), max(total.pending)),
            latest=total.latest,
            norm=None,
            is_due=self._all_are_ready(total) if seat.sharding is None else self._writes_now(step),
            is_snapped=self._all_snap(total) if seat.sharding is None else self._snaps_now(step),
            saved=0 if self._writer is None else self._writer.saved,
            shares=seat.weigh(total.told),
        )
        if seat.sharding is None:
            return mine
        seat.bind()
        seat.settled = True
        self._control.strike(step, "agree", seat.rank, seat.size)
        seat.confirm_sum()
        seat.reflect(step)
        gradients = None if self._settings.clip_norm is None else self._gradients.counted
        knows_loss = seat.sharding.shape.last_stage
        return agree(seat.replica, mine, gradients, self._state.device, knows_loss=knows_loss)

    def _confirm(self) -> None:
        """Make sure that all members have the sum; otherwise it is made again. Raises `GroupBroken`."""
        self._seat.bind()
        self._seat.confirm_sum()

    def _writes_now(self, step: int) -> bool:
        """Whether a checkpoint of this step is due, by this member's clock. Ranks of a sharded state write
        their parts only if it is due on all and all have written the last one; otherwise no step might ever
        have all its parts.
        """
        seat, writer = self._seat, self._writer
        if writer is None or (seat.sharding is not None and writer.is_busy):
            return False
        return writer.due(step, nodes=seat.nodes, failures=seat.failures)

    def _readiness(self, step: int) -> float:
        """What this member tells others: whether it can write its share of this step, and whether it is due;
        the same for snapshots.
        """
        snapshots = 0 if self._snapshots is None else self._snapshots.readiness(step)
        told = BUSY
        if self._writer is not None and not self._writer.is_busy:
            told = (DUE if self._writes_now(step) else READY) + TROUBLED * self._writer.is_troubled
        return READINESSES * snapshots + told - BUSY

    def _all_are_ready(self, total: Sum) -> bool:
        """Whether all members write their shares of this step: all have written the last one, and the first
        says that it is due. They all see the same figures.
        """
        told = [round(total.told[-1][lane]) % READINESSES + BUSY for lane in self._seat.tellers]
        self._is_troubled = any(one >= TROUBLED for one in told)
        return told[0] % TROUBLED == DUE and BUSY not in told

    def _all_snap(self, total: Sum) -> bool:
        """The same for a snapshot."""
        told = [round(total.told[-1][lane]) // READINESSES for lane in self._seat.tellers]
        return told[0] == SNAPSHOT_DUE and SNAPSHOT_BUSY not in told

    def _snaps_now(self, step: int) -> bool:
        return self._snapshots is not None and self._snapshots.readiness(step) == SNAPSHOT_DUE

    def commit(self, step: Step) -> None:
        if not step.reduced:
            raise InputError(
                f"step.commit() was called before the lanes of step {step.number} were through.",
                hint="Let the loop over step.lanes run to its end, without break.",
            )
        if step.committed:
            raise InputError(f"Step {step.number} was committed twice.", hint="Call step.commit() once.")
        step.committed = True
        if self._seat.version < step.number:
            self._control.at(step.number, "optimizer")
            self._state.check_unchanged()
            self._optimizing = True
            lr = self.lr
            norm = self._optimize(step.loss)
            self._optimizing = False
            step.used(lr, norm)
            self._keep(step, lr, norm)
        self._control.at(step.number, "script")
        randomness.begin(self._settings.seed, step.number, randomness.COMMITTED)

    @property
    def lr(self) -> torch.Tensor | float:
        """The current learning rate."""
        lr: torch.Tensor | float = self._state.optimizers[0].param_groups[0]["lr"]
        return lr.clone() if isinstance(lr, torch.Tensor) else lr

    def _optimize(self, loss: float) -> torch.Tensor | None:
        """Step the optimizers. Returns the norm of the gradients if they are clipped."""
        if self._snapshots is not None:
            self._snapshots.hold_back()
        sharding = self._seat.sharding
        with nullcontext() if sharding is None else sharding.line.commit():
            return self._optimize_alone(loss)

    def _optimize_alone(self, loss: float) -> torch.Tensor | None:
        norm = None
        state, scaler = self._state, self._state.scaler
        if scaler is not None:
            for optimizer in state.optimizers:
                scaler.unscale_(optimizer)
        if self._settings.clip_norm is not None:
            norm = self._clip(self._settings.clip_norm)
        for optimizer in state.optimizers:
            optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        torch.clear_autocast_cache()  # the script may be inside autocast, which caches weights
        self._gradients.move_buffers()
        for scheduler in state.schedulers:
            scheduler.step(*((loss,) if isinstance(scheduler, ReduceLROnPlateau) else ()))
        if self._settings.on_commit is not None:
            self._settings.on_commit()
        return norm

    def _clip(self, clip_norm: float) -> torch.Tensor:
        """Clip the gradients. Returns their norm before that."""
        if self._norm is None:
            return torch.nn.utils.clip_grad_norm_(self._state.parameters, clip_norm)
        norm = torch.tensor(self._norm, dtype=torch.float32, device=self._state.device)
        factor = (clip_norm / (norm + CLIP_EPSILON)).clamp(max=1.0)
        gradients = [one.grad for one in self._state.parameters if one.grad is not None]
        torch._foreach_mul_([shards.local_of(gradient) for gradient in gradients], factor)
        return norm

    def apply(self, numbers: Numbers) -> None:
        """Other ranks have committed the step whose sum this rank has its part of: do the same."""
        assert numbers.loss is not None
        self._norm = numbers.grad_norm
        self._optimizing = True
        self._optimize(numbers.loss)
        self._optimizing = False

    def _keep(self, step: Step, lr: Number, norm: Number) -> None:
        seat = self._seat
        assert step.begun_s is not None
        took_s = time.monotonic() - step.begun_s
        seat.committed(step.number, step.loss, lr, norm, step.skipped)
        self._control.strike(step.number, "commit", seat.rank, seat.size)
        self._control.say(
            wire.Committed(
                member=self._control.member,
                generation=seat.number,
                step=step.number,
                loss=step.loss,
                took_s=took_s,
                skipped=step.skipped,
                at_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            )
        )
        self._witness(step)
        self._replay.committed(step.number, step.loss)

    def _witness(self, step: Step) -> None:
        """After a checkpoint, report the result of the next step: a process that loads the checkpoint must
        come to the same. The last member reports and the first one writes; with two members, none vouches for
        itself.
        """
        seat = self._seat
        if step.number == self._followed + 1 and seat.sharding is None and seat.rank == seat.size - 1:
            print_ = text_of(print_of_state(self._state))
            self._control.say(
                wire.Witnessed(
                    member=self._control.member, step=step.number, loss=repr(step.loss), print=print_
                )
            )

    def _keep_durably(self) -> None:
        """Write a checkpoint or a snapshot if one is due. This comes after the script's work behind a step,
        so that a run that resumes from it does not lack that work: a line in a log, for example.
        """
        seat = self._seat
        is_alone = seat.sharding is None and seat.size == 1
        is_due = self._writes_now(seat.version) if is_alone else self._is_due
        if is_due:
            self._is_due = False
            self._followed = seat.version
            # After trouble one member writes all of it, to any place that works.
            self.keep(is_shared=seat.sharding is None and not self._is_troubled)
        if self._is_snapped:
            self._is_snapped = False
            self._snap()

    def _snap(self) -> None:
        """Have this member's share of the state copied into memory that outlives it."""
        seat = self._seat
        if self._snapshots is None:
            return
        kept = seat.durable()
        share = seat.snapshot_share(size_of(kept))
        if share is None:
            self._snapshots.told.kept(seat.version, 0, 0)  # others on this node hold all of it
        else:
            self._control.at(seat.version, "checkpoint")
            moving = {
                tensor.untyped_storage().data_ptr()
                for buffer in self._state.moving
                if (tensor := buffer.tensor) is not None
            }
            self._measures.stalled(self._snapshots.take(seat.version, kept, share, moving))
            self._control.at(seat.version, "script")

    def leave_soon(self, code: int) -> bool:
        """The script is to exit. Returns whether it does so at the next step, because this step is being
        committed, or the work after it is still under way. The second time it is to exit at once.
        """
        # Once this rank has its sum, others may have committed the step: all must keep their parts of it.
        is_committing = self._optimizing or self._seat.settled
        is_soon = is_committing or self._seat.minutes.place.at == "between"
        is_soon = is_soon and self._leaving_code is None
        self._leaving_code = code
        return is_soon

    def finish(self, *, is_exit: bool = False) -> None:
        """Stay until all members are through: one that dies now is replaced, and gets its state from here.

        is_exit: the script ends with `sys.exit(0)`.
        """
        self._leave_kept_loop()
        try:
            self._take_seat()
            self.keep()  # for a later run with more steps
            self._seat.through = True
            self._seat.minutes.finish()
            while self._control.finished(self._finished(is_exit), self._seat.number) is not None:
                self._regroup()
        except RunOver:
            return

    def _leave_kept_loop(self) -> None:
        """Close a loop that the script has left but still holds, for example in a progress bar. Where it was
        left is unknown, so report where the loop is.
        """
        loop = self._open() if self._open is not None else None
        if loop is not None and inspect.getgeneratorstate(loop) == inspect.GEN_SUSPENDED:
            loop.close()
            self._place = self._head

    def _finished(self, is_exit: bool) -> wire.Finished:
        step = self._step
        return wire.Finished(
            member=self._control.member,
            step=self._seat.version,
            digest=self._state.digest(),
            begun=step.number if step is not None and not step.committed else 0,
            steps_total=self._seat.steps_total,
            place=self._place,
            is_exit=is_exit,
        )

    def keep_at_exit(self, *, is_failed: bool) -> None:
        """is_failed: by an exception. Inside a step the others continue with their own state, and sooner
        without a save.
        """
        if not is_failed or self._seat.size == 1 or self._seat.minutes.place.at != "lanes":
            self.keep()

    def keep(self, *, is_shared: bool = False) -> None:
        """Have the current version written, so that a later run can resume from it. is_shared: all members do
        this now, and each writes its share; else the first member, or those of the first replica, write it
        all.
        """
        seat = self._seat
        if self._writer is None or seat.version == 0 or self._optimizing:
            return
        if not is_shared and not seat.is_writer:
            return
        kept = seat.durable()
        share = seat.share_of(size_of(kept)) if is_shared else ALL
        if share is not None:
            self._control.at(seat.version, "checkpoint")
            self._measures.stalled(self._writer.offer(seat.version, kept, share))
            self._control.at(seat.version, "script")

    @property
    def rank(self) -> int:
        self._take_seat()
        return self._seat.rank

    def writes(self, step: int) -> bool:
        self._take_seat()
        return self._seat.writes(step)

    def _take_seat(self) -> None:
        if self._seat.number == 0:
            self._regroup()
            self._replay.begin(self._seat.version)
            self._control.at(self._seat.version, "script")

    def _regroup(self) -> None:
        self._changing = False
        if self._snapshots is not None:
            self._snapshots.settle()  # the state may be replaced by a peer's
        self._seat.regroup()
        self._measures.restart(self._seat.sending)
        self._auditor.restart()
        for log in self.logs:
            log.write_if_mine()

    def close(self) -> None:
        self._measures.close()
        self._seat.leave()
        if self._snapshots is not None:
            self._snapshots.close()
        if self._writer is not None:
            self._writer.close()


def _checked_cost(lane: Lane) -> float:
    cost = lane.cost
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost < math.inf:
        raise InputError(
            f"The cost of lane {lane.index} is {cost!r}, not a number above 0.",
            hint="Set lane.cost to what its work grows with, such as its number of tokens; or leave it.",
        )
    return float(cost)
