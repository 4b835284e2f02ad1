"""Gaps between attempts, clocks that go back, counters that begin again, and kills that lost nothing."""

from typing import Any

import pytest

from holdfast.economics.pricing.asked import priced
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.record.events import (
    CheckpointLoaded,
    CostRate,
    MemberJoined,
    MemberLost,
    RunEnded,
    RunStarted,
    StepBegun,
    StepCommitted,
)

S = 10**9
HOUR = 3600


def said(story: Any, words: str) -> list[str]:
    return [remark for remark in story.report().remarks if words in remark]


# -- gaps --------------------------------------------------------------------------------------------------


def down_for_an_hour(story: Any, **source: str) -> None:
    story.tell(RunStarted, gpus=8, **source)
    story.steps(1, 100, 10).tell(RunEnded, outcome="failed", **source)
    story.wait(HOUR).tell(RunStarted, gpus=8, **source)
    story.steps(101, 200, 10).tell(RunEnded, outcome="completed", **source)


def test_an_hour_down_is_told_with_what_it_would_cost(story: Any) -> None:
    """8 GPUs for an hour at 2 USD: 16 USD, if they were held. Nothing says so."""
    story.tell(CostRate, usd_per_gpu_hour=2.0)
    down_for_an_hour(story)
    told = story.report()
    assert told.paid_gpu_ns == 8 * 2000 * S
    (gap,) = told.gaps
    assert (gap.gpus, gap.to_ns - gap.from_ns, gap.given_back) == (8, HOUR * S, False)
    (remark,) = said(story, "down between two attempts")
    assert "8.00 GPU-hours more" in remark
    assert "sacct" in remark
    (priced_remark,) = (one for one in priced(told, DEFAULTS).remarks if "down between two attempts" in one)
    assert "8.00 GPU-hours, 16.00 USD more" in priced_remark


def test_gpus_that_are_held_are_paid_for_and_nothing_is_to_be_said(story: Any) -> None:
    story.tell(CostRate, gpus=8)
    down_for_an_hour(story)
    assert story.report().gaps == ()
    assert story.gpu_s()["recovering"] == 8 * HOUR


def test_the_scheduler_says_that_they_were_given_back(story: Any) -> None:
    """Two jobs of Slurm, and an hour between them."""
    down_for_an_hour(story, source="sacct")
    told = story.report()
    assert told.paid_gpu_ns == 8 * 2000 * S
    assert [gap.given_back for gap in told.gaps] == [True]
    assert said(story, "The scheduler says that the GPUs were given back")
    assert not said(story, "nothing says who held")


def test_the_scheduler_says_that_they_were_held(story: Any) -> None:
    """One job of Slurm, within which the run failed and was launched again an hour later."""
    story.tell(RunStarted, gpus=8, source="sacct")
    story.wait(20)
    down_for_an_hour(story)
    story.wait(10).tell(RunEnded, outcome="completed", source="sacct")
    told = story.report()
    assert told.gaps == ()
    assert told.counts.incidents == 1  # the failure; that two tell of the first launch is none
    assert story.gpu_s() == {
        "starting": 8 * 20,
        "useful": 8 * 2000,
        "recovering": 8 * HOUR,
        "idle": 8 * 10,
    }


def test_a_run_that_was_complete_left_no_gap(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.steps(1, 10, 10).tell(RunEnded, outcome="completed")
    story.wait(HOUR).tell(RunStarted, gpus=8)
    story.steps(11, 20, 10)
    assert story.report().gaps == ()


# -- clocks ------------------------------------------------------------------------------------------------


def log(story: Any, first: int, last: int, seconds: float) -> None:
    """A step log: nothing but commits."""
    for step in range(first, last + 1):
        story.wait(seconds).tell(StepCommitted, step=step)


def test_a_clock_that_goes_back_is_no_incident(story: Any) -> None:
    """After step 50 the clock goes back by 30 s. It used to look like two rollbacks."""
    story.tell(RunStarted, gpus=1)
    log(story, 1, 50, 10)
    story.wait(-30)
    log(story, 51, 100, 10)
    story.events.sort(key=lambda event: (event.occurred_ns, getattr(event, "step", 0)))
    told = story.report()
    assert told.incidents == ()
    assert told.counts.steps == 100
    assert told.partition["recomputed"] == told.partition["discarded"] == 0
    assert told.paid_gpu_ns == 970 * S  # the clock shows no more
    (remark,) = said(story, "A clock was set back")
    assert "by 20 s or more" in remark
    assert "2 steps have times later" in remark


def test_a_clock_that_goes_back_by_many_steps(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    log(story, 1, 500, 1)
    story.wait(-30.5)
    log(story, 501, 1000, 1)
    told = story.report()
    assert (told.incidents, told.counts.steps) == ((), 1000)
    assert len(said(story, "A clock was set back")) == 1


def test_a_real_rollback_into_steps_that_were_not_told_is_a_rollback(story: Any) -> None:
    """The lines of steps 49 and 50 are lost; 50 steps later the run goes back to 48."""
    story.tell(RunStarted, gpus=1)
    log(story, 1, 48, 10)
    story.wait(20)
    log(story, 51, 100, 10)
    log(story, 49, 150, 10)
    told = story.report()
    assert told.counts.incidents == 1
    assert told.partition["recomputed"] == 520 * S
    assert not said(story, "A clock was set back")


# -- counters ----------------------------------------------------------------------------------------------


def test_a_counter_that_begins_again_after_completion_is_another_run(story: Any) -> None:
    """100 steps, complete; 100 steps from 1 again, complete. Half of it used to be called recomputed."""
    for _ in range(2):
        story.tell(RunStarted, gpus=1)
        story.steps(1, 100, 10).tell(RunEnded, outcome="completed")
    told = story.report()
    assert story.gpu_s() == {"useful": 2000}
    assert (told.counts.steps, told.incidents) == (200, ())
    assert said(story, "began again once after the run was complete")


def test_what_the_second_run_rolls_back_is_its_own(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(0, 99, 10).tell(RunEnded, outcome="completed")
    story.tell(RunStarted, gpus=1)
    story.steps(0, 49, 10).tell(CheckpointLoaded, step=39)
    story.tell(RunEnded, outcome="stopped")
    assert story.gpu_s() == {"useful": 1000 + 400, "discarded": 100}
    assert story.report().counts.steps == 140


def test_a_counter_that_begins_again_without_completion_is_told(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    log(story, 1, 50, 10)
    log(story, 1, 50, 10)
    assert story.gpu_s() == {"useful": 500, "recomputed": 500}
    assert said(story, "went back to its beginning once")


# -- kills and tails -----------------------------------------------------------------------------------------


def test_a_kill_between_steps_lost_no_step(story: Any) -> None:
    """The run tells when a step begins, and none had: the 3 s until the loss was noticed were dead."""
    story.tell(RunStarted, gpus=1)
    story.tell(MemberJoined, subject="a")
    story.steps(1, 50, 5).wait(3).tell(MemberLost, subject="a")
    story.tell(RunEnded, outcome="failed")
    assert story.gpu_s() == {"useful": 250, "dead_undetected": 3}


def test_a_kill_within_a_step_lost_its_work(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.tell(MemberJoined, subject="a")
    story.steps(1, 50, 5).tell(StepBegun, step=51)
    story.wait(3).tell(MemberLost, subject="a")
    story.tell(RunEnded, outcome="failed")
    assert story.gpu_s() == {"useful": 250, "discarded": 3}


@pytest.mark.parametrize(("begins", "category"), [(False, "unattributed"), (True, "starting")])
def test_nothing_says_what_a_step_log_did_after_its_last_step(
    story: Any, begins: bool, category: str
) -> None:
    story.tell(RunStarted, gpus=1)
    if begins:
        story.steps(1, 20, 5)
    else:
        log(story, 1, 20, 5)
    story.wait(30).tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {"useful": 100, category: 30}
