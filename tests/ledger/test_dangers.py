"""What endangered a run, as its report says it: how often, since when, whether it is over, what is left."""

from typing import Any

import pytest

from holdfast.ledger.dangers import Danger
from holdfast.record.events import (
    CheckpointBegun,
    CheckpointCopied,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointVerified,
    RunEndangered,
    RunEnded,
    RunStarted,
)

FULL = "No space left on device."


def dangers(story: Any) -> list[Danger]:
    return list(story.report().dangers)


def started(story: Any) -> Any:
    story.tell(RunStarted, gpus=8)
    return story


def fail(story: Any, step: int) -> None:
    story.tell(CheckpointBegun, step=step, blocking=False)
    story.wait(1).tell(CheckpointFailed, step=step, reason=FULL)


def test_a_healthy_run_was_in_no_danger(story: Any) -> None:
    started(story).steps(1, 5, 5).tell(CheckpointSaved, step=5)
    assert dangers(story) == []


def test_checkpoints_that_could_not_be_saved(story: Any) -> None:
    started(story).steps(1, 5, 5)
    fail(story, 5)
    story.steps(6, 10, 5)
    fail(story, 10)
    (one,) = dangers(story)
    assert story.report().counts.saves_failed == 2
    assert (one.what, one.times, one.over_ns, one.reason) == ("save", 2, None, FULL)
    assert one.sentence == (
        "2 checkpoints could not be saved (steps 5 to 10, 1 Jan 1970, 00:00:26 to 00:00:52 UTC). "
        "No space left on device. There is no good checkpoint, so the run can only begin again at its start."
    )


def test_a_checkpoint_that_failed_again_counts_once(story: Any) -> None:
    """It was tried again at the end of the run, by two members that each have a part of it."""
    started(story).steps(1, 5, 5)
    fail(story, 5)
    story.steps(6, 10, 5)
    for _ in range(2):
        fail(story, 10)
        story.wait(1).tell(CheckpointFailed, step=10, reason=FULL)
    (one,) = dangers(story)
    assert (one.what, one.times) == ("save", 2)
    assert one.sentence.startswith("2 checkpoints could not be saved (steps 5 to 10, ")


def test_a_run_that_is_complete_need_not_begin_again(story: Any) -> None:
    started(story).steps(1, 5, 5)
    fail(story, 5)
    story.tell(RunEnded, outcome="completed")
    (one,) = dangers(story)
    assert one.sentence.endswith("No space left on device.")


def test_the_newest_good_one_is_named(story: Any) -> None:
    started(story).steps(1, 5, 5).tell(CheckpointSaved, step=5)
    story.steps(6, 10, 5)
    fail(story, 10)
    (one,) = dangers(story)
    assert one.sentence.startswith("1 checkpoint could not be saved (step 10, 1970-01-01 00:00:51Z). ")
    assert one.sentence.endswith("The newest good one is of step 5.")


def test_it_is_over_once_one_is_saved_again(story: Any) -> None:
    started(story).steps(1, 5, 5)
    fail(story, 5)
    story.steps(6, 10, 5).tell(CheckpointSaved, step=10)
    (one,) = dangers(story)
    assert one.over_ns == 51 * 10**9
    assert one.sentence.endswith("No space left on device. It works again since 1970-01-01 00:00:51Z.")
    fail(story, 11)
    (again,) = dangers(story)
    assert (again.times, again.from_ns, again.over_ns) == (2, one.from_ns, None)


def test_a_checkpoint_that_cannot_be_read_is_another_matter(story: Any) -> None:
    started(story).tell(CheckpointFailed, step=7, reason="it is damaged")
    (one,) = dangers(story)
    assert (one.what, one.sentence) == (
        "restore",
        "1 checkpoint could not be used (step 7, 1970-01-01 00:00:00Z). It is damaged.",
    )


def test_a_checkpoint_that_was_saved_and_proves_damaged_is_not_the_newest_good_one(story: Any) -> None:
    started(story)
    for step in (5, 10):
        story.steps(step - 4, step, 5).tell(CheckpointBegun, step=step, blocking=False)
        story.wait(1).tell(CheckpointSaved, step=step)
    story.tell(RunStarted, gpus=8)
    story.wait(1).tell(CheckpointFailed, step=10, reason="it is damaged")
    story.tell(CheckpointLoaded, step=5)
    story.steps(6, 9, 5)
    (one,) = dangers(story)
    assert one.sentence.startswith("1 checkpoint could not be used (step 10, ")
    assert one.sentence.endswith("It is damaged. The newest good one is of step 5.")
    story.steps(10, 10, 5).tell(CheckpointSaved, step=10)
    (one,) = dangers(story)
    assert one.sentence.endswith("The newest good one is of step 10.")


def test_of_two_writes_at_once_each_has_its_own_end(story: Any) -> None:
    started(story).steps(1, 5, 5).tell(CheckpointBegun, step=5, blocking=False)
    story.steps(6, 10, 5).tell(CheckpointBegun, step=10, blocking=False)
    story.wait(1).tell(CheckpointFailed, step=5, reason=FULL)
    (one,) = dangers(story)
    assert (one.what, one.over_ns) == ("save", None)
    story.wait(1).tell(CheckpointSaved, step=10)
    (one,) = dangers(story)
    assert (one.what, one.times) == ("save", 1)
    assert one.over_ns is not None


def test_snapshots_work_again_once_one_is_used(story: Any) -> None:
    started(story).steps(1, 5, 5)
    story.tell(CheckpointFailed, step=5, reason="it is damaged", is_snapshot=True, place="memory")
    story.wait(1).tell(CheckpointLoaded, step=4, place="/ckpt")
    assert dangers(story)[0].over_ns is None
    story.wait(1).tell(CheckpointLoaded, step=4, place="memory", is_snapshot=True)
    (one,) = dangers(story)
    assert one.over_ns is not None
    assert "It works again since" in one.sentence


def test_copies_are_told_by_place(story: Any) -> None:
    started(story).tell(CheckpointCopied, step=1, place="s3://a")
    for place in ("s3://a", "s3://b", "s3://b", "s3://c"):
        story.wait(1).tell(CheckpointCopied, step=2, place=place, reason="access denied")
    story.wait(1).tell(CheckpointCopied, step=3, place="s3://c")
    story.wait(1).tell(CheckpointCopied, step=3, place="s3://d", origin="s3://d", reason="")
    a, b, c = dangers(story)
    assert a.sentence.startswith("Copies of checkpoints to s3://a failed once (step 2, ")
    assert a.sentence.endswith("Access denied. The newest there is of step 1.")
    assert b.sentence.startswith("Copies of checkpoints to s3://b failed 2 times (")
    assert b.sentence.endswith("Access denied. Nothing is there.")
    assert (c.place, c.over_ns) == ("s3://c", 5 * 10**9)


def test_snapshots_and_proofs(story: Any) -> None:
    started(story).steps(1, 5, 5).tell(CheckpointSaved, step=5)
    story.tell(
        CheckpointFailed, step=5, reason="/dev/shm is full", is_snapshot=True, place="the memory of n0"
    )
    story.tell(CheckpointVerified, step=5, sound=False, reason="the loss differs")
    story.tell(CheckpointVerified, step=5, sound=True)
    snapshot, proof = dangers(story)
    assert snapshot.sentence.startswith("Snapshots at the memory of n0 failed (step 5, ")
    assert snapshot.sentence.endswith("If all members are lost, the run goes back to a checkpoint.")
    assert proof.what == "proof"
    assert proof.over_ns is not None


@pytest.mark.parametrize(
    ("what", "begins"),
    [
        ("record", "The run's record could not be written ("),
        ("successor", "The coordinator had no successor: had it died, the run would have ended ("),
        ("connections", "The coordinator could not accept new connections: "),
        ("something newer", "something newer ("),
    ],
)
def test_what_the_run_says_of_itself(story: Any, what: str, begins: str) -> None:
    started(story).wait(1).tell(RunEndangered, what=what, reason="no memory")
    (one,) = dangers(story)
    assert one.sentence.startswith(begins)
    assert one.sentence.endswith("No memory.")
    story.wait(1).tell(RunEndangered, what=what, reason="3 events are lost", over=True)
    (over,) = dangers(story)
    assert over.sentence.endswith("No memory; 3 events are lost. It works again since 1970-01-01 00:00:02Z.")


def test_none_of_it_changes_the_accounts(story: Any) -> None:
    started(story).steps(1, 20, 5)
    before = story.gpu_s()
    story.tell(RunEndangered, what="record", reason="full")
    story.tell(CheckpointCopied, step=2, place="s3://b", reason="access denied")
    assert story.gpu_s() == before
