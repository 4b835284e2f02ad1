"""Histories that are easily read wrongly: surplus and missing events, clocks apart, faults at odd moments."""

from typing import Any

import pytest

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointBegun,
    CheckpointLoaded,
    CheckpointSaved,
    CollectiveTimed,
    Correction,
    CostRate,
    FaultObserved,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    RunSubmitted,
    StepBegun,
    StepCommitted,
)

S = 10**9


def test_the_end_of_the_attempt_before_does_not_end_this_one(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    story.steps(1, 10, 5).tell(RunStarted, gpus=2)
    story.wait(1).tell(RunEnded, outcome="failed")
    story.steps(11, 1000, 5)
    told = story.report()
    assert told.counts.steps == 1000
    assert told.paid_gpu_ns == 2 * 5001 * S
    assert (told.counts.restarts, told.counts.incidents) == (1, 1)
    assert told.incidents[0].recovered_ns is not None


def test_a_start_that_was_not_recorded(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    story.steps(1, 10, 5).tell(RunEnded, outcome="failed")
    story.wait(60)
    story.steps(11, 100, 5)
    told = story.report()
    assert told.counts.steps == 100
    assert told.partition["useful"] == 2 * 500 * S
    assert told.incidents[0].recovered_ns is not None


def test_an_end_told_twice_changes_nothing(story: Any) -> None:
    story.tell(CostRate, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).tell(RunEnded, outcome="completed")
    story.wait(10).tell(RunEnded, outcome="failed")
    story.wait(10).tell(CostRate, gpus=0)
    assert story.gpu_s() == {"useful": 50, "idle": 20}
    assert story.report().counts.incidents == 0


def test_a_member_that_speaks_up_just_before_the_launch_is_recorded(story: Any) -> None:
    story.tell(MemberJoined, subject="a", gpus=4)
    story.wait(0.001).tell(RunStarted, gpus=8)
    story.tell(MemberJoined, subject="b", gpus=4)
    story.steps(1, 10, 5).tell(RunEnded, outcome="failed")
    story.tell(MemberJoined, subject="a", gpus=4)
    story.wait(0.001).tell(RunStarted, gpus=8)
    story.tell(MemberJoined, subject="b", gpus=4)
    story.steps(11, 20, 5)
    told = story.report()
    assert (told.counts.launches, told.counts.restarts, told.counts.incidents) == (2, 1, 1)
    assert told.partition["missing_members"] == 0
    assert told.partition["useful"] == 8 * 100 * S


def test_a_named_member_that_joins_late_takes_part_at_once(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    story.tell(MemberJoined, subject="a")
    story.tell(GenerationOpened, generation=1, members=("a", "b"))
    story.tell(StepBegun, step=1)
    story.wait(0.001).tell(MemberJoined, subject="b")
    story.wait(4.999).tell(StepCommitted, step=1)
    story.steps(2, 100, 5)
    told = story.report()
    assert told.partition["starting"] < S
    assert told.partition["useful"] == pytest.approx(1000 * S, rel=1e-4)


def test_a_spare_does_not_stand_in_for_a_missing_member(story: Any) -> None:
    story.tell(CostRate, gpus=24)
    story.tell(RunStarted, gpus=16)
    story.tell(MemberJoined, subject="a", gpus=8)
    story.tell(MemberJoined, subject="b", gpus=8)
    story.tell(MemberJoined, subject="c", gpus=8, role="spare")
    story.steps(1, 10, 5).tell(MemberLost, subject="b")
    story.tell(GenerationOpened, generation=2, members=("a",))
    story.steps(11, 20, 10)
    assert story.gpu_s() == {"useful": 1600, "spare": 1200, "missing_members": 800}
    assert story.report().incidents[0].losses == {"missing_members": 800 * S}


def test_held_gpus_are_not_the_runs_size(story: Any) -> None:
    story.tell(CostRate, gpus=24)
    story.wait(1).tell(ReferenceDeclared, step_ns=10 * S)
    story.tell(RunStarted, gpus=16)
    story.steps(1, 10, 15)
    told = story.report()
    assert told.gpus == 16
    assert told.partition["slowdown"] == 16 * 45 * S  # nine of them; the first one's is starting
    assert (told.reference.step_ns, told.reference.gpus) == (10 * S, 16)


def test_mfu_and_ettr_count_only_what_was_kept(story: Any) -> None:
    work = {"model_flops_per_step": 0.5 * 989e12, "chip": "h100"}
    story.tell(ReferenceDeclared, step_ns=1 * S, gpus=1, **work)
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 1).tell(CheckpointLoaded, step=0)
    story.steps(1, 100, 10)
    told = story.report()
    assert told.mfu.measured == pytest.approx(50)
    assert told.ettr.cumulative == pytest.approx(100 / 1100)


@pytest.mark.parametrize(
    ("phase", "category"), [("init", "starting"), ("eval", "checks"), ("data", "data_stall")]
)
def test_a_hang_is_dead_whatever_the_run_was_doing(story: Any, phase: str, category: str) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 20, 5).tell(PhaseEntered, phase=phase)
    story.wait(3)
    onset_ns = round(story.at * S)
    story.wait(600).tell(FaultObserved, fault="hang", onset_ns=onset_ns)
    story.wait(60).tell(ActionTaken, action="restart")
    story.wait(40).tell(RunStarted, gpus=1)
    story.steps(21, 40, 5)
    expected = {"useful": 200, category: 3, "dead_undetected": 600, "localising": 60, "recovering": 40}
    assert story.gpu_s() == expected
    (incident,) = story.report().incidents
    assert incident.lost_gpu_ns >= 700 * S


@pytest.mark.parametrize(("phase", "category"), [("data", "data_stall"), ("eval", "checks")])
def test_dying_unseen_while_waiting_is_not_waiting(story: Any, phase: str, category: str) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 20, 5).tell(PhaseEntered, phase=phase)
    story.wait(3600).tell(RunStarted, gpus=1)
    story.tell(CheckpointLoaded, step=20)
    story.steps(21, 40, 5)
    assert story.gpu_s() == {"useful": 200, category: 5, "dead_undetected": 3595}
    assert story.report().incidents[0].lost_gpu_ns == 3600 * S


def test_an_action_after_a_fault_that_the_step_survives_costs_nothing(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 20, 10).tell(StepBegun, step=21)
    story.wait(3).tell(FaultObserved, fault="xid-63")
    story.wait(1).tell(ActionTaken, action="cordon")
    story.wait(6).tell(StepCommitted, step=21)
    assert story.gpu_s() == {"useful": 210}


def test_a_fault_that_a_blocking_checkpoint_survives(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 20, 5).tell(CheckpointBegun, step=20)
    story.wait(10).tell(FaultObserved, fault="xid-63")
    story.wait(50).tell(CheckpointSaved, step=20)
    story.steps(21, 40, 5)
    assert story.gpu_s() == {"useful": 200, "checkpoint_stall": 60}


def test_work_that_is_never_done_again_is_charged_to_who_rolled_it_back(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 1).tell(FaultObserved, fault="sdc")
    story.tell(CheckpointLoaded, step=40)
    story.steps(41, 42, 1).tell(RunEnded, outcome="stopped")
    assert story.gpu_s() == {"useful": 42, "discarded": 58, "recomputed": 2}
    assert story.report().incidents[0].losses == {"discarded": 58 * S, "recomputed": 2 * S}


def test_a_fault_does_not_hide_the_slow_steps_after_it(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 200, 10).tell(FaultObserved, fault="xid-63")
    story.steps(201, 500, 30)
    found = {incident.what: incident.lost_gpu_ns // S for incident in story.report().incidents}
    assert found == {"slow steps, nothing recorded says why": 5980, "xid-63": 20}


def test_degradations_end_one_by_one(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 50, 5).tell(FaultObserved, fault="throttle", subject="n1", severity="degraded")
    story.steps(51, 60, 6).tell(FaultObserved, fault="throttle", subject="n2", severity="degraded")
    story.steps(61, 70, 7).tell(ActionTaken, action="restore", subject="n99")
    story.steps(71, 80, 7).tell(ActionTaken, action="replace", subject="n2")
    story.steps(81, 90, 6).tell(RunEnded, outcome="completed")
    by_subject = {incident.subject: incident for incident in story.report().incidents}
    assert by_subject["n1"].losses == {"slowdown": 20 * S}
    assert by_subject["n2"].losses == {"slowdown": 40 * S}
    assert all(incident.recovered_ns for incident in by_subject.values())


def test_a_node_drained_twice_is_drained_once(story: Any) -> None:
    story.tell(CostRate, gpus=16)
    story.tell(RunStarted, gpus=8)
    for _ in range(2):
        story.tell(ActionTaken, action="drain", subject="n2", gpus=8)
    story.steps(1, 10, 5).tell(ActionTaken, action="restore", subject="n2", gpus=8)
    story.steps(11, 20, 5)
    assert story.gpu_s() == {"useful": 800, "drained": 400, "idle": 400}


def test_commits_alone_lose_no_step_at_a_start(story: Any) -> None:
    for attempt in range(10):
        story.tell(RunStarted, gpus=1)
        story.wait(30)
        for step in range(10 * attempt + 1, 10 * attempt + 11):
            story.wait(10).tell(StepCommitted, step=step)
    assert story.gpu_s() == {"starting": 300, "useful": 1000}


def test_a_step_log_with_an_outage_and_a_rollback(story: Any) -> None:
    """The log of a single trainer: steps 1-100, nothing for 300 s, and then 81 again."""
    story.tell(RunStarted, gpus=8)
    for step in range(1, 101):
        story.wait(10).tell(StepCommitted, step=step)
    story.wait(300)
    for step in range(81, 201):
        story.wait(10).tell(StepCommitted, step=step)
    told = story.report()
    assert story.gpu_s() == {"useful": 16_000, "recomputed": 1_600, "dead_undetected": 2_400}
    assert told.ettr.cumulative == pytest.approx(0.8)
    (incident,) = told.incidents
    assert (incident.recovered_ns - incident.began_ns) / S == pytest.approx(310)


def test_late_words_of_other_members_roll_nothing_back(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    story.steps(1, 100, 1).tell(RunStarted, gpus=2)
    story.tell(CheckpointLoaded, step=80, subject="a")
    story.steps(81, 83, 1).tell(CheckpointLoaded, step=80, subject="b")
    story.tell(CheckpointSaved, step=100)  # the old attempt's, still on its way
    story.tell(StepCommitted, step=82, subject="b")
    story.steps(84, 110, 1)
    told = story.report()
    assert (told.counts.loads, told.counts.incidents, told.counts.steps) == (1, 1, 110)
    assert told.partition["recomputed"] == 2 * 20 * S


def test_steps_are_counted_right_after_a_jump(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 1).tell(CheckpointLoaded, step=200)
    story.steps(201, 210, 1).tell(CheckpointLoaded, step=50)
    story.steps(51, 52, 1)
    assert story.report().counts.steps == 52


def test_a_worker_that_exits_before_its_run_completes_is_no_lasting_incident(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.tell(MemberJoined, subject="a")
    story.steps(1, 10, 5).tell(MemberLost, subject="a", reason="exit 0")
    story.wait(0.5).tell(RunEnded, outcome="completed")
    assert story.report().incidents[0].recovered_ns is not None


def test_a_node_failure_of_a_job_that_reports_nothing(story: Any) -> None:
    """Two attempts as Slurm accounts for them: the second one's time is not the failure's doing."""
    story.tell(RunStarted, gpus=32)
    story.wait(4 * 3600).tell(FaultObserved, fault="node-fail", subject="gpu1")
    story.tell(RunEnded, outcome="failed", reason="NODE_FAIL")
    story.tell(RunSubmitted, gpus=32)
    story.wait(600).tell(RunStarted, gpus=32)
    story.wait(4 * 3600).tell(RunEnded, outcome="completed")
    told = story.report()
    assert told.partition["unattributed"] == told.paid_gpu_ns == 32 * 8 * 3600 * S
    (incident,) = told.incidents
    assert incident.lost_gpu_ns == 0
    assert incident.recovered_ns - incident.began_ns == 600 * S


def test_queueing_after_a_failure_is_the_failures_doing(story: Any) -> None:
    story.tell(CostRate, gpus=2)
    story.tell(RunStarted, gpus=2)
    story.steps(1, 10, 5).tell(RunEnded, outcome="failed")
    story.tell(RunSubmitted)
    story.wait(600).tell(RunStarted, gpus=2)
    story.steps(11, 20, 5)
    assert story.report().incidents[0].losses == {"queued": 1200 * S}


def test_an_incident_begins_with_its_fault(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.wait(600).tell(FaultObserved, fault="flap")
    story.wait(600)
    story.steps(1, 100, 5)
    assert story.report().incidents[0].losses == {"starting": 8 * 600 * S}


def test_a_correction_does_not_lengthen_the_run(story: Any) -> None:
    story.tell(CostRate, gpus=8)
    story.tell(RunStarted, gpus=8)
    story.steps(1, 10, 5)
    before = story.report().paid_gpu_ns
    story.wait(86_400).tell(Correction, target=story.events[5].id)
    assert story.report().paid_gpu_ns == before


def test_bandwidth_passes_over_what_has_none(story: Any) -> None:
    story.tell(CollectiveTimed, collective="all-reduce", size_bytes=2**40, ranks=1, duration_ns=S)
    story.tell(CollectiveTimed, collective="all-reduce", size_bytes=2**30, ranks=16, duration_ns=S)
    assert story.report().bandwidth.measured == pytest.approx(2**30 * 2 * 15 / 16 / 1e9)


def test_a_span_of_checkpoints_that_goes_backwards_is_none(story: Any) -> None:
    story.tell(ReferenceDeclared, step_ns=S, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.tell(CheckpointLoaded, step=100)
    story.wait(10).tell(CheckpointSaved, step=50)
    assert story.report().goodput.checkpoint_span is None


def test_more_flops_than_the_peak_allows_are_said_and_give_no_share(story: Any) -> None:
    story.tell(ReferenceDeclared, model_flops_per_step=3 * 989e12 * 10, chip="h100", params=10**9)
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 10)
    told = story.report()
    assert told.goodput.program is None
    assert any("MFU of 300.0 % is impossible" in remark for remark in told.remarks)


@pytest.mark.slow
def test_causes_in_a_circle_come_to_an_end() -> None:
    ids = [f"e{number}" for number in range(6)]
    circle: list[AnyEvent] = [
        StepBegun(id=own, occurred_ns=number, step=1, causes=tuple(other for other in ids if other != own))
        for number, own in enumerate(ids)
    ]
    ledger = Ledger()
    ledger.add(circle)
    told = report("circle", ledger.fold)
    assert sum(told.partition.values()) == told.paid_gpu_ns


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_correction_of_a_correction(story: Any, order: tuple[int, int]) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 2, 5)
    first = Correction(id="x-1", occurred_ns=20 * S, target=story.events[-1].id)
    second = Correction(id="x-2", occurred_ns=21 * S, target="x-1")
    corrections = [first, second]
    ledger = Ledger()
    ledger.add(story.events)
    for index in order:
        ledger.add([corrections[index]])
    known = Ledger(corrections)
    known.add([*story.events, *corrections])
    expected = story.report()
    assert report("story", ledger.fold) == report("story", known.fold) == expected


def test_a_correction_in_one_batch_with_its_targets_double(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 2, 5)
    correction = Correction(id="x", occurred_ns=20 * S, target=story.events[-1].id)
    ledger = Ledger()
    ledger.add(story.events)
    ledger.add([story.events[-1], correction])
    assert report("story", ledger.fold).counts.steps == 1


def test_the_effect_of_an_event_that_is_taken_back_returns_to_its_own_time(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 1, 5)
    story.wait(5)
    cause = story.tell(FaultObserved, fault="hang")
    effect = StepCommitted(id="e", occurred_ns=8 * S, step=2, causes=(cause,))
    ledger = Ledger()
    ledger.add([*story.events, effect])
    ledger.add([Correction(id="x", occurred_ns=20 * S, target=cause)])
    expected = Ledger()
    expected.add([*story.events[:-1], effect])
    assert report("story", ledger.fold) == report("story", expected.fold)


def test_an_effect_that_is_taken_back_and_given_back_has_its_own_time() -> None:
    cause = RunStarted(id="a", occurred_ns=9 * S, gpus=1)
    effect = CostRate(id="b", occurred_ns=5 * S, gpus=1, causes=("a",))
    end = CostRate(id="c", occurred_ns=20 * S, gpus=0)
    ledger = Ledger()
    ledger.add([cause, effect, end])
    for number, target in enumerate(("b", "a", "x-0")):
        ledger.add([Correction(id=f"x-{number}", occurred_ns=(30 + number) * S, target=target)])
    assert report("any", ledger.fold).paid_gpu_ns == 15 * S
