"""How the coordinator, or a member that runs without one, writes events into the record."""

import msgspec

from holdfast.record.events import (
    CheckpointBegun,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    KnownEvent,
    StepWitnessed,
)
from holdfast.record.recorder import Recorder
from holdfast.run.wire import Checkpointed, Witnessed

_FILLED_IN = ("id", "recorded_ns", "source", "run", "schema")


def write_down(recorder: Recorder, event: KnownEvent) -> None:
    """Record the event; if its id is empty, under a new one."""
    fields = {key: value for key, value in msgspec.structs.asdict(event).items() if key not in _FILLED_IN}
    recorder.record(type(event), identity=event.id, **fields)


def checkpoint_event(message: Checkpointed, occurred_ns: int) -> KnownEvent:
    """The event for a member's report of a checkpoint. Training continues while one is written."""
    step, place = message.step, message.place
    match message.happened:
        case "begun":
            return CheckpointBegun(id="", occurred_ns=occurred_ns, step=step, place=place, blocking=False)
        case "saved":
            return CheckpointSaved(
                id="",
                occurred_ns=occurred_ns,
                step=step,
                place=place,
                stall_ns=message.stall_ns,
                size_bytes=message.size_bytes,
                written_bytes=message.written_bytes,
                write_ns=message.write_ns,
                exposed_ns=message.exposed_ns,
            )
        case "failed":
            return CheckpointFailed(
                id="",
                occurred_ns=occurred_ns,
                step=step,
                place=place,
                reason=message.reason,
                is_snapshot=message.is_snapshot,
            )
        case "loaded":
            return CheckpointLoaded(
                id="",
                occurred_ns=occurred_ns,
                step=step,
                place=place,
                restore_ns=message.restore_ns,
                is_snapshot=message.is_snapshot,
            )


def witness_event(message: Witnessed, occurred_ns: int) -> KnownEvent:
    """The event for the result of a step that follows a checkpoint."""
    return StepWitnessed(
        id="",
        occurred_ns=occurred_ns,
        subject=message.member,
        step=message.step,
        loss=message.loss,
        print=message.print,
    )
