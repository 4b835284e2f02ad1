"""Estimated references: healthy runs of ten shapes, slow runs with a known truth, and stages."""

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest

from holdfast.ledger.fold import Fold
from holdfast.ledger.report import Report, StepReference
from holdfast.ledger.reporting import report
from holdfast.record.events import CheckpointLoaded, ReferenceDeclared, RunEnded, RunStarted, StepCommitted

S = 10**9
GPUS = 8
PHANTOM_MAX = 0.015
TRUTH_TOLERANCE = 0.1

Steps = list[float]
"""The time of each step of a run, in seconds."""


def told_of(steps: Sequence[float]) -> Report:
    """The report of a step log: nothing but a start, commits and the end."""
    fold = Fold()
    fold.apply(RunStarted(id="0", occurred_ns=0, gpus=GPUS))
    ends = [round(end * S) for end in accumulate(steps)]
    for number, end_ns in enumerate(ends, start=1):
        fold.apply(StepCommitted(id=f"s{number:08}", occurred_ns=end_ns, step=number))
    fold.apply(RunEnded(id="z", occurred_ns=ends[-1], outcome="completed"))
    return report("r", fold)


def lost(told: Report) -> float:
    """The share of paid time that counts as slowdown."""
    return told.partition["slowdown"] / told.paid_gpu_ns


def jitter(chance: random.Random, share: float) -> float:
    return max(0.3, chance.gauss(1.0, share))


# -- ten shapes of healthy runs ------------------------------------------------------------------------------


def steady(chance: random.Random, share: float) -> Steps:
    return [5 * jitter(chance, share) for _ in range(1_000)]


def skewed(chance: random.Random, share: float) -> Steps:
    """Most steps are quick, some take longer, as jitter in a network does."""
    return [5 * chance.lognormvariate(0.0, share) for _ in range(1_000)]


def ramp(chance: random.Random, share: float) -> Steps:
    """The batch grows all the time, from 5 s a step to 10."""
    return [(5 + 5 * step / 1_000) * jitter(chance, share) for step in range(1_000)]


def ramp_in_stages(chance: random.Random, share: float) -> Steps:
    """The batch grows in six stages, from 5 s a step to 10; the last one lasts."""
    return [min(10, 5 + step // 80) * jitter(chance, share) for step in range(1_000)]


def one_jump(chance: random.Random, share: float) -> Steps:
    """The batch is doubled after 30 % of the steps: 41 % of the time used to be called slowdown."""
    return [(5 if step < 300 else 10) * jitter(chance, share) for step in range(1_000)]


def long_sequences_at_the_end(chance: random.Random, share: float) -> Steps:
    return [(5 if step < 800 else 12) * jitter(chance, share) for step in range(1_000)]


def evaluations(chance: random.Random, share: float) -> Steps:
    """Every 100 steps an evaluation of 20 s that is not recorded."""
    return [5 * jitter(chance, share) + (20 if step % 100 == 99 else 0) for step in range(1_000)]


def saves_and_evaluations(chance: random.Random, share: float) -> Steps:
    """A save of 10 s every 50 steps and an evaluation of 40 s every 250."""
    return [
        5 * jitter(chance, share) + (10 if step % 50 == 49 else 0) + (40 if step % 250 == 249 else 0)
        for step in range(1_000)
    ]


def warm_up(chance: random.Random, share: float) -> Steps:
    """The first 20 steps take up to three times as long, less and less so."""
    return [5 * jitter(chance, share) * (1 + 2 * max(0, 20 - step) / 20) for step in range(1_000)]


def two_lengths(chance: random.Random, share: float) -> Steps:
    """Three of ten steps have long sequences, and take twice as long."""
    return [(8 if chance.random() < 0.3 else 4) * jitter(chance, share) for _ in range(1_000)]


def few_long_ones(chance: random.Random, share: float) -> Steps:
    """One step in twelve has long sequences."""
    return [(10 if chance.random() < 1 / 12 else 5) * jitter(chance, share) for _ in range(1_000)]


SHAPES: tuple[Callable[[random.Random, float], Steps], ...] = (
    steady,
    skewed,
    ramp,
    ramp_in_stages,
    one_jump,
    long_sequences_at_the_end,
    evaluations,
    saves_and_evaluations,
    warm_up,
    two_lengths,
    few_long_ones,
)


@pytest.mark.parametrize("share", [0.03, 0.06, 0.1, 0.2])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_healthy_run_has_no_phantom_waste(
    shape: Callable[[random.Random, float], Steps], share: float
) -> None:
    told = told_of(shape(random.Random(f"{shape.__name__} {share}"), share))
    assert lost(told) < PHANTOM_MAX


# -- twenty slow runs, and what is true of them --------------------------------------------------------------


def stretch(chance: random.Random, share: float, *, first: int, last: int, times: float) -> Steps:
    """Steps of 5 s; those from first to last take `times` as long."""
    return [5 * jitter(chance, share) * (times if first <= step < last else 1) for step in range(1_000)]


SLOW = [
    (first, last, times, share)
    for first, last, times in (
        (300, 500, 1.5),
        (0, 300, 2.0),
        (940, 1_000, 2.0),
        (200, 230, 3.0),
        (100, 800, 1.2),
    )
    for share in (0.02, 0.05, 0.1, 0.15)
]


@pytest.mark.parametrize(("first", "last", "times", "share"), SLOW)
def test_a_known_slowdown_is_found_or_said_to_be_unknown(
    first: int, last: int, times: float, share: float
) -> None:
    chance = random.Random(f"{first} {last} {times} {share}")
    steps = stretch(chance, share, first=first, last=last, times=times)
    truth = sum(steps[first:last]) * (1 - 1 / times) / sum(steps)
    told = told_of(steps)
    is_unknown = any("or a slowdown" in remark for remark in told.remarks)
    assert is_unknown or lost(told) == pytest.approx(truth, rel=TRUTH_TOLERANCE)
    if not is_unknown and first < 900:
        assert told.incidents[0].what.startswith("slow steps")


@pytest.mark.parametrize("share", [0.03, 0.1])
def test_a_slowdown_that_never_ends_is_told_both_ways(share: float) -> None:
    """From step 500 on twice as slow: 2500 s of 7500 s, or a larger batch."""
    steps = stretch(random.Random(share), share, first=500, last=1_000, times=2.0)
    told = told_of(steps)
    truth = sum(steps[500:]) / 2 / sum(steps)
    assert lost(told) < PHANTOM_MAX
    assert told.goodput.total_min == pytest.approx(1 - truth, rel=0.02)
    assert any("nothing recorded says why: a larger batch or longer sequences" in one for one in told.remarks)


def test_the_estimate_says_how_sure_it_is() -> None:
    def found(share: float, steps: int) -> tuple[float, StepReference]:
        reference = told_of(steady(random.Random(1), share)[:steps]).reference
        assert reference is not None
        assert reference.uncertainty is not None
        return reference.uncertainty, reference

    quiet, few = found(0.03, 1_000), found(0.2, 20)
    loud = found(0.2, 1_000)
    assert quiet[0] < loud[0] < few[0]
    assert quiet[1].basis == f"estimated ± {100 * quiet[0]:.1f} %"
    for uncertainty, reference in (quiet, loud):
        assert abs(reference.step_ns / (5 * S) - 1) < 2 * uncertainty


def test_regular_pauses_are_checks() -> None:
    """Ten evaluations of 20 s in 1000 steps of 5 s."""
    told = told_of([5.0 + (20 if step % 100 == 99 else 0) for step in range(1_000)])
    assert told.partition["checks"] == 200 * GPUS * S
    assert told.partition["slowdown"] == 0
    assert told.goodput.total == pytest.approx(5000 / 5200)


# -- declared stages -----------------------------------------------------------------------------------------


def test_a_reference_holds_from_its_declaration_on(story: Any) -> None:
    """Stage 1 is declared as 5 s and takes 8 s: 60 x 3 s of slowdown. Stage 2 takes the 10 s it should."""
    story.tell(ReferenceDeclared, step_ns=5 * S, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.steps(0, 0, 5)
    story.steps(1, 60, 8).tell(ReferenceDeclared, step_ns=10 * S, gpus=1)
    story.steps(61, 120, 10).tell(RunEnded, outcome="completed")
    assert story.gpu_s() == {"useful": 61 * 5 + 60 * 10, "slowdown": 180}
    told = story.report()
    assert [(one.step_ns / S, one.origin) for one in told.reference.stretches] == [
        (5, "declared"),
        (10, "declared"),
    ]
    assert [one.from_ns / S for one in told.reference.stretches] == [0, 485]
    assert told.goodput.basis == told.basis == ""


def test_a_first_declaration_holds_for_what_came_before(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.steps(1, 20, 8).tell(ReferenceDeclared, step_ns=5 * S, gpus=1)
    story.steps(21, 40, 8)
    assert story.gpu_s() == {"useful": 200, "slowdown": 117, "starting": 3}


@pytest.mark.parametrize("field", ["tokens_per_step", "sequence_tokens", "batch_sequences"])
def test_other_work_is_another_stage(story: Any, field: str) -> None:
    """Twice the work from step 101 on, declared as such: nothing is slow, and nothing is in doubt."""
    story.tell(ReferenceDeclared, **{field: 1024})
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 5).tell(ReferenceDeclared, **{field: 2048})
    story.steps(101, 200, 10)
    told = story.report()
    assert story.gpu_s() == {"useful": 1500}
    assert told.goodput.total_min is None
    assert [one.step_ns / S for one in told.reference.stretches] == [5, 10]


def test_a_stage_without_a_declared_step_is_estimated(story: Any) -> None:
    """The 5 s were declared for 1024 tokens; of 2048 nothing but the tokens is."""
    story.tell(ReferenceDeclared, step_ns=5 * S, gpus=1, tokens_per_step=1024)
    story.tell(RunStarted, gpus=1)
    story.steps(1, 100, 6).tell(ReferenceDeclared, tokens_per_step=2048)
    story.steps(101, 200, 10)
    assert story.gpu_s() == {"useful": 1500, "slowdown": 99, "starting": 1}
    told = story.report()
    assert [one.origin for one in told.reference.stretches] == ["declared", "estimated"]
    assert told.basis.startswith("estimated ± ")


def test_work_rolled_back_from_an_earlier_stage_is_discarded_at_its_reference(story: Any) -> None:
    """Ten steps of 5 s and five of 10 s, all rolled back to step 5 and never done again."""
    story.tell(ReferenceDeclared, step_ns=5 * S, gpus=1)
    story.tell(RunStarted, gpus=1)
    story.steps(1, 10, 5).tell(ReferenceDeclared, step_ns=10 * S, gpus=1)
    story.steps(11, 15, 10).tell(CheckpointLoaded, step=5)
    story.tell(RunEnded, outcome="stopped")
    assert story.gpu_s() == {"useful": 25, "discarded": 25 + 50}
