"""One lane of one step of a run, computed again and held against what the record has of it."""

import tempfile
from pathlib import Path
from typing import Self

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import LaneExamined, StepCommitted
from holdfast.record.store import Selection, Store
from holdfast.run.replaying import Replayed, ReplayOrder, compute


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, as it was computed again, and as the record has it, where it does.

    begun         the step of the checkpoint it went on from; 0: the run's beginning
    is_steady     computed twice it had the same bits
    is_same       the same bits as recorded; None: nothing is recorded of this lane
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
        """Nothing speaks against it."""
        return self.is_steady and self.is_same is not False


class RecordedLane(msgspec.Struct, frozen=True, kw_only=True):
    """What the record has of a lane. examined: the last look at its bits, if there was any."""

    run: str
    lane: int
    order: ReplayOrder
    examined: LaneExamined | None

    @classmethod
    def read(cls, store: Store, run: str, step: int, lane: int) -> Self:
        """`InputError` where the run did not come so far. The step after its last may have been begun, and be
        why it ended.
        """
        committed = store.select(Selection(run=run, kinds=("step.committed",)))
        last = max((event.step for event in committed if isinstance(event, StepCommitted)), default=0)
        if last and step > last + 1:
            raise InputError(
                f"The run {run} has no step {step}: it came to step {last}.", hint="Name one it has."
            )
        examined = [
            event
            for event in store.select(Selection(run=run, kinds=("lane.examined",)))
            if isinstance(event, LaneExamined) and (event.step, event.lane) == (step, lane)
        ]
        order = ReplayOrder(step=step, lane=lane, result="").told_of(store, run)
        return cls(run=run, lane=lane, order=order, examined=examined[-1] if examined else None)

    def replayed(self, checkpoints: Path, words: tuple[str, ...]) -> ReplayResult:
        """Compute it again with this script and its arguments, from the newest checkpoint before the step."""
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
