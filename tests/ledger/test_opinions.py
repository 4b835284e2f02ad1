"""Second opinions: a run that is twice too slow from its first step is not silently 100 % useful."""

from typing import Any

import msgspec
import pytest

from holdfast.ledger.counts import Declared
from holdfast.ledger.opinions import ALONE, PUBLISHED, Kin, says_slow, with_opinions
from holdfast.ledger.report import MeasuredFigure, Opinion, Report
from holdfast.record.events import ReferenceDeclared, RunStarted
from tests.ledger.conftest import Story

S = 10**9


def steady(run: str, seconds: float, tokens: int | None = None) -> Report:
    story = Story()
    story.tell(RunStarted, gpus=8)
    if tokens is not None:
        story.tell(ReferenceDeclared, tokens_per_step=tokens)
    story.steps(1, 100, seconds)
    return msgspec.structs.replace(story.report(), run=run)


def test_a_run_that_is_twice_too_slow_says_so() -> None:
    told = with_opinions(steady("b", 10), [steady("a", 5)])
    assert told.goodput.total == 1.0
    (opinion,) = told.opinions
    assert opinion.source == "a"
    assert opinion.ratio == pytest.approx(2.0)
    assert opinion.sentence.startswith("This run is 2.0 times slower than your run a, in GPU-time a step.")
    assert "50 % of what is called useful here is slowdown" in opinion.sentence
    assert told.remarks[-1] == opinion.sentence


def test_the_quickest_run_is_named() -> None:
    told = with_opinions(steady("c", 10), [steady("a", 8), steady("b", 5)])
    assert [opinion.source for opinion in told.opinions] == ["b"]


def test_twice_the_tokens_may_take_twice_as_long() -> None:
    told = with_opinions(steady("b", 10, tokens=2048), [steady("a", 5, tokens=1024)])
    assert told.opinions[0].ratio == pytest.approx(1.0)
    assert "took as much GPU-time a token" in told.opinions[0].sentence


def test_published_figures_are_an_opinion() -> None:
    figure = MeasuredFigure(
        measured=20.0, reference=40.0, unit="%", sentence="20.0 % where 40.0 % is the reference"
    )
    told = with_opinions(msgspec.structs.replace(steady("a", 10), mfu=figure), [])
    assert told.opinions[0].sentence.startswith(
        "This run may be 2.0 times slower than it could be: MFU is 20.0 %"
    )
    near = msgspec.structs.replace(figure, measured=38.0)
    told = with_opinions(msgspec.structs.replace(steady("a", 10), mfu=near), [])
    assert told.opinions[0].sentence.startswith("Published figures agree")


def test_published_figures_do_not_agree_with_a_far_better_run() -> None:
    figure = MeasuredFigure(measured=60.0, reference=40.0, unit="%", sentence="")
    told = with_opinions(msgspec.structs.replace(steady("a", 10), mfu=figure), [])
    assert told.opinions[0].sentence.startswith("This run is quicker than")


def of_published(story: Any, **declared: Any) -> Opinion:
    """The opinion on 64 GPUs with steps of 10 s."""
    story.tell(RunStarted, gpus=64)
    story.tell(ReferenceDeclared, **declared)
    (opinion,) = with_opinions(story.steps(1, 100, 10).report(), []).opinions
    assert opinion.source == PUBLISHED
    return opinion


def test_a_precision_of_which_no_run_is_published_is_not_compared(story: Any) -> None:
    flops = 0.22 * 15_000e12 * 64 * 10
    declared = {"chip": "gb300", "precision": "fp4", "params": 70 * 10**9}
    opinion = of_published(story, **declared, model_flops_per_step=flops)
    assert not says_slow(opinion)
    assert opinion.sentence == (
        "No published figure can be compared with this run: its MFU is 22.0 % of the peak; no run in fp4 is "
        "published to compare it with."
    )


def test_a_run_without_its_size_says_what_a_comparison_takes(story: Any) -> None:
    opinion = of_published(story, chip="h100", model_flops_per_step=0.5 * 989e12 * 64 * 10)
    assert opinion.sentence.endswith(
        "its MFU is 50.0 % of the peak; declare params to compare it with published runs."
    )


def test_an_impossible_hfu_is_the_reason_that_is_named(story: Any) -> None:
    flops, declared = 989e12 * 64 * 10, {"chip": "h100", "params": 70 * 10**9}
    opinion = of_published(
        story, **declared, model_flops_per_step=0.5 * flops, hardware_flops_per_step=1.5 * flops
    )
    assert opinion.sentence.endswith("its MFU is 50.0 % of the peak, with an impossible HFU.")


def test_a_run_alone_says_that_it_is() -> None:
    assert with_opinions(steady("a", 10), []).remarks[-1] == ALONE


def test_a_declared_reference_needs_no_opinion(story: Any) -> None:
    story.tell(RunStarted, gpus=1)
    story.tell(ReferenceDeclared, step_ns=5 * S, gpus=1)
    told = story.steps(1, 10, 10).report()
    assert with_opinions(told, [steady("a", 1)]) is told


@pytest.mark.parametrize(
    ("left", "right", "is_like"),
    [
        (("llama-1", Declared()), ("llama-2", Declared()), True),
        (("llama", Declared()), ("bert", Declared()), False),
        (("x", Declared(name="llama")), ("y", Declared(name="llama")), True),
        (("x", Declared(params=7, chip="h100")), ("y", Declared(params=7, chip="h100")), True),
        (("x-1", Declared(params=7)), ("x-2", Declared(params=8)), False),
        (("x", Declared(params=7, chip="h100")), ("y", Declared(params=7, chip="a100")), False),
    ],
)
def test_who_is_of_the_same_model(
    left: tuple[str, Declared], right: tuple[str, Declared], is_like: bool
) -> None:
    assert Kin.of(*left).is_like(Kin.of(*right)) == is_like
