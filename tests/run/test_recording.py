"""How a member's reports about checkpoints get into the record."""

from holdfast.record.events import CheckpointSaved, StepWitnessed
from holdfast.run.recording import checkpoint_event, witness_event
from holdfast.run.wire import Checkpointed, Witnessed


def test_what_a_checkpoint_cost_and_how_large_it_is_are_recorded() -> None:
    told = Checkpointed(
        member="n0.0",
        happened="saved",
        step=7,
        place="/data/7",
        stall_ns=5,
        size_bytes=1_120_000_000,
        written_bytes=7,
    )
    assert checkpoint_event(told, 99) == CheckpointSaved(
        id="", occurred_ns=99, step=7, place="/data/7", stall_ns=5, size_bytes=1_120_000_000, written_bytes=7
    )


def test_what_the_step_after_a_checkpoint_came_to_is_recorded_with_its_witness() -> None:
    told = Witnessed(member="n0.1", step=8, loss="0.5", print="00000000000000ab")
    assert witness_event(told, 99) == StepWitnessed(
        id="", occurred_ns=99, subject="n0.1", step=8, loss="0.5", print="00000000000000ab"
    )
