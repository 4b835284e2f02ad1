"""Four histories that an existing goodput library reads wrongly, each with its assumptions (docs/ledger.md).

One GPU throughout, since that library counts none; a healthy step takes 10 s.
"""

from typing import Any

import pytest

from holdfast.record.events import CheckpointLoaded, RunEnded, RunStarted


def test_an_outage_that_resumes_at_the_next_step_is_not_free(story: Any) -> None:
    """100 steps, an hour of outage with nothing recorded, and 100 more from exactly the next step."""
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 10).wait(3600)
    story.steps(101, 200, 10)
    told = story.report()
    assert told.goodput.total == pytest.approx(2000 / 5600)
    assert f"{100 * told.goodput.total:.1f}" == "35.7"
    assert told.counts.incidents == 0
    assert [round(incident.lost_gpu_ns / 1e9) for incident in told.incidents] == [3600]


def test_a_recorded_outage_belongs_to_one_incident(story: Any) -> None:
    """The same hour, with the failure and the restart in the record."""
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 10).tell(RunEnded, outcome="stopped")
    assert story.gpu_s() == {"useful": 1000}  # given back, so not paid for
    story.events.pop()
    story.tell(RunStarted, gpus=1)
    story.wait(3600)
    story.steps(101, 200, 10)
    told = story.report()
    assert f"{100 * told.goodput.total:.1f}" == "35.7"
    assert told.counts.restarts == told.counts.incidents == 1
    assert told.incidents[0].losses == {"starting": 3600 * 10**9}


def test_a_rollback_past_an_earlier_restart_counts_every_step_once(story: Any) -> None:
    """Steps 0-99; 500 s to restart at 80, up to 149; 500 s to restart at 40, before 80, up to 199."""
    story.tell(RunStarted, gpus=1)
    story.steps(0, 99, 10)
    for first, last in ((80, 149), (40, 199)):
        story.tell(RunStarted, gpus=1)
        story.wait(500).tell(CheckpointLoaded, step=first - 1)
        story.steps(first, last, 10)
    told = story.report()
    assert told.goodput.total == pytest.approx(2000 / 4300)
    assert f"{100 * told.goodput.total:.1f}" == "46.5"
    assert story.gpu_s() == {"useful": 2000, "recomputed": 1300, "starting": 1000}
    assert told.counts.restarts == 2
    by_time = sorted(told.incidents, key=lambda incident: incident.began_ns)
    assert [incident.steps_rolled_back for incident in by_time] == [20, 110]
    assert [incident.losses["recomputed"] // 10**10 for incident in by_time] == [20, 110]


def test_a_run_that_was_slow_for_a_while_is_not_fully_productive(story: Any) -> None:
    """100 steps of 10 s, 50 of 20 s, 50 of 10 s: the run itself shows what a step takes."""
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 10)
    story.steps(101, 150, 20)
    story.steps(151, 200, 10)
    told = story.report()
    assert told.goodput.total == pytest.approx(2000 / 2500)
    assert f"{100 * told.goodput.total:.1f}" == "80.0"
    assert told.partition["slowdown"] == 500 * 10**9
    (slow,) = told.incidents
    assert slow.began_ns / 1e9 == pytest.approx(1000, abs=told.course.bucket_ns / 1e9)


def test_steps_that_are_longer_for_good_are_told_both_ways(story: Any) -> None:
    """100 steps of 10 s, then 100 of 20 s: a larger batch, or a slowdown. Nothing declares which."""
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 10)
    story.steps(101, 200, 20)
    told = story.report()
    assert told.goodput.total == 1.0
    assert told.goodput.total_min == pytest.approx(2000 / 3000, abs=0.001)
    (said,) = [remark for remark in told.remarks if "for good" in remark]
    assert "2.0 times as long" in said
    assert "0.28 GPU-hours more are lost, and goodput 66.6 %" in said  # 1000 s, to the nearest bucket


def test_every_failed_relaunch_is_a_restart(story: Any) -> None:
    """Steps 0-99; six launches a minute apart, of which five die without a step; the sixth resumes at 90."""
    story.tell(RunStarted, gpus=1)
    story.steps(0, 99, 10)
    for _ in range(6):
        story.tell(RunStarted, gpus=1)
        story.wait(60)
    story.tell(CheckpointLoaded, step=89)
    story.steps(90, 199, 10)
    told = story.report()
    assert told.counts.restarts == 6
    assert told.counts.incidents == 1
    assert told.incidents[0].restarts == 6
    assert story.gpu_s() == {"useful": 2000, "recomputed": 100, "starting": 360}


def test_relaunches_that_are_seen_to_fail(story: Any) -> None:
    """The same with each failure recorded and the GPUs given back in between: that time is not paid for."""
    story.tell(RunStarted, gpus=1)
    story.steps(0, 99, 10)
    for _ in range(6):
        story.tell(RunEnded, outcome="failed")
        story.wait(60).tell(RunStarted, gpus=1)
        story.wait(60)
    story.steps(100, 199, 10)
    told = story.report()
    assert (told.counts.restarts, told.counts.starts, told.counts.incidents) == (6, 7, 1)
    assert story.gpu_s() == {"useful": 2000, "starting": 360}
