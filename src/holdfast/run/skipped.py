"""The lanes that a run skipped, in the form in which another run can be told to skip them."""

from collections.abc import Iterable

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent, GenerationOpened, StepCommitted
from holdfast.record.runs import find_run
from holdfast.record.store import Selection, Store
from holdfast.run.wire import SkippedLanes


def skipped_in(events: Iterable[AnyEvent]) -> tuple[SkippedLanes, ...]:
    """The lanes that no member computed, in the order of steps. If a step was repeated after the run went
    back to a checkpoint, the last time counts.
    """
    by_step = {event.step: event.skipped_lanes for event in events if isinstance(event, StepCommitted)}
    found: list[SkippedLanes] = []
    for step, lanes in sorted(by_step.items()):
        if found and found[-1].last == step - 1 and found[-1].lanes == lanes:
            found[-1] = SkippedLanes(found[-1].first, step, lanes)
        elif lanes:
            found.append(SkippedLanes(step, step, lanes))
    return tuple(found)


def skipped_by(store: Store, name: str) -> tuple[tuple[SkippedLanes, ...], int | None]:
    """The lanes that a recorded run skipped, and its number of lanes, if that was recorded."""
    run = find_run(store, name)
    found = skipped_in(store.select(Selection(run=run, kinds=("step.committed",))))
    if not found:
        raise InputError(f"The run {run} has skipped no lanes.", hint="Leave out --skip-lanes.")
    opened = store.select(Selection(run=run, kinds=("generation.opened",)))
    return found, next((one.lanes for one in opened if isinstance(one, GenerationOpened) and one.lanes), None)
