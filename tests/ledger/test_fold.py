"""The effect of each kind of event on the partition: one short history per test."""

from typing import Any, get_args

import pytest

from holdfast.ledger.fold import _HANDLERS
from holdfast.record.events import (
    ActionTaken,
    CheckpointBegun,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CollectiveTimed,
    CostRate,
    DataMoved,
    FaultObserved,
    GenerationOpened,
    KnownEvent,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    RunSubmitted,
    StepBegun,
    StepCommitted,
    Unknown,
)

S = 10**9


def test_the_ledger_has_something_to_do_with_every_kind() -> None:
    assert set(_HANDLERS) == {*get_args(KnownEvent), Unknown}


def test_a_quiet_run_is_useful_but_for_its_start(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.wait(30).tell(PhaseEntered, phase="init")
    story.wait(30)
    story.steps(1, 10, 5)
    story.tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {"starting": 480, "useful": 400}


def test_a_takeover_is_counted_and_is_no_answer_to_a_failure(story: Any) -> None:
    def told(*, takes_over: bool) -> dict[str, int]:
        one = type(story)()
        one.tell(RunStarted, gpus=1)
        one.steps(1, 10, 5)
        one.tell(MemberLost, subject="m0")
        one.wait(5)
        if takes_over:
            one.tell(ActionTaken, action="take over", subject="coordinator")
        one.wait(5).tell(ActionTaken, action="replace", subject="m0")
        one.wait(5)
        one.steps(11, 20, 5)
        assert one.report().counts.takeovers == takes_over
        return dict(one.gpu_s())

    assert told(takes_over=True) == told(takes_over=False)


def test_the_first_steps_excess_is_starting(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 1, 65)
    story.steps(2, 50, 5)
    assert story.gpu_s() == {"starting": 60, "useful": 250}


def test_stalls_are_not_part_of_the_step(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    for step in range(1, 21):
        story.tell(PhaseEntered, phase="data")
        story.wait(1).tell(StepBegun, step=step)
        story.wait(4).tell(StepCommitted, step=step)
        if step % 10 == 0:
            story.tell(CheckpointBegun, step=step)
            story.wait(3).tell(CheckpointSaved, step=step)
    assert story.gpu_s() == {"data_stall": 40, "useful": 160, "checkpoint_stall": 12}


def test_a_checkpoint_in_the_background_stalls_nothing(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).tell(CheckpointBegun, step=10, blocking=False)
    story.steps(11, 20, 5).tell(CheckpointSaved, step=10)
    assert story.gpu_s() == {"useful": 100}


def test_a_measured_stall_is_taken_out_of_the_step(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).wait(2).tell(CheckpointSaved, step=10, stall_ns=2 * S)
    story.steps(11, 20, 5)
    assert story.gpu_s() == {"useful": 100, "checkpoint_stall": 2}


def test_a_checkpoint_that_fails_ends_its_stall(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).tell(CheckpointBegun, step=10)
    story.wait(7).tell(CheckpointFailed, step=10, reason="disk full")
    story.steps(11, 20, 5)
    assert story.gpu_s() == {"useful": 100, "checkpoint_stall": 7}


def test_a_snapshot_that_fails_ends_no_stall(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).tell(CheckpointBegun, step=10)
    story.wait(3).tell(CheckpointFailed, step=10, reason="it is damaged", is_snapshot=True)
    story.wait(4).tell(CheckpointFailed, step=10, reason="disk full")
    story.steps(11, 20, 5)
    assert story.gpu_s() == {"useful": 100, "checkpoint_stall": 7}


def test_evaluation_and_planned_stops(story: Any) -> None:
    story.tell(CostRate, gpus=4)
    story.tell(RunStarted, gpus=4)
    story.steps(1, 10, 5).tell(PhaseEntered, phase="eval")
    story.wait(20)
    story.steps(11, 20, 5).tell(RunEnded, outcome="stopped")
    story.wait(100).tell(RunStarted, gpus=4)
    story.steps(21, 30, 5)
    assert story.gpu_s() == {"useful": 600, "checks": 80, "planned_stop": 400}
    assert story.report().counts.incidents == 0


def test_held_gpus_are_queued_then_used_then_idle(story: Any) -> None:
    story.tell(CostRate, gpus=10, usd_per_gpu_hour=2.0)
    story.wait(5).tell(RunSubmitted, gpus=8)
    story.wait(10).tell(RunStarted, gpus=8)
    story.steps(1, 10, 5).tell(RunEnded, outcome="completed")
    story.wait(7).tell(CostRate, gpus=0)
    story.wait(1000).tell(CostRate, gpus=0)
    # 10 idle for 5 s, 2 idle for 50 s, 10 idle for 7 s
    assert story.gpu_s() == {"idle": 220, "queued": 100, "useful": 400}
    assert story.report().goodput.scheduling == pytest.approx(400 / 720)


def test_preempted_and_held_is_queued(story: Any) -> None:
    story.tell(CostRate, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).tell(RunEnded, outcome="preempted")
    story.wait(40).tell(RunStarted, gpus=1)
    story.steps(11, 20, 5)
    assert story.gpu_s() == {"useful": 100, "queued": 40}


def test_a_hang_is_dead_until_it_is_noticed_then_localised_then_recovered(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    story.steps(1, 50, 5).tell(StepBegun, step=51)
    story.wait(2)
    onset_ns = round(story.at * S)
    story.wait(300)
    fault = story.tell(FaultObserved, fault="hang", subject="node-7", onset_ns=onset_ns)
    story.wait(60).tell(ActionTaken, action="restart", causes=(fault,))
    story.wait(30).tell(RunStarted, gpus=4)
    story.wait(90).tell(CheckpointLoaded, step=40)
    story.steps(41, 60, 5)
    told = story.report()
    assert story.gpu_s() == {
        "useful": 1200,
        "discarded": 8,
        "dead_undetected": 1200,
        "localising": 240,
        "recovering": 120,
        "starting": 360,
        "recomputed": 200,
    }
    (incident,) = told.incidents
    assert incident.what == "hang"
    assert incident.subject == "node-7"
    assert incident.steps_rolled_back == 10
    assert incident.restarts == 1
    assert incident.lost_gpu_ns == told.paid_gpu_ns - told.partition["useful"]
    assert incident.evidence[0] == fault


def test_a_hang_while_waiting_for_data_is_not_waiting_for_data(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 50, 5).tell(PhaseEntered, phase="data")
    story.wait(3)
    onset_ns = round(story.at * S)
    story.wait(100).tell(FaultObserved, fault="storage-hang", onset_ns=onset_ns)
    story.wait(20).tell(RunEnded, outcome="failed")
    assert story.gpu_s() == {"useful": 250, "data_stall": 3, "dead_undetected": 100, "localising": 20}


def test_without_an_onset_a_step_cannot_have_been_worked_on_for_longer_than_a_step(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 50, 5).tell(StepBegun, step=51)
    story.wait(605).tell(RunEnded, outcome="failed", reason="watchdog")
    assert story.gpu_s() == {"useful": 250, "discarded": 5, "dead_undetected": 600}


def test_without_an_onset_an_incident_begins_where_the_work_must_have_ended(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    for name in ("a", "b"):
        story.tell(MemberJoined, subject=name)
    story.steps(1, 50, 5).tell(StepBegun, step=51)
    story.wait(605)
    fault = story.tell(FaultObserved, fault="no commit for too long", subject="b")
    story.tell(MemberLost, subject="b", causes=(fault,))
    story.tell(MemberJoined, subject="c")
    story.wait(3).tell(GenerationOpened, members=("a", "c"), step=50)
    story.steps(51, 60, 5)
    (incident,) = story.report().incidents
    assert (incident.began_ns, incident.noticed_ns, incident.recovered_ns) == (255 * S, 855 * S, 863 * S)
    losses_s = {key: part / S for key, part in incident.losses.items()}
    assert losses_s == {"dead_undetected": 1200, "discarded": 10, "recovering": 6}


def test_a_generation_that_is_opened_again_with_the_same_members_broke(story: Any) -> None:
    """All members waited for each other: none is lost, and all begin the step again."""
    story.tell(RunStarted, gpus=2)
    for name in ("a", "b"):
        story.tell(MemberJoined, subject=name)
    story.tell(GenerationOpened, members=("a", "b"), step=0)
    story.steps(1, 50, 5).tell(StepBegun, step=51)
    story.wait(605)
    story.tell(GenerationOpened, members=("a", "b"), step=50, reason="every member waited for another one")
    story.steps(51, 60, 5)
    (incident,) = story.report().incidents
    assert incident.what == "generation broke"
    assert (incident.began_ns, incident.recovered_ns) == (255 * S, 860 * S)
    assert story.gpu_s() == {"useful": 600, "discarded": 10, "dead_undetected": 1200}


def test_an_onset_that_is_told_after_the_loss_counts(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.tell(MemberJoined, subject="a")
    story.steps(1, 50, 5).wait(60)
    lost = story.tell(MemberLost, subject="a")
    story.tell(FaultObserved, fault="stopped", subject="a", onset_ns=250 * S, causes=(lost,))
    (incident,) = story.report().incidents
    assert (incident.began_ns, incident.noticed_ns) == (250 * S, 310 * S)


def test_a_process_that_dies_within_a_step_is_no_silence(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.tell(MemberJoined, subject="a")
    story.steps(1, 50, 5).tell(StepBegun, step=51)
    story.wait(4).tell(MemberLost, subject="a")
    (incident,) = story.report().incidents
    assert incident.began_ns == incident.noticed_ns == 254 * S


def test_a_script_that_tells_nothing_is_not_recovering_once_it_is_launched_again(story: Any) -> None:
    """Its generations are recorded when an attempt is over, and name no step."""
    for attempt, names in enumerate((("a", "b"), ("c", "d")), start=1):
        story.tell(RunStarted, gpus=2)
        story.tell(GenerationOpened, generation=attempt, members=names)
        for name in names:
            story.tell(MemberJoined, subject=name)
        story.wait(100)
        if attempt == 1:
            story.tell(FaultObserved, fault="SIGKILL", subject="b")
            story.tell(MemberLost, subject="b")
            story.tell(RunEnded, outcome="failed")
            story.tell(CostRate, gpus=2)
            story.wait(7)
    story.tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {"unattributed": 400, "recovering": 14}
    (incident,) = story.report().incidents
    assert incident.recovered_ns is not None
    assert incident.recovered_ns - incident.began_ns == 7 * S


def test_after_its_last_step_a_run_writes_its_checkpoint_and_leaves(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    story.steps(1, 50, 5).tell(CheckpointBegun, step=50, blocking=False)
    story.wait(6).tell(CheckpointSaved, step=50, stall_ns=2 * S)
    story.wait(30).tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {"useful": 500, "checkpoint_stall": 12, "starting": 60}


def test_a_fault_the_run_survives_costs_nothing(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 20, 5).tell(FaultObserved, fault="xid-63", subject="gpu-3")
    story.steps(21, 40, 5)
    told = story.report()
    assert story.gpu_s() == {"useful": 200}
    assert told.incidents[0].lost_gpu_ns == 0
    assert told.incidents[0].recovered_ns is not None


def test_nested_rollbacks_charge_each_incident_with_its_own(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 1)
    for resume_after, last in ((50, 80), (60, 70), (40, 120)):
        story.tell(FaultObserved, fault=f"fault-{resume_after}")
        story.tell(RunEnded, outcome="failed")
        story.tell(RunStarted, gpus=1)
        story.tell(CheckpointLoaded, step=resume_after)
        story.steps(resume_after + 1, last, 1)
    told = story.report()
    assert story.gpu_s() == {"useful": 120, "recomputed": 30 + 10 + 60}
    recomputed = {incident.what: incident.losses["recomputed"] // S for incident in told.incidents}
    # After the third, 41-70 are its own; 71-80 are what the second took, and 81-100 what the first did.
    assert recomputed == {"fault-50": 30 + 20, "fault-60": 10 + 10, "fault-40": 30}


def test_what_is_rolled_back_and_not_done_again_is_discarded(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 1).tell(CheckpointLoaded, step=40)
    assert story.gpu_s() == {"useful": 40, "discarded": 60}
    story.steps(41, 60, 1)
    assert story.gpu_s() == {"useful": 60, "discarded": 40, "recomputed": 20}
    story.steps(61, 101, 1)
    assert story.gpu_s() == {"useful": 101, "recomputed": 60}
    assert [incident.what for incident in story.report().incidents] == ["rollback"]


def test_progress_seen_only_through_checkpoints(story: Any) -> None:
    story.tell(ReferenceDeclared, step_ns=8 * S, gpus=4)
    story.tell(RunStarted, gpus=4)
    story.wait(100).tell(CheckpointLoaded, step=40)
    story.wait(200).tell(CheckpointSaved, step=60)
    story.wait(180).tell(CheckpointSaved, step=80)
    story.wait(500).tell(RunStarted, gpus=4)
    story.wait(100).tell(CheckpointLoaded, step=60)
    story.wait(180).tell(CheckpointSaved, step=80)
    story.wait(160).tell(CheckpointSaved, step=100)
    told = story.report()
    assert story.gpu_s() == {
        "starting": 4 * (100 + 40 + 100 + 20),
        "useful": 4 * 60 * 8,
        "slowdown": 4 * 20,
        "discarded": 4 * 160,
        "dead_undetected": 4 * 340,
        "recomputed": 4 * 160,
    }
    assert told.goodput.checkpoint_span == pytest.approx(60 * 8 / 1420)


def test_a_checkpoint_that_reaches_past_the_old_mark_is_split(story: Any) -> None:
    story.tell(ReferenceDeclared, step_ns=1 * S, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.tell(CheckpointLoaded, step=0)
    story.wait(10).tell(CheckpointSaved, step=10)
    story.tell(CheckpointLoaded, step=5)
    story.wait(20).tell(CheckpointSaved, step=25)
    assert story.gpu_s() == {"useful": 25, "recomputed": 5}


def test_a_lost_member_is_missing_until_it_returns(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    for member in "abcd":
        story.tell(MemberJoined, subject=member)
    story.tell(GenerationOpened, generation=1)
    story.steps(1, 20, 3).tell(StepBegun, step=21)
    story.wait(1).tell(MemberLost, subject="d", reason="SIGKILL")
    story.wait(0.5).tell(GenerationOpened, generation=2, step=20)
    story.steps(21, 40, 4).tell(MemberJoined, subject="d")
    story.steps(41, 44, 4).tell(GenerationOpened, generation=3)
    story.steps(45, 54, 3)
    told = story.report()
    assert story.gpu_s() == {
        "useful": 54 * 12,  # the same work whether three do it or four
        "discarded": 4,
        "recovering": 2,
        "missing_members": 80,
        "starting": 16,  # d, until the generation that includes it
    }
    (incident,) = told.incidents
    assert incident.members_lost == 1
    assert incident.losses == {"discarded": 4 * S, "recovering": 2 * S, "missing_members": 80 * S}
    assert told.counts.members_lost == 1


def test_spares_and_drained_nodes(story: Any) -> None:
    story.tell(CostRate, gpus=24)
    story.tell(RunStarted, gpus=16)
    for node in ("n1", "n2"):
        story.tell(MemberJoined, subject=node, gpus=8)
    story.tell(MemberJoined, subject="n3", gpus=8, role="spare")
    story.steps(1, 10, 5).tell(MemberLost, subject="n2")
    story.tell(ActionTaken, action="drain", subject="n2", gpus=8)
    story.tell(GenerationOpened, generation=2, members=("n1", "n3"))
    story.steps(11, 20, 5).tell(ActionTaken, action="restore", subject="n2", gpus=8)
    story.tell(MemberJoined, subject="n2", gpus=8, role="spare")
    story.steps(21, 30, 5)
    assert story.gpu_s() == {"useful": 2400, "spare": 800, "drained": 400}


def test_losing_a_spare_is_no_incident(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.tell(MemberJoined, subject="a")
    story.tell(MemberJoined, subject="b", role="spare")
    story.steps(1, 10, 5).tell(MemberLost, subject="b")
    story.steps(11, 20, 5)
    assert story.gpu_s() == {"useful": 100, "spare": 50}
    assert story.report().counts.incidents == 0


def test_a_shrunk_attempt_is_missing_what_it_was_meant_to_have(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    for member in "abc":
        story.tell(MemberJoined, subject=member)
    story.wait(10)
    story.steps(1, 10, 5)
    assert story.gpu_s() == {"starting": 40, "useful": 150, "missing_members": 50}


def test_an_attempt_without_an_end_ends_where_the_next_begins(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    story.steps(1, 20, 5).tell(StepBegun, step=21)
    story.wait(65).tell(RunStarted, gpus=2)
    story.steps(21, 40, 5)
    assert story.gpu_s() == {"useful": 400, "discarded": 10, "dead_undetected": 120}
    assert story.report().incidents[0].what == "unexplained restart"


def test_overlapping_attempts_share_their_gpus(story: Any) -> None:
    """The old attempt's end arrives after the new one's start: it is not paid for twice, nor ends the new."""
    story.tell(RunStarted, gpus=2)
    story.steps(1, 10, 5).tell(RunStarted, gpus=2)
    story.steps(11, 12, 5)
    story.steps(13, 20, 5)
    assert story.report().paid_gpu_ns == 200 * S


def test_a_run_that_never_ends_is_open_to_the_last_event(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).wait(3).tell(PhaseEntered, phase="step")
    assert story.gpu_s() == {"useful": 50, "unattributed": 3}


def test_a_job_that_tells_nothing_is_unattributed(story: Any) -> None:
    story.tell(RunSubmitted, gpus=8, name="train", team="nlp")
    story.wait(60).tell(RunStarted, gpus=8)
    story.wait(1000).tell(RunEnded, outcome="failed", reason="NODE_FAIL")
    told = story.report()
    assert story.gpu_s() == {"unattributed": 8000}
    assert told.goodput.scheduling == 1.0
    assert told.goodput.runtime is told.goodput.total is told.ettr.cumulative is None
    assert (told.name, told.team) == ("train", "nlp")


def test_a_job_that_tells_nothing_is_unattributed_when_it_is_resized_too(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.wait(100).tell(GenerationOpened, gpus=16)
    story.wait(100).tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {"unattributed": 800 + 1600}


def test_several_members_words_on_one_commit_are_one_commit(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    for step in range(1, 11):
        story.wait(4).tell(StepCommitted, step=step, subject="a")
        story.wait(1).tell(StepCommitted, step=step, subject="b")
    told = story.report()
    assert told.counts.steps == 10
    assert told.counts.incidents == 0
    assert told.partition["recomputed"] == 0


def test_a_lone_trainers_step_log_shows_its_rollback(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    for step in (*range(1, 51), *range(31, 81)):
        story.wait(5).tell(StepCommitted, step=step)
    told = story.report()
    assert told.partition["recomputed"] // S == 100
    assert told.incidents[0].what == "rollback"


def test_steps_may_be_counted_from_zero(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(0, 9, 5)
    assert story.report().counts.steps == 10


def test_a_degraded_fault_answers_for_the_slow_steps_until_something_is_done(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 5).tell(FaultObserved, fault="thermal", subject="cdu-2", severity="degraded")
    story.steps(101, 150, 8).tell(ActionTaken, action="rebalance")
    story.steps(151, 200, 5)
    told = story.report()
    assert story.gpu_s() == {"useful": 1000, "slowdown": 150}
    (incident,) = told.incidents
    assert (incident.what, incident.subject, incident.losses) == ("thermal", "cdu-2", {"slowdown": 150 * S})


def test_a_commit_after_the_end_is_progress_without_time(story: Any) -> None:
    story.tell(CostRate, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).tell(RunEnded, outcome="failed")
    story.wait(1).tell(StepCommitted, step=11)
    story.wait(9).tell(RunStarted, gpus=1)
    story.tell(CheckpointLoaded, step=11)
    story.steps(12, 20, 5)
    told = story.report()
    assert story.gpu_s() == {"useful": 95, "recovering": 10}
    assert told.incidents[0].steps_rolled_back == 0


def test_a_change_of_size_is_not_a_slowdown(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    story.tell(GenerationOpened, generation=1)
    story.steps(1, 30, 3).tell(GenerationOpened, generation=2, gpus=3)
    story.steps(31, 60, 4)
    assert story.gpu_s() == {"useful": 720}


def test_mfu_and_bandwidth_are_told_against_their_references(story: Any) -> None:
    story.tell(
        ReferenceDeclared,
        model_flops_per_step=0.41 * 989e12 * 16_384 * 10,
        hardware_flops_per_step=0.5 * 989e12 * 16_384 * 10,
        tokens_per_step=16_000_000,
        params=405_000_000_000,
        chip="H100",
    )
    story.tell(RunStarted, gpus=16_384)
    story.steps(1, 20, 10)
    story.tell(CollectiveTimed, collective="all-reduce", size_bytes=2**34, ranks=32, duration_ns=10**8)
    told = story.report()
    assert told.mfu is not None
    assert told.mfu.measured == pytest.approx(41.0)
    assert told.mfu.sentence.startswith("41.0 % where 41.0 % is the reference (Llama 3 405B, 16,384 H100")
    assert told.hfu_percent == pytest.approx(50.0)
    assert told.goodput.program == pytest.approx(0.41)
    assert told.useful_parts is not None
    assert told.useful_parts.rest_gpu_ns / told.partition["useful"] == pytest.approx(0.5)
    assert told.useful_work.tokens_per_gpu_hour == pytest.approx(16_000_000 * 20 / (16_384 * 200 / 3600))
    assert told.bandwidth is not None
    assert told.bandwidth.measured == pytest.approx(2**34 * 2 * 31 / 32 / 0.1 / 1e9)
    assert told.bandwidth.reach == "network"
    assert "370.0 GB/s is the reference" in told.bandwidth.sentence


def test_the_bandwidth_told_is_the_one_between_nodes(story: Any) -> None:
    story.tell(ReferenceDeclared, chip="H100")
    story.tell(CollectiveTimed, collective="all-reduce", size_bytes=2**34, ranks=8, duration_ns=10**8)
    within = story.report().bandwidth
    assert (within.reach, within.reference) == ("nvlink", 480.0)
    story.tell(CollectiveTimed, collective="all-reduce", size_bytes=2**20, ranks=64, duration_ns=10**7)
    assert story.report().bandwidth.reach == "network"


def test_an_unknown_chip_gives_no_reference_and_no_error(story: Any) -> None:
    story.tell(ReferenceDeclared, model_flops_per_step=1e15, params=7_000_000_000, chip="TPU v9")
    story.tell(RunStarted, gpus=8)
    story.steps(1, 5, 1)
    assert story.report().mfu is None


def test_bytes_that_were_moved_are_counted_and_take_no_time(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.steps(1, 10, 10)
    before = story.report()
    story.tell(CheckpointSaved, step=10, size_bytes=700)
    story.tell(CheckpointSaved, step=10)
    story.tell(DataMoved, what="egress", size_bytes=300, usd=2.5)
    story.tell(DataMoved, what="egress", size_bytes=100)
    told = story.report()
    saved, egress = told.moved["checkpoints_saved"], told.moved["egress"]
    assert (saved.times, saved.sized, saved.size_bytes, saved.unpriced_bytes) == (2, 1, 700, 700)
    assert (egress.times, egress.size_bytes, egress.usd, egress.unpriced_bytes) == (2, 400, 2.5, 100)
    assert told.partition == before.partition
    assert set(told.moved) == {"checkpoints_saved", "egress"}


def test_unknown_events_are_counted_and_passed_over(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 5, 1)
    story.events.append(Unknown(id="zz", occurred_ns=5 * S, kind="moon.risen", body=b"{}"))
    assert story.report().counts.unknown_events == 1
