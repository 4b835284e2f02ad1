"""What a run has skipped, as another run can be told to skip it."""

from collections.abc import Iterable

from holdfast.record.events import AnyEvent, StepCommitted
from holdfast.run.wire import SkippedLanes


def skipped_in(events: Iterable[AnyEvent]) -> tuple[SkippedLanes, ...]:
    """The lanes that nobody computed, in the order of steps. Of a step that was done again after the run went
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
