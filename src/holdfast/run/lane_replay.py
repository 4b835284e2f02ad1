"""One lane of one step of a run, computed again and compared with the record."""

import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Self

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import GenerationOpened, LaneExamined, StepCommitted
from holdfast.record.store import Selection, Store
from holdfast.run.replaying import Replayed, ReplayOrder, compute

PACED_STEPS_MAX = 1_000
"""From this many of the last steps before it the run's pace is taken."""
LONG_S = 60.0
"""A replay that is expected to take longer must be wanted."""
LONG_STEPS = 100
"""The same, if the pace is unknown."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A lane as computed again, and as recorded if the record has it.

    begun         the step of the checkpoint it started from; 0 for the run's beginning
    is_steady     two computations gave the same bits
    is_same       the bits are the same as recorded; None if this lane is not recorded
    """

    run: str
    step: int
    lane: int
    begun: int
    loss: str
    norm: str
    print: str
    recorded_loss: str
    recorded_print: str
    is_steady: bool
    is_same: bool | None

    @property
    def is_good(self) -> bool:
        """Whether the bits are steady and do not differ from the record."""
        return self.is_steady and self.is_same is not False


class ReplayEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay will take. begun: the step of the checkpoint it begins from; 0 for the run's beginning.
    steps: how many are computed. seconds: at the run's recorded pace, by one member; None if unknown.
    nearest: the first checkpoint that is too late for the step.
    """

    begun: int
    steps: int
    seconds: float | None
    nearest: int | None

    @property
    def is_long(self) -> bool:
        return self.steps > LONG_STEPS if self.seconds is None else self.seconds > LONG_S


class RecordedLane(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded facts about a lane. examined: the last examination of its bits, if there was one. step_ns:
    what a step took before it, if known; members: by how many.
    """

    run: str
    lane: int
    order: ReplayOrder
    examined: LaneExamined | None
    step_ns: float | None = None
    members: int = 1

    @classmethod
    def read(cls, store: Store, run: str, step: int, lane: int) -> Self:
        """Read a lane from the record. Raise `InputError` if the run has no such lane, is sharded, or did not
        get that far. The step after its last one is allowed, because it may have started and be the reason
        why the run ended.
        """
        last, before = 0, deque[StepCommitted](maxlen=PACED_STEPS_MAX)
        for event in store.select(Selection(run=run, kinds=("step.committed",))):
            if isinstance(event, StepCommitted):
                last = max(last, event.step)
                if event.step <= step:
                    before.append(event)
        if last and step > last + 1:
            raise InputError(
                f"The run {run} has no step {step}: it ended at step {last}.", hint="Choose an earlier step."
            )
        examined = [
            event
            for event in store.select(Selection(run=run, kinds=("lane.examined",)))
            if isinstance(event, LaneExamined) and (event.step, event.lane) == (step, lane)
        ]
        order = ReplayOrder(step=step, lane=lane, result="").told_of(store, run)
        if order.lanes is not None and lane >= order.lanes:
            raise InputError(
                f"There is no lane {lane}: the run {run} has {order.lanes}.", hint="Lanes count from 0."
            )
        if order.lanes is not None and not order.model:
            raise InputError(
                f"The model of the run {run} is sharded: its steps cannot be replayed.",
                hint="Replay only works for models that are not sharded.",
            )
        opened = [
            event
            for event in store.select(Selection(run=run, kinds=("generation.opened",)))
            if isinstance(event, GenerationOpened) and (event.step or 0) <= step
        ]
        return cls(
            run=run,
            lane=lane,
            order=order,
            examined=examined[-1] if examined else None,
            step_ns=_pace_ns(before),
            members=max(1, len(opened[-1].members)) if opened else 1,
        )

    def estimated(self, kept: Sequence[int]) -> ReplayEstimate:
        """What computing it again takes. kept: the steps of the run's checkpoints."""
        step = self.order.step
        begun = max((one for one in kept if one < step), default=0)
        steps = step - begun
        return ReplayEstimate(
            begun=begun,
            steps=steps,
            seconds=None if self.step_ns is None else steps * self.step_ns * self.members / 1e9,
            nearest=min((one for one in kept if one >= step), default=None),
        )

    def replayed(self, checkpoints: Path, words: tuple[str, ...]) -> ReplayResult:
        """Compute the lane again with this script and its arguments, from the newest checkpoint before it."""
        with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as directory:
            order = msgspec.structs.replace(self.order, result=f"{directory}/result.json")
            found = compute(order, checkpoints, words, Replayed)
        first, second = found.prints
        recorded = self.examined
        return ReplayResult(
            run=self.run,
            step=order.step,
            lane=self.lane,
            begun=found.begun,
            loss=found.loss,
            norm=found.norm,
            print=first,
            recorded_loss="" if recorded is None else recorded.loss,
            recorded_print="" if recorded is None else recorded.print,
            is_steady=first == second,
            is_same=None if recorded is None else recorded.print == first,
        )


def _pace_ns(committed: Iterable[StepCommitted]) -> float | None:
    """The median time of a step, of commits that follow each other."""
    took = [
        later.occurred_ns - earlier.occurred_ns
        for earlier, later in pairwise(committed)
        if later.step == earlier.step + 1
    ]
    return median(took) if took else None
