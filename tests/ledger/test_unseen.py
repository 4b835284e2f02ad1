"""Time that the record says little about: silent attempts, logs of every hundredth step, drained nodes."""

from typing import Any

import pytest

from holdfast.record.events import (
    ActionTaken,
    CheckpointLoaded,
    CheckpointSaved,
    CostRate,
    FaultObserved,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
)

HOUR_S = 3600


def lines(story: Any, first: int, last: int, every: int) -> None:
    """A log with one step in `every`; each takes 10 s."""
    for step in range(first, last + 1, every):
        story.tell(StepCommitted, step=step)
        story.wait(10 * every)


def failed_once(story: Any, gpus: int = 100) -> Any:
    """An attempt with steps that fails, and another one a minute later."""
    story.tell(RunStarted, gpus=gpus)
    story.steps(0, 99, 10)
    story.tell(RunEnded, outcome="failed", reason="NCCL")
    story.wait(60).tell(RunStarted, gpus=gpus)
    return story


@pytest.mark.parametrize("outcome", ["completed", "stopped", "preempted", "failed"])
def test_what_a_silent_second_attempt_did_is_not_known(story: Any, outcome: str) -> None:
    failed_once(story)
    story.wait(5 * HOUR_S).tell(RunEnded, outcome=outcome)
    assert story.gpu_s() == {"useful": 100_000, "unattributed": 100 * 5 * HOUR_S}
    (incident,) = story.report().incidents
    assert incident.lost_gpu_ns == 0


def test_what_an_attempt_did_after_loading_a_checkpoint_is_not_known_either(story: Any) -> None:
    failed_once(story)
    story.wait(30).tell(CheckpointLoaded, step=99)
    story.wait(5 * HOUR_S).tell(RunEnded, outcome="completed")
    told = story.gpu_s()
    assert told["unattributed"] == 100 * (5 * HOUR_S)
    assert told["starting"] == 100 * 30


def test_a_relaunch_that_fails_soon_was_starting(story: Any) -> None:
    failed_once(story)
    story.wait(300).tell(RunEnded, outcome="failed")
    assert story.gpu_s() == {"useful": 100_000, "starting": 100 * 300}


def test_a_start_that_goes_on_for_hours_is_not_known_to_be_one(story: Any) -> None:
    failed_once(story)
    story.wait(HOUR_S).tell(CostRate, usd_per_gpu_hour=2.0)  # any event: the clock goes on
    assert story.gpu_s() == {"useful": 100_000, "unattributed": 100 * HOUR_S}
    story.wait(HOUR_S)
    story.steps(100, 109, 10)  # but if it steps at last, it was starting
    assert story.gpu_s() == {"useful": 110_000, "starting": 100 * 2 * HOUR_S}


def test_an_attempt_that_reports_only_its_checkpoints_made_progress(story: Any) -> None:
    failed_once(story)
    story.wait(30 + 1000).tell(CheckpointSaved, step=199)
    story.wait(1000).tell(CheckpointSaved, step=299)
    told = story.gpu_s()
    assert told["useful"] == 100 * 3000
    assert told["starting"] == 100 * 30


@pytest.mark.parametrize("first", [99, 100])  # counted from 0, or from 1
def test_the_steps_before_the_first_line_of_a_sparse_log_count(story: Any, first: int) -> None:
    story.tell(RunStarted, gpus=4)
    story.wait(20 + 1000)
    lines(story, first, first + 900, 100)
    story.wait(-995).tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {"useful": 4 * 10_000, "starting": 4 * 20, "unattributed": 4 * 5}
    assert story.report().counts.steps == 1000


def test_steps_that_are_logged_every_six_hours_are_not_a_start(story: Any) -> None:
    every = 6 * HOUR_S // 10
    story.tell(RunStarted, gpus=8)
    story.wait(120 + 6 * HOUR_S)
    lines(story, every, 4 * every, every)
    told = story.gpu_s()
    assert told["starting"] == pytest.approx(8 * 120)


def test_a_run_that_had_no_time_for_all_the_steps_says_so(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    story.wait(60)
    lines(story, 5000, 5900, 100)
    assert story.gpu_s() == {"useful": 4 * 9010, "starting": 4 * 50}
    assert story.report().counts.steps == 901
    (said,) = [remark for remark in story.report().remarks if "first step that was reported" in remark]
    assert "step 5,000" in said
    assert "checkpoint.loaded" in said


def test_a_dense_log_that_begins_late_has_no_steps_before_it(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    story.wait(70)
    lines(story, 5, 20, 1)
    told = story.report()
    assert told.partition["starting"] / 1e9 == 4 * 60
    assert told.counts.steps == 16
    assert not any("first step that was reported" in remark for remark in told.remarks)


def test_a_sparse_log_that_repeats_a_line_has_repeated_the_steps_before_it(story: Any) -> None:
    story.tell(ReferenceDeclared, step_ns=10 * 10**9, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.wait(20 + 1000)
    lines(story, 100, 1000, 100)  # and then nothing is heard for as long
    story.tell(RunStarted, gpus=1)
    story.wait(20 + 1000)
    lines(story, 1000, 1500, 100)
    told = story.gpu_s()
    assert told["recomputed"] == 1000
    assert told["starting"] == 40
    assert story.report().incidents[0].steps_rolled_back == 100


def test_the_price_of_an_incident_that_was_over_soon_is_explained(story: Any) -> None:
    """Lost in a moment, and done again for hours."""
    story.tell(RunStarted, gpus=10)
    story.steps(1, 400, 10)
    story.tell(RunStarted, gpus=10)
    story.wait(50).tell(CheckpointLoaded, step=40)
    story.steps(41, 500, 10)
    (incident,) = story.report().incidents
    assert incident.recovered_ns is not None
    assert incident.recovered_ns - incident.began_ns == 60 * 10**9
    assert incident.lost_gpu_ns > 10 * 60 * 10**9
    assert incident.spent_ns == (4000 * 10**9, (4050 + 3600) * 10**9)
    (said,) = [remark for remark in story.report().remarks if "its cost is spread" in remark]
    assert "Incident 1 lasted 1 min, and its cost is spread over 1 h, from" in said


def drained_once(story: Any, held: int) -> None:
    """Two nodes, one of which is drained; then the attempt fails and is launched again at its full size."""
    story.tell(CostRate, gpus=held or None)
    story.tell(RunStarted, gpus=16)
    story.steps(1, 10, 10)
    story.tell(ActionTaken, subject="n1", action="drain", gpus=8)
    story.tell(RunEnded, outcome="failed", reason="xid")
    story.wait(30).tell(RunStarted, gpus=16)


@pytest.mark.parametrize("size", [0, 16, 8])
def test_a_node_stays_drained_while_the_next_attempt_starts(story: Any, size: int) -> None:
    story.tell(CostRate, gpus=16)
    story.tell(RunStarted, gpus=16)
    for name in ("a", "b"):
        story.tell(MemberJoined, subject=name, gpus=8)
    story.steps(1, 10, 10)
    story.tell(ActionTaken, subject="n1", action="drain", gpus=8)
    story.tell(RunEnded, outcome="failed", reason="xid")
    story.wait(30).tell(RunStarted, gpus=size)
    story.wait(60).tell(MemberJoined, subject="a", gpus=8)
    story.steps(11, 20, 20)
    story.tell(ActionTaken, subject="n1", action="restore")
    story.wait(7).tell(RunEnded, outcome="stopped")
    told = story.gpu_s()
    assert told["drained"] == 8 * (30 + 60 + 200)
    assert told["recovering"] == 8 * 30
    assert told["starting"] == 8 * 60


@pytest.mark.parametrize("held", [0, 16])
def test_drained_gpus_are_not_part_of_a_start_that_goes_on_without_them(story: Any, held: int) -> None:
    """The launcher names the size it wants; the members that come are fewer, by the drained node."""
    drained_once(story, held)
    story.wait(60).tell(MemberJoined, subject="a", gpus=8)
    story.steps(11, 20, 20)
    told = story.gpu_s()
    assert told["drained"] == 8 * (60 + 200 + (30 if held else 0))
    assert told["starting"] == 8 * 60


@pytest.mark.parametrize("held", [0, 16])
@pytest.mark.parametrize("members", [(), ("a", "c")])
def test_a_drained_node_that_was_replaced_takes_nothing_from_the_next_attempt(
    story: Any, held: int, members: tuple[str, ...]
) -> None:
    drained_once(story, held)
    story.wait(60)
    for name in members:
        story.tell(MemberJoined, subject=name, gpus=8)
    story.steps(11, 20, 10)
    told = story.gpu_s()
    assert told["useful"] == 16 * 200
    assert told["starting"] == 16 * 60
    assert told.get("drained", 0) == (8 * 30 if held else 0)
    assert {incident.what for incident in story.report().incidents} == {"xid"}


def lost_a_member(story: Any) -> Any:
    """An attempt whose only member is lost after its steps, and replaced a minute later."""
    story.tell(RunStarted, gpus=100)
    story.tell(MemberJoined, subject="m0", gpus=100)
    story.steps(0, 99, 10)
    story.tell(MemberLost, subject="m0")
    story.wait(60).tell(MemberJoined, subject="m1", gpus=100)
    story.tell(GenerationOpened, members=("m1",), gpus=100)
    return story


@pytest.mark.parametrize("outcome", ["completed", "stopped", "failed"])
def test_what_a_silent_generation_did_is_not_known(story: Any, outcome: str) -> None:
    lost_a_member(story)
    story.wait(5 * HOUR_S).tell(RunEnded, outcome=outcome)
    assert story.gpu_s() == {
        "useful": 100_000,
        "recovering": 100 * 60,
        "unattributed": 100 * 5 * HOUR_S,
    }
    (incident,) = story.report().incidents
    assert incident.lost_gpu_ns == 100 * 60 * 10**9


def test_a_silent_generation_that_loses_its_member_or_is_opened_again_is_not_known(story: Any) -> None:
    lost_a_member(story)
    story.wait(5 * HOUR_S).tell(MemberLost, subject="m1")
    story.wait(60).tell(MemberJoined, subject="m2", gpus=100)
    story.tell(GenerationOpened, members=("m2",), gpus=100)
    story.wait(4 * HOUR_S).tell(GenerationOpened, members=("m2",), gpus=100)
    story.wait(3 * HOUR_S).tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {
        "useful": 100_000,
        "recovering": 100 * 120,
        "unattributed": 100 * 12 * HOUR_S,
    }


def test_a_silent_attempt_that_loses_its_member_just_before_it_fails_is_not_known(story: Any) -> None:
    failed_once(story)
    story.tell(MemberJoined, subject="m0", gpus=100)
    story.wait(5 * HOUR_S).tell(MemberLost, subject="m0")
    story.wait(1).tell(RunEnded, outcome="failed")
    assert story.gpu_s() == {
        "useful": 100_000,
        "recovering": 100,
        "unattributed": 100 * 5 * HOUR_S,
    }


@pytest.mark.parametrize("minutes", [29, 31, 120])
@pytest.mark.parametrize("how", ["load", "generation", "step"])
def test_silent_attempts_whose_successor_goes_on_from_the_same_step_brought_nothing(
    story: Any, minutes: int, how: str
) -> None:
    failed_once(story)
    for _ in range(4):
        story.wait(60 * minutes).tell(RunEnded, outcome="failed", reason="NCCL init timeout")
        story.wait(60).tell(RunStarted, gpus=100)
    assert story.gpu_s()["starting" if minutes < 30 else "unattributed"] == 100 * 4 * 60 * minutes
    story.wait(60)
    if how == "load":
        story.tell(CheckpointLoaded, step=99)
    elif how == "generation":
        story.tell(GenerationOpened, members=(), gpus=100, step=99)
    story.steps(100, 300, 10)
    told = story.gpu_s()
    assert told == {"useful": 301_000, "starting": 100 * (4 * 60 * minutes + 60)}
    (incident,) = story.report().incidents
    assert incident.lost_gpu_ns == 100 * (4 * 60 * minutes + 60) * 10**9


def test_silent_attempts_before_the_first_step_brought_nothing(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    story.wait(5 * HOUR_S).tell(RunEnded, outcome="failed")
    story.tell(RunStarted, gpus=4)
    story.wait(20 + 1000)
    lines(story, 100, 1000, 100)
    assert story.gpu_s() == {"useful": 4 * 10_000, "starting": 4 * (5 * HOUR_S + 20)}


def test_a_silent_attempt_whose_successor_goes_on_from_further_may_have_done_the_steps(story: Any) -> None:
    failed_once(story)
    story.wait(20 * 60).tell(RunEnded, outcome="failed")
    story.wait(60).tell(RunStarted, gpus=100)
    story.wait(60).tell(CheckpointLoaded, step=180)
    story.steps(181, 300, 10)
    told = story.gpu_s()
    assert told["unattributed"] == 100 * 20 * 60
    assert told["starting"] == 100 * 60


def test_a_fault_after_hours_of_silence_is_charged_with_what_the_silence_brought(story: Any) -> None:
    failed_once(story)
    story.wait(5 * HOUR_S).tell(FaultObserved, fault="nccl init", severity="fatal", subject="n1")
    story.wait(10).tell(RunEnded, outcome="failed")
    assert story.gpu_s()["unattributed"] == 100 * 5 * HOUR_S
    story.tell(RunStarted, gpus=100)
    story.steps(100, 199, 10)
    told = story.gpu_s()
    assert "unattributed" not in told
    assert told["starting"] == 100 * 5 * HOUR_S
    assert told["localising"] == 100 * 10


@pytest.mark.parametrize("every", [1, 100])
def test_work_that_is_lost_before_the_second_line_is_measured_by_the_lines_that_follow(
    story: Any, every: int
) -> None:
    """How many steps a line stands for is known from the second one on."""
    story.tell(RunStarted, gpus=8)
    story.wait(20 + 10 * every)
    story.tell(StepCommitted, step=every)
    story.wait(5 * every).tell(RunEnded, outcome="failed")
    story.wait(60).tell(RunStarted, gpus=8)
    story.wait(20).tell(CheckpointLoaded, step=every)
    story.wait(10 * every)
    lines(story, 2 * every, 11 * every, every)
    told = story.gpu_s()
    assert told["discarded"] == 8 * 5 * every
    assert told.get("dead_undetected", 0) == 0
    assert told["starting"] == 8 * 40


def test_many_steps_before_the_first_line_are_an_assumption_that_is_said(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.wait(1200 + 100)
    lines(story, 1010 // 10, 200, 10)
    (said,) = [remark for remark in story.report().remarks if "first step that was reported" in remark]
    assert "is step 101, and the next ones are 10 apart" in said
    assert "15 min 10 s of which no line tells" in said
    assert "checkpoint.loaded" in said


def test_one_interval_before_the_first_line_is_what_the_log_says(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.wait(20 + 1000)
    lines(story, 99, 999, 100)
    assert not any("first step that was reported" in remark for remark in story.report().remarks)
