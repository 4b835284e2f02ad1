"""Parts of a report besides the sums: names of incidents, reach of checkpoints, the recorded price."""

from typing import Any

import pytest

from holdfast.ledger.failures import stall_s
from holdfast.ledger.opinions import with_opinions
from holdfast.ledger.report import CheckpointCosts, Report
from holdfast.record.events import (
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointVerified,
    CollectiveTimed,
    CostRate,
    FaultObserved,
    MembersTimed,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
)

S = 10**9


def named(told: Report) -> dict[str, str]:
    return {incident.name: incident.what for incident in told.incidents}


def test_incidents_keep_their_names_as_the_record_grows(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    grown: dict[str, str] = {}
    for number in range(1, 6):
        story.steps(10 * number - 9, 10 * number, 5)
        story.tell(FaultObserved, fault=f"fault {number}")
        story.tell(RunEnded, outcome="failed")
        # Every outage is shorter than the one before, so that the costliest is always the first.
        story.wait(600 - 100 * number).tell(RunStarted, gpus=8)
        before, grown = grown, named(story.report())
        assert before.items() <= grown.items()
    assert grown == {str(number): f"fault {number}" for number in range(1, 6)}


def test_a_fault_that_is_noticed_late_renames_none(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.steps(1, 50, 5)
    story.tell(FaultObserved, fault="throttling", subject="node-1", severity="degraded")
    story.steps(51, 60, 7)
    before = named(story.report())
    story.tell(FaultObserved, fault="bad cable", subject="node-2", severity="degraded", onset_ns=10**9)
    story.steps(61, 70, 7)
    assert before == {"1": "throttling"}
    assert named(story.report()) == {"1": "throttling", "2": "bad cable"}


def slow_throughout(story: Any, **timed: int) -> Report:
    """Forty steps of 10 s; then the members' times are recorded."""
    story.tell(RunStarted, gpus=4)
    story.steps(1, 40, 10)
    story.tell(MembersTimed, subject="n0.1", steps=40, step_ns=10 * S, **timed)
    told: Report = story.report()
    return told


def test_a_run_that_waits_for_one_member_is_held_against_the_others(story: Any) -> None:
    told = slow_throughout(story, quick_ns=round(0.9 * S), slowest_ns=round(9.9 * S))
    assert told.reference is not None
    assert (told.reference.origin, told.reference.step_ns) == ("members", S)
    parts = [told.partition[key] for key in ("useful", "slowdown", "starting")]
    assert parts == [160 * S, 39 * 4 * 9 * S, 4 * 9 * S]  # the first step after a start is always slow
    (incident,) = told.incidents
    assert (incident.what, incident.subject) == ("slow steps, all waited for one member", "n0.1")


def test_members_that_differ_a_little_make_no_run_slow(story: Any) -> None:
    told = slow_throughout(story, quick_ns=round(9.2 * S), slowest_ns=round(9.6 * S))
    assert told.reference is not None
    assert (told.reference.origin, told.reference.step_ns) == ("estimated", 10 * S)
    assert told.incidents == ()


def test_steps_that_were_quicker_than_the_members_say_count(story: Any) -> None:
    story.tell(RunStarted, gpus=4)
    story.steps(1, 40, 5)
    story.steps(41, 60, 10)
    story.tell(MembersTimed, subject="n0.1", steps=20, step_ns=10 * S, quick_ns=4 * S, slowest_ns=9 * S)
    told = story.report()
    assert told.reference is not None
    assert (told.reference.origin, told.reference.step_ns) == ("estimated", 5 * S)


def test_a_declared_reference_goes_before_what_members_say(story: Any) -> None:
    story.tell(ReferenceDeclared, step_ns=8 * S, gpus=4)
    told = slow_throughout(story, quick_ns=S, slowest_ns=9 * S)
    assert told.reference is not None
    assert (told.reference.origin, told.reference.step_ns) == ("declared", 8 * S)


def test_slow_stretches_have_names_of_their_own(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.tell(ReferenceDeclared, step_ns=5 * 10**9, gpus=8)
    story.steps(1, 200, 5).steps(201, 300, 7).steps(301, 500, 5).steps(501, 700, 8).steps(701, 800, 5)
    told = story.report()
    began_ns = {incident.name: incident.began_ns for incident in told.incidents}
    assert sorted(began_ns) == ["slow-1", "slow-2"]
    assert began_ns["slow-1"] < began_ns["slow-2"]
    assert told.incidents[0].name == "slow-2"  # the costlier one


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (
            {"chip": "h100", "precision": "fp4", "model_flops_per_step": 1e18},
            "the H100 has no fp4 arithmetic",
        ),
        ({"chip": "h1000", "model_flops_per_step": 1e18}, "the chip 'h1000' is not known"),
        ({"chip": "h1000"}, "the chip 'h1000' is not known"),
        ({"chip": "h100"}, "declare the model's FLOPs per step and the chip"),
        ({"chip": "h100", "model_flops_per_step": 1e17}, ""),
    ],
    ids=["precision", "chip", "chip alone", "no FLOPs", "known"],
)
def test_an_mfu_that_is_not_known_says_why(story: Any, declared: dict[str, Any], why: str) -> None:
    story.tell(RunStarted, gpus=8)
    story.tell(ReferenceDeclared, **declared)
    told = story.steps(1, 20, 100).report()
    assert (told.mfu is None, told.mfu_unknown) == (bool(why), why)


@pytest.mark.parametrize(
    ("precision", "peak_tflops", "share", "is_above"),
    [
        ("bf16", 989, 0.64, False),
        ("bf16", 989, 0.65, True),
        ("fp8", 1979, 0.55, True),
        ("fp8", 1979, 0.53, False),
    ],
)
@pytest.mark.parametrize("params", [None, 70 * 10**9], ids=["alone", "with a reference"])
def test_an_mfu_above_every_published_one_says_so(
    story: Any, precision: str, peak_tflops: int, share: float, is_above: bool, params: int | None
) -> None:
    flops = share * peak_tflops * 1e12 * 8 * 100
    story.tell(RunStarted, gpus=8)
    story.tell(ReferenceDeclared, chip="h100", precision=precision, model_flops_per_step=flops, params=params)
    told = story.steps(1, 20, 100).report()
    assert (f"above every published one in {precision}" in told.mfu.sentence) == is_above


def test_how_far_checkpoints_reach(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    saved = story.steps(1, 7, 5).report().saved
    assert (saved.last_step, saved.since_steps, saved.between_steps_mean) == (None, 7, None)
    assert saved.unsaved_steps_max is None
    story.steps(8, 10, 5).tell(CheckpointSaved, step=10)
    story.steps(11, 30, 5).tell(CheckpointSaved, step=30)
    story.tell(CheckpointSaved, step=30)  # another member's word on it
    story.steps(31, 40, 5).tell(CheckpointSaved, step=40)
    saved = story.steps(41, 44, 5).report().saved
    assert (saved.last_step, saved.since_steps) == (40, 4)
    assert (saved.between_steps_mean, saved.unsaved_steps_max) == (15, 20)


def test_the_most_steps_in_no_checkpoint_are_those_before_a_failure_or_the_end(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.steps(1, 10, 5).tell(CheckpointSaved, step=10)
    assert story.report().saved.unsaved_steps_max == 0
    story.steps(11, 60, 5).tell(CheckpointLoaded, step=10)  # 50 steps lost, and fewer later on
    story.steps(11, 20, 5).tell(CheckpointSaved, step=20)
    assert story.report().saved.unsaved_steps_max == 50
    assert story.steps(21, 90, 5).report().saved.unsaved_steps_max == 70
    story.tell(RunEnded, outcome="completed")
    assert story.report().saved.unsaved_steps_max == 70


def test_what_checkpoints_cost_and_which_was_proven(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    assert story.steps(1, 10, 5).report().saved.costs is None
    cost = {"size_bytes": 10, "written_bytes": 4, "stall_ns": S}
    story.tell(CheckpointSaved, step=10, write_ns=2 * S, exposed_ns=50 * S, **cost)
    story.steps(11, 20, 5).tell(CheckpointSaved, step=20, write_ns=4 * S, exposed_ns=30 * S, **cost)
    story.tell(CheckpointVerified, step=10, sound=False)
    story.tell(CheckpointVerified, step=20, sound=True)
    story.tell(CheckpointLoaded, step=20, restore_ns=3 * S)
    story.tell(CheckpointLoaded, step=20, restore_ns=S, is_snapshot=True)  # was not read from storage
    saved = story.steps(21, 30, 5).report().saved
    assert saved.costs == CheckpointCosts(
        saves=2, size_bytes=10, written_bytes=4, stall_s=1.0, write_s=3.0, exposed_s_max=50.0
    )
    assert (saved.restore_s_mean, saved.since_steps) == (3.0, 10)
    assert (saved.proven_step, saved.refuted_step) == (20, 10)


def test_the_parts_of_a_sharded_model_are_one_checkpoint(story: Any) -> None:
    story.tell(RunStarted, gpus=2)
    for step in (10, 20, 20):  # the last one again, after a restart
        story.steps(step - 9, step, 5)
        for rail, size_bytes in ((1, 10), (0, 20)):
            place = f"kept/shard-{rail}-of-2/step-{step:012d}.checkpoint"
            story.tell(CheckpointSaved, step=step, place=place, size_bytes=size_bytes, written_bytes=4)
    told = story.report()
    assert told.counts.saves == 3
    costs = told.saved.costs
    assert costs is not None
    assert (costs.saves, costs.size_bytes, costs.written_bytes) == (3, 30, 8)


def test_a_cost_that_a_checkpoint_does_not_record_is_not_zero(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    for step in (1, 2, 3):
        cost = {"size_bytes": 10**10, "stall_ns": 2 * S} if step == 2 else {}
        story.steps(step, step, 5).wait(2).tell(CheckpointSaved, step=step, write_ns=3 * S, **cost)
    told = story.steps(4, 4, 5).report()
    assert told.saved.costs == CheckpointCosts(
        saves=3, size_bytes=10**10, written_bytes=None, stall_s=2.0, write_s=3.0, exposed_s_max=None
    )
    assert stall_s(told) == 2.0


def test_the_price_is_the_mean_over_what_it_holds_for(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    assert story.steps(1, 10, 5).report().usd_per_gpu_hour is None
    story.tell(CostRate, usd_per_gpu_hour=2.0)
    assert story.report().usd_per_gpu_hour == 2.0
    story.steps(11, 40, 5).tell(CostRate, usd_per_gpu_hour=4.0)
    told = story.steps(41, 50, 5).report()
    assert told.usd_per_gpu_hour == pytest.approx(2.5)


def test_what_was_declared_is_told(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.tell(ReferenceDeclared, chip="NVIDIA H100", tokens_per_step=4_096)
    told = story.steps(1, 5, 5).report()
    assert (told.chip, told.tokens_per_step) == ("NVIDIA H100", 4_096)


def test_the_last_end_counts_unless_the_run_went_on(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    assert story.steps(1, 5, 5).report().ended is None
    story.tell(RunEnded, outcome="stopped", reason="SIGTERM")
    ended = story.report().ended
    assert (ended.outcome, ended.reason, ended.survived_errors) == ("stopped", "SIGTERM", 0)
    story.tell(RunStarted, gpus=8)
    assert story.steps(6, 9, 5).report().ended is None
    story.tell(RunEnded, outcome="completed", survived_errors=3)
    story.tell(RunEnded, outcome="failed")
    ended = story.report().ended
    assert (ended.outcome, ended.survived_errors) == ("completed", 3)  # what comes after it changes nothing


def declared_run(story: Any, **declared: Any) -> Any:
    story.tell(ReferenceDeclared, step_ns=10 * 10**9, gpus=8, chip="h100", params=70 * 10**9, **declared)
    story.tell(RunStarted, gpus=8)
    return story.steps(1, 20, 10)


def test_an_mfu_above_the_peak_is_not_compared_but_explained(story: Any) -> None:
    told = declared_run(story, model_flops_per_step=1.855 * 989e12 * 80).report()
    assert told.mfu is not None
    assert told.mfu.measured == pytest.approx(185.5)
    assert told.mfu.reference is None
    assert told.mfu.sentence == "185.5 %, impossible"
    assert told.mfu.wrong in told.remarks
    assert "the peak, the precision or the chip" in told.mfu.wrong
    assert told.mfu.wrong.endswith("chip, precision and model_flops_per_step.")
    assert told.goodput.program is None
    assert "Published figures agree" not in " ".join(with_opinions(told, []).remarks)


def test_the_same_flops_in_fp8_are_possible(story: Any) -> None:
    told = declared_run(story, model_flops_per_step=0.8 * 989e12 * 80, precision="fp8").report()
    assert told.mfu is not None
    assert told.mfu.measured == pytest.approx(80 * 989 / 1979)
    assert told.mfu.wrong == ""


def test_recomputed_flops_above_the_peak_are_explained_too(story: Any) -> None:
    flops = 989e12 * 80
    told = declared_run(story, model_flops_per_step=0.6 * flops, hardware_flops_per_step=1.2 * flops).report()
    assert told.mfu is not None
    assert told.mfu.wrong.startswith("An HFU of 120.0 % is impossible")
    assert told.mfu.sentence == "60.0 % of the peak, with an impossible HFU"
    assert told.useful_parts is None  # the rest would be less than nothing
    assert told.mfu.wrong in told.remarks


def test_flops_that_need_more_than_the_useful_time_are_remarked_on(story: Any) -> None:
    """Steps take twice as long as declared, so 60 % of the peak in them is 120 % in the useful time."""
    story.tell(ReferenceDeclared, step_ns=10 * 10**9, gpus=8, chip="h100", params=70 * 10**9)
    story.tell(ReferenceDeclared, model_flops_per_step=1.2 * 989e12 * 80)
    story.tell(RunStarted, gpus=8)
    told = story.steps(1, 20, 20).report()
    assert told.mfu is not None
    assert told.mfu.measured == pytest.approx(60, abs=2)
    assert (told.useful_parts, told.goodput.program) == (None, None)
    assert any(remark.startswith("The declared FLOPs exceed the chips' peak") for remark in told.remarks)


@pytest.mark.parametrize(("duration_ns", "is_possible"), [(40_000_000, True), (4_000_000, False)])
def test_a_bandwidth_above_the_links_is_not_compared_but_explained(
    story: Any, duration_ns: int, is_possible: bool
) -> None:
    declared_run(story)
    story.tell(CollectiveTimed, collective="all-reduce", size_bytes=10**10, ranks=8, duration_ns=duration_ns)
    told = story.report()
    assert told.bandwidth is not None
    assert (told.bandwidth.wrong == "") == (told.bandwidth.reference is not None) == is_possible
    if not is_possible:
        assert "carry 450 GB/s each way, which allows 900 GB/s" in told.bandwidth.wrong
        assert told.bandwidth.wrong in told.remarks
