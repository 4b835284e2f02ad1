"""Machines that come and go while a run starts, stops, recovers or saves: cases that the twin found."""

from typing import Any

from holdfast.record.events import (
    ActionTaken,
    CheckpointBegun,
    CheckpointSaved,
    CostRate,
    FaultObserved,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
)

SECOND = 10**9


def begun(story: Any, gpus: int = 8, held: int = 10) -> Any:
    """A run of steps of 10 s, and two GPUs beside it."""
    story.tell(CostRate, gpus=held)
    story.tell(ReferenceDeclared, step_ns=10 * SECOND, gpus=gpus)
    story.tell(RunStarted, gpus=gpus, name="r")
    story.tell(PhaseEntered, phase="launch")
    story.tell(MemberJoined, subject="spares", gpus=held - gpus, role="spare")
    return story


def commit(story: Any, *steps: int, seconds: float = 10) -> None:
    for step in steps:
        story.wait(seconds)
        story.tell(StepCommitted, step=step)


def test_a_first_step_is_one_however_often_machines_come_and_go_in_it(story: Any) -> None:
    begun(story).wait(20)
    story.tell(ActionTaken, subject="n9", action="drain", gpus=1)
    story.tell(MemberJoined, subject="spares", gpus=1, role="spare")
    story.wait(20)
    story.tell(ActionTaken, subject="n9", action="restore")
    story.tell(MemberJoined, subject="spares", gpus=2, role="spare")
    commit(story, 1)
    assert story.gpu_s() == {"useful": 80, "starting": 8 * 40, "spare": 2 * 50 - 20, "drained": 20}


def test_a_stop_at_the_end_of_a_long_stall_is_one_stall_too(story: Any) -> None:
    begun(story)
    commit(story, 1, 2)
    story.tell(CheckpointBegun, step=2, blocking=True)
    story.wait(8)
    story.tell(MemberJoined, subject="spares", gpus=1, role="spare")
    story.wait(8)
    story.tell(RunEnded, outcome="stopped")
    told = story.gpu_s()
    # It cannot have waited for longer than its last commit took, 10 s; the rest is unknown.
    assert (told["checkpoint_stall"], told["unattributed"]) == (80, 48)


def test_an_earlier_checkpoint_does_not_end_the_wait_for_the_next(story: Any) -> None:
    begun(story)
    commit(story, 1, 2)
    story.tell(CheckpointBegun, step=2, blocking=True)
    story.wait(3)
    story.tell(PhaseEntered, phase="step")
    commit(story, 3)
    story.tell(CheckpointBegun, step=3, blocking=True)
    story.wait(1)
    story.tell(CheckpointSaved, step=2)
    story.wait(4)
    story.tell(CheckpointSaved, step=3)
    commit(story, 4)
    assert story.gpu_s() == {"useful": 320, "checkpoint_stall": 8 * (3 + 5), "spare": 2 * 48}


def test_a_wait_that_ended_is_a_wait_whatever_was_noticed_in_it(story: Any) -> None:
    """A joining member dies during the stall; later the run stops. The stall is known: it was measured."""
    begun(story)
    commit(story, 1, 2)
    story.wait(30)
    story.tell(FaultObserved, subject="newcomer", fault="SIGKILL")
    story.wait(2)
    story.tell(CheckpointSaved, step=2, stall_ns=32 * SECOND)
    story.wait(3)
    story.tell(RunEnded, outcome="stopped")
    told = story.gpu_s()
    assert (told["checkpoint_stall"], told["localising"]) == (8 * 30, 8 * 5)
    assert "unattributed" not in told


def test_each_loss_is_held_against_its_own_steps(story: Any) -> None:
    """Two losses of nearly a step each, one above and one below: they do not make up for each other."""
    begun(story)
    commit(story, 1, 2)
    for seconds in (9.95, 10.1):
        story.wait(seconds)
        story.tell(RunEnded, outcome="stopped")
        story.tell(RunStarted, gpus=8)
        story.tell(MemberJoined, subject="spares", gpus=2, role="spare")
        commit(story, 2, 3)
    told = story.gpu_s()
    assert round(told["discarded"], 6) == round(8 * (9.95 + 10.0), 6)
    assert round(told["unattributed"], 6) == round(8 * 0.1, 6)


def test_to_give_a_node_back_is_no_answer_to_a_fault(story: Any) -> None:
    begun(story)
    commit(story, 1)
    story.wait(5)
    story.tell(FaultObserved, subject="n1", fault="crash", onset_ns=round((story.at - 2) * SECOND))
    story.wait(7)
    story.tell(ActionTaken, subject="n9", action="restore")
    story.wait(11)
    story.tell(ActionTaken, subject="n1", action="restart")
    story.wait(13)
    story.tell(RunStarted, gpus=8)
    told = story.gpu_s()
    assert (told["discarded"], told["dead_undetected"]) == (8 * 3, 8 * 2)
    assert (told["localising"], told["recovering"]) == (8 * (7 + 11), 8 * 13)


def test_a_run_that_stops_on_purpose_and_starts_again_has_not_failed(story: Any) -> None:
    begun(story)
    commit(story, 1, 2)
    story.tell(CheckpointSaved, step=2)
    story.tell(PhaseEntered, phase="stop")
    story.wait(100)
    story.tell(RunStarted, gpus=8)
    story.tell(MemberJoined, subject="spares", gpus=2, role="spare")
    commit(story, 3, seconds=30)
    told = story.report()
    assert told.counts.incidents == 0
    assert story.gpu_s() == {"useful": 240, "planned_stop": 800, "starting": 8 * 20, "spare": 300}


def test_what_fails_in_a_planned_stop_does_not_undo_it(story: Any) -> None:
    """A joining member dies during it; the run goes on, and later fails for another reason."""
    begun(story)
    commit(story, 1, 2)
    story.tell(PhaseEntered, phase="stop")
    story.wait(20)
    story.tell(FaultObserved, subject="newcomer", fault="SIGKILL")
    story.wait(30)
    story.tell(PhaseEntered, phase="step")
    story.wait(4)
    story.tell(RunEnded, outcome="failed", reason="another")
    told = story.gpu_s()
    assert (told["planned_stop"], told["discarded"]) == (8 * 50, 8 * 4)
    assert "localising" not in told


def members(story: Any, *names: str) -> None:
    for name in names:
        story.tell(MemberJoined, subject=name, gpus=4)


def test_a_newcomer_waits_for_the_next_generation_from_the_moment_one_is_opened(story: Any) -> None:
    story.tell(CostRate, gpus=12)
    story.tell(ReferenceDeclared, step_ns=10 * SECOND, gpus=12)
    story.tell(RunStarted, gpus=12)
    members(story, "a", "b")
    story.tell(GenerationOpened, generation=1, members=("a", "b"), step=0)
    story.wait(4)
    members(story, "c")  # before the first step: it is about to join, and not missing
    commit(story, 1, seconds=7)
    story.tell(GenerationOpened, generation=2, members=("a", "b", "c"), step=1)
    commit(story, 2)
    assert story.gpu_s() == {"missing_members": 4 * 4, "starting": 4 * 7, "useful": 8 * 11 + 12 * 10}


def test_drained_machines_are_drained_even_without_members(story: Any) -> None:
    story.tell(CostRate, gpus=8)
    story.tell(ReferenceDeclared, step_ns=10 * SECOND, gpus=8)
    story.tell(RunStarted, gpus=8)
    members(story, "a", "b")
    story.tell(GenerationOpened, generation=1, members=("a", "b"), step=0)
    commit(story, 1)
    for node, name in (("n0", "a"), ("n1", "b")):
        story.tell(ActionTaken, subject=node, action="drain", gpus=4)
        story.tell(MemberLost, subject=name)
    story.wait(30)
    story.tell(ActionTaken, subject="n0", action="restore")
    story.wait(20)
    story.tell(RunEnded, outcome="stopped")
    assert story.gpu_s() == {"useful": 80, "drained": 8 * 30 + 4 * 20, "recovering": 4 * 20}
