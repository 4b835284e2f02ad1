"""Useful, lost and not known: three amounts that sum to what was paid for, and shares of what is known."""

from typing import Any

import pytest

from holdfast.ledger.categories import Category
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.split import LOSSES, UNKNOWN_SHARE_MIN, Silence, Split, unknown_matters
from holdfast.ledger.window import Window, within
from holdfast.record.events import PhaseEntered, ReferenceDeclared, RunEnded, RunStarted, StepCommitted

S = 10**9


def commits(story: Any, count: int, seconds: float) -> Any:
    """Steps of which nothing but the commit is recorded."""
    for step in range(1, count + 1):
        story.wait(seconds).tell(StepCommitted, step=step)
    return story


def declared(story: Any) -> Any:
    story.tell(RunStarted, gpus=8)
    story.tell(ReferenceDeclared, step_ns=10 * S)
    return story


def amounts_s(told: Report) -> tuple[float, float, float]:
    split = told.split
    assert sum(split.lost.values()) == split.lost_gpu_ns
    assert sum(split.unknown.values()) == split.unknown_gpu_ns
    assert split.paid_gpu_ns == told.paid_gpu_ns
    return split.useful_gpu_ns / S / 8, split.lost_gpu_ns / S / 8, split.unknown_gpu_ns / S / 8


def test_time_after_the_last_step_is_neither_useful_nor_lost(story: Any) -> None:
    commits(declared(story), 100, 10).wait(1_000).tell(RunEnded, outcome="completed")
    told = story.report()
    assert amounts_s(told) == (1_000, 0, 1_000)
    assert told.split.unknown == {Silence.AFTER_STEPS: 8_000 * S}
    assert (told.goodput.total, told.goodput.scheduling, told.goodput.runtime) == (1, 1, 1)
    assert told.goodput.bounds == (0.5, 1)
    assert told.ettr.cumulative == 1
    assert told.useful_work.steps_per_gpu_hour == pytest.approx(100 / (8_000 / 3_600))


def test_an_hour_of_which_nothing_is_known_has_no_ettr(story: Any) -> None:
    commits(declared(story), 720, 10).wait(7_200).tell(RunEnded, outcome="completed")
    ettr = story.report().ettr
    assert (ettr.cumulative, ettr.sliding, ettr.sliding_min) == (1, None, 1)


def test_a_run_of_which_nothing_is_known_has_no_share(story: Any) -> None:
    story.tell(RunStarted, gpus=8)
    story.wait(1_000).tell(RunEnded, outcome="completed")
    told = story.report()
    assert amounts_s(told) == (0, 0, 1_000)
    assert told.split.unknown == {Silence.NO_STEPS: 8_000 * S}
    assert (told.goodput.total, told.goodput.runtime, told.goodput.scheduling) == (None, None, 1)
    assert told.goodput.bounds == (0, 1)
    assert told.useful_work.steps_per_gpu_hour is None


@pytest.mark.parametrize("ended", [False, True])
def test_a_step_without_its_end_is_not_known(story: Any, ended: bool) -> None:
    """The record ends in the middle of a step; or the run was stopped much later than a step takes."""
    commits(declared(story), 100, 10).wait(500)
    if ended:
        story.tell(RunEnded, outcome="stopped")
    else:
        story.tell(PhaseEntered, phase="eval")
    useful, lost, unknown = amounts_s(told := story.report())
    assert (useful, unknown) == (1_000, 490 if ended else 500)
    assert lost == (10 if ended else 0)  # at most a step was cut off
    assert list(told.split.unknown) == [Silence.STEP_IN_FLIGHT]


def test_windows_have_their_part_of_what_is_not_known(story: Any) -> None:
    commits(declared(story), 100, 10).wait(1_000).tell(RunEnded, outcome="completed")
    ledger = Ledger(cuts_ns=[1_500 * S])
    ledger.add(story.events)
    told = report("story", ledger.fold)
    windows = Window(to_ns=1_500 * S), Window(from_ns=1_500 * S)
    early, late = (within(told, window, None, None) for window in windows)
    assert (amounts_s(early), amounts_s(late)) == ((1_000, 0, 500), (0, 0, 500))
    assert (early.goodput.total, late.goodput.total) == (1, None)
    assert late.split.unknown == {Silence.AFTER_STEPS: 4_000 * S}
    assert any(one.startswith("1.11 GPU-hours are not known") for one in late.remarks)


def test_readers_are_told_from_a_hundredth_on(story: Any) -> None:
    commits(declared(story), 100, 10).wait(5).tell(RunEnded, outcome="completed")
    told = story.report()
    assert told.split.unknown_gpu_ns == 40 * S
    assert not told.split.unknown_matters
    assert not [remark for remark in told.remarks if "not known" in remark]
    assert unknown_matters(UNKNOWN_SHARE_MIN, 1)


def test_every_category_is_in_one_of_the_three() -> None:
    partition = {category.key: 1 for category in Category}
    split = Split.of(partition, {Silence.NO_STEPS: 1})
    assert split.paid_gpu_ns == len(Category)
    assert set(LOSSES) == set(Category) - {Category.USEFUL, Category.UNATTRIBUTED}
    assert all(silence.label and silence.remedy for silence in Silence)
