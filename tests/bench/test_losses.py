"""What a run lost: members that nobody struck, and steps that it went back behind."""

from pathlib import Path

import pytest

from bench.losses import (
    NODE_S,
    Strike,
    checkpoints_loaded,
    planned_strikes,
    steps_redone,
    survivors_lost,
)
from holdfast.record.events import AnyEvent, CheckpointLoaded, GenerationOpened, MemberLost, StepCommitted
from holdfast.record.journal import JOURNAL_DIRECTORY, events_of
from holdfast.record.recorder import Recorder

pytestmark = pytest.mark.slow

SECOND_NS = 10**9
SAID = """\
holdfast: planned kill strikes n0.0 at step 3 (reduce)
holdfast: n0.0 lost (SIGKILL)
[n1.0] planned nothing
holdfast: planned node strikes n1.0+2 at step 9 (join)
holdfast: planned pause strikes n2.0 at step 9 (lane)
"""


def lost(member: str, at_s: float) -> MemberLost:
    return MemberLost(id=member, occurred_ns=int(at_s * SECOND_NS), subject=member)


def committed(step: int) -> StepCommitted:
    return StepCommitted(id=f"step {step}", occurred_ns=step, step=step)


def opened(step: int | None) -> GenerationOpened:
    return GenerationOpened(id="", occurred_ns=0, step=step)


def test_strikes_are_read_from_what_the_run_said() -> None:
    assert planned_strikes(SAID) == [
        Strike(member="n0.0", fault="kill"),
        Strike(member="n1.0+2", fault="node"),
    ]


def test_a_loss_is_explained_by_a_strike_at_the_member_or_its_node() -> None:
    events = [lost("n0.0", 1), lost("n1.0", 5), lost("n1.1", 4.9), lost("n1.2", 5.2)]
    strikes = [Strike(member="n0.0", fault="kill"), Strike(member="n1.0", fault="node")]
    assert survivors_lost(events, strikes) == []


def test_a_loss_that_nobody_caused_on_purpose_is_counted() -> None:
    events = [lost("n0.0", 1), lost("n0.1", 1.1), lost("n1.0", 5), lost("n1.1", 6 + NODE_S), lost("n2.0", 5)]
    strikes = [Strike(member="n0.0", fault="kill"), Strike(member="n1.0", fault="node")]
    assert survivors_lost(events, strikes) == ["n0.1", "n1.1", "n2.0"]


def test_steps_are_lost_where_a_generation_goes_on_from_before_them() -> None:
    calm: list[AnyEvent] = [opened(0), committed(1), committed(2), opened(2), committed(3), opened(None)]
    assert steps_redone(calm) == 0
    assert steps_redone([*calm, opened(1), committed(2), committed(3), opened(2)]) == 3


def test_the_record_of_a_run_is_read_in_order(tmp_path: Path) -> None:
    with Recorder(tmp_path / JOURNAL_DIRECTORY, run="bench") as recorder:
        recorder.record(StepCommitted, step=1)
        recorder.record(CheckpointLoaded, step=1)
        recorder.record(StepCommitted, step=2)
    events = events_of(tmp_path)
    assert [event.step for event in events if isinstance(event, StepCommitted)] == [1, 2]
    assert checkpoints_loaded(events) == 1
