"""One lane of one step of a run, computed again and compared with the record."""

import tempfile
from pathlib import Path
from typing import Self

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import LaneExamined, StepCommitted
from holdfast.record.store import Selection, Store
from holdfast.run.replaying import Replayed, ReplayOrder, compute


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


class RecordedLane(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded facts about a lane. examined: the last examination of its bits, if there was one."""

    run: str
    lane: int
    order: ReplayOrder
    examined: LaneExamined | None

    @classmethod
    def read(cls, store: Store, run: str, step: int, lane: int) -> Self:
        """Read a lane from the record. Raise `InputError` if the run did not get that far. The step after its
        last one is allowed, because it may have started and be the reason why the run ended.
        """
        committed = store.select(Selection(run=run, kinds=("step.committed",)))
        last = max((event.step for event in committed if isinstance(event, StepCommitted)), default=0)
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
        return cls(run=run, lane=lane, order=order, examined=examined[-1] if examined else None)

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
