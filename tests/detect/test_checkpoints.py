"""Checkpoints that take more of a run's time than they did, by what its record says."""

from collections.abc import Callable, Iterable

import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.finding import Finding
from holdfast.detect.scene import scene
from holdfast.record.events import (
    CheckpointBegun,
    CheckpointFailed,
    CheckpointSaved,
    KnownEvent,
    ReferenceDeclared,
    RunStarted,
)

RUN = "pretrain"
S = 10**9
BEGAN_S = 1_000_000
EVERY_S, STALL_S, SIZE_BYTES = 600, 10.0, 4 * 10**12
STARTED = RunStarted(id="started", occurred_ns=BEGAN_S * S, run=RUN, gpus=256)
DECLARED = ReferenceDeclared(id="reference", occurred_ns=BEGAN_S * S, run=RUN, step_ns=6 * S)


def saved(at_s: float, stall_s: float = STALL_S, size_bytes: int | None = SIZE_BYTES) -> list[KnownEvent]:
    """One that training waited for, from its beginning."""
    from_ns, to_ns = round((BEGAN_S + at_s) * S), round((BEGAN_S + at_s + stall_s) * S)
    return [
        CheckpointBegun(id=f"begun-{at_s}", occurred_ns=from_ns, run=RUN, step=round(at_s)),
        CheckpointSaved(
            id=f"saved-{at_s}", occurred_ns=to_ns, run=RUN, step=round(at_s), size_bytes=size_bytes
        ),
    ]


def usual(count: int = 8) -> list[KnownEvent]:
    events = [event for number in range(1, count + 1) for event in saved(number * EVERY_S)]
    return [STARTED, DECLARED, *events]


Found = Callable[[Iterable[KnownEvent], float], dict[str, Finding]]


@pytest.fixture
def found(looked: Callable[..., Detected]) -> Found:
    """By sign: what is to be said of this record, so many seconds after the run began."""

    def look(events: Iterable[KnownEvent], now_s: float) -> dict[str, Finding]:
        now_ns = round((BEGAN_S + now_s) * S)
        return {one.sign: one for one in looked(events=list(events), now_ns=now_ns).runs[RUN]}

    return look


LAST_S = 9 * EVERY_S


def test_checkpoints_as_ever_are_nothing(found: Found) -> None:
    assert found(usual(), LAST_S) == {}
    assert found([*usual(), *saved(LAST_S, 1.2 * STALL_S)], LAST_S + 60) == {}


def test_the_same_bytes_that_take_longer_are_slow(found: Found) -> None:
    events = [*usual(), *saved(LAST_S, 40.0)]
    one = found(events, LAST_S + 60)["slow-checkpoint"]
    assert one.since_ns == (BEGAN_S + LAST_S) * S
    assert (one.value, one.usual) == pytest.approx((40.0, STALL_S))
    assert one.effect_s == pytest.approx((40.0 - STALL_S) * 6 / (EVERY_S - (40.0 - STALL_S)))
    assert one.until_ns is None
    over = found([*events, *saved(10 * EVERY_S)], 10 * EVERY_S + 60)["slow-checkpoint"]
    assert (over.since_ns, over.until_ns) == (one.since_ns, (BEGAN_S + 10 * EVERY_S) * S)
    much_later = [*events, *(event for number in range(10, 16) for event in saved(number * EVERY_S))]
    assert found(much_later, 16 * EVERY_S) == {}


def test_one_that_is_not_finished_is_slow_once_it_has_taken_too_long(found: Found) -> None:
    events = [*usual(), saved(LAST_S)[0]]
    assert found(events, LAST_S + STALL_S) == {}
    assert found(events, LAST_S + 1.39 * STALL_S) == {}
    one = found(events, LAST_S + 1.5 * STALL_S)["slow-checkpoint"]
    assert one.since_ns == (BEGAN_S + LAST_S) * S
    assert one.noticed_ns == pytest.approx((BEGAN_S + LAST_S + 1.4 * STALL_S) * S)
    assert one.value == pytest.approx(1.5 * STALL_S)


def test_one_that_failed_holds_nobody_up_any_longer(found: Found) -> None:
    begun = saved(LAST_S)[0]
    failed = CheckpointFailed(id="failed", occurred_ns=begun.occurred_ns + 5 * S, run=RUN, step=LAST_S)
    assert found([*usual(), begun, failed], LAST_S + 300) == {}


def test_a_snapshot_that_failed_ends_no_stall(found: Found) -> None:
    begun = saved(LAST_S)[0]
    failed = CheckpointFailed(
        id="failed", occurred_ns=begun.occurred_ns + 5 * S, run=RUN, step=LAST_S, is_snapshot=True
    )
    assert "slow-checkpoint" in found([*usual(), begun, failed], LAST_S + 300)


def test_a_larger_one_is_not_slow_but_more(found: Found) -> None:
    events = [*usual(), *saved(LAST_S, 2 * STALL_S, 2 * SIZE_BYTES)]
    (one,) = found(events, LAST_S + 60).values()
    assert one.sign == "frequent-checkpoints"
    assert one.since_ns == (BEGAN_S + LAST_S) * S


def test_nothing_is_noticed_before_it_can_be_known(found: Found) -> None:
    """How large it is, is known when it is there."""
    events = [*usual(), *saved(LAST_S, 2 * STALL_S, 2 * SIZE_BYTES)]
    one = found(events, LAST_S + 60)["frequent-checkpoints"]
    assert one.noticed_ns == (BEGAN_S + LAST_S + 2 * STALL_S) * S


def test_more_frequent_ones_are_more(found: Found) -> None:
    events = [*usual(), *(event for at_s in range(5_000, 5_601, 100) for event in saved(at_s))]
    (one,) = found(events, 5_660).values()
    assert (one.sign, one.subject) == ("frequent-checkpoints", RUN)
    assert one.since_ns == (BEGAN_S + 5_000) * S
    assert (one.value, one.usual) == pytest.approx((100, EVERY_S))
    more_s = STALL_S - STALL_S * 100 / EVERY_S
    assert one.effect_s == pytest.approx(more_s * 6 / (100 - more_s))


def test_the_first_ones_tell_what_is_usual(found: Found) -> None:
    assert found([STARTED, DECLARED], 60) == {}
    assert found([STARTED, DECLARED, *saved(EVERY_S, 100.0)], EVERY_S + 200) == {}
    assert found([STARTED, DECLARED, saved(EVERY_S)[0]], EVERY_S + 500) == {}
    two = [STARTED, DECLARED, *saved(EVERY_S), *saved(2 * EVERY_S, 40.0)]
    assert set(found(two, 2 * EVERY_S + 60)) == {"slow-checkpoint"}


def test_short_stalls_are_nobodys_concern(found: Found) -> None:
    events = [STARTED, DECLARED, *(one for at_s in range(600, 6_000, 600) for one in saved(at_s, 0.1))]
    assert found([*events, *saved(6_600, 0.4)], 6_660) == {}


def test_a_record_that_begins_with_a_checkpoint_is_no_mistake(found: Found) -> None:
    """The time since the one before is unknown."""
    events = [*saved(0), *saved(600, 2 * STALL_S, 2 * SIZE_BYTES)]
    assert set(found(events, 660)) <= {"frequent-checkpoints"}


def test_checkpoints_that_training_does_not_wait_for_are_no_stalls(found: Found) -> None:
    events: list[KnownEvent] = [STARTED, DECLARED]
    for at_s in range(600, 6_000, 600):
        begun, done = saved(at_s, 60.0)
        assert isinstance(begun, CheckpointBegun)
        events += [CheckpointBegun(id=begun.id, occurred_ns=begun.occurred_ns, run=RUN, step=1), done]
    beside = [
        CheckpointBegun(id=one.id, occurred_ns=one.occurred_ns, run=RUN, step=1, blocking=False)
        if isinstance(one, CheckpointBegun)
        else one
        for one in events
    ]
    assert scene(RUN, events, now_ns=(BEGAN_S + 6_000) * S).checkpoints[-1].stall_s == 60.0
    assert {one.stall_s for one in scene(RUN, beside, now_ns=(BEGAN_S + 6_000) * S).checkpoints} == {0.0}
    assert found(beside, 6_000) == {}


def test_without_a_reference_there_is_a_finding_but_no_effect(found: Found) -> None:
    events = [event for event in (*usual(), *saved(LAST_S, 40.0)) if event is not DECLARED]
    assert found(events, LAST_S + 60)["slow-checkpoint"].effect_s is None
