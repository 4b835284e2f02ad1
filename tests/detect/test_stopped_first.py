"""A run that stands: how soon that is told, and which members hold it up."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.pace import STEP
from holdfast.record.events import Outcome, RunEnded
from holdfast.signals.frame import Floats, Frame

RUN = "pretrain"
MEMBERS = ("n00000", "n00001", "n00002", "n00003")
HELD_UP, COMPUTING, EVALUATING = (1, 1), (0, 1), (0, 0)
"""Whether a member waits for others, and whether it is in a step."""
STEPPED_S, PATIENCE_S = 240, 20

Made = Callable[..., Frame]
Noisy = Callable[..., Floats]
Looked = Callable[..., Detected]
Standing = Callable[[int, Sequence[tuple[int, int]]], list[Frame]]


@pytest.fixture
def standing(framed: Made, noisy: Noisy) -> Standing:
    """A run that stepped for four minutes and has not for so long, its members in these places."""

    def make(stands_s: int, places: Sequence[tuple[int, int]]) -> list[Frame]:
        steps = noisy(0.1, STEPPED_S)
        steps = np.concatenate((steps, np.repeat(steps[-1:], stands_s, axis=0)))
        labels = [{"run": RUN, "member": name, "node": name} for name in MEMBERS]
        of_members = [
            framed(
                f"holdfast_member_{name}",
                np.concatenate((np.ones((STEPPED_S, 4)), np.tile(values, (stands_s, 1)))),
                MEMBERS,
                labels=labels,
                every_s=1.0,
            )
            for name, values in zip(("waiting", "in_step"), zip(*places, strict=True), strict=True)
        ]
        return [framed(STEP, steps, [RUN], labels=[{"run": RUN}], every_s=1.0), *of_members]

    return make


def found(detected: Detected, sign: str) -> list[str]:
    return sorted(one.subject.removeprefix(f"{RUN}/") for one in detected.runs[RUN] if one.sign == sign)


def test_a_hang_in_a_step_is_told_in_seconds_and_names_who_holds_the_others_up(
    standing: Standing, looked: Looked
) -> None:
    frames = standing(PATIENCE_S + 4, [HELD_UP, HELD_UP, COMPUTING, HELD_UP])
    detected = looked(*frames, window_s=120.0)
    assert found(detected, "no-step") == [RUN]
    assert found(detected, "stopped-first") == ["n00002"]
    last_ns = int(frames[0].times_ns[STEPPED_S - 1])
    told = {one.noticed_ns for one in detected.runs[RUN] if one.sign in ("no-step", "stopped-first")}
    assert told == {last_ns + PATIENCE_S * 10**9}


@pytest.mark.parametrize(
    ("stands_s", "places"),
    [
        (PATIENCE_S - 4, [HELD_UP, HELD_UP, COMPUTING, HELD_UP]),
        (PATIENCE_S + 4, [EVALUATING, HELD_UP, HELD_UP, HELD_UP]),
        (PATIENCE_S + 4, [COMPUTING] * 4),
    ],
)
def test_a_short_pause_an_evaluation_and_a_long_step_of_all_are_none(
    standing: Standing, looked: Looked, stands_s: int, places: Sequence[tuple[int, int]]
) -> None:
    detected = looked(*standing(stands_s, places), window_s=120.0)
    assert found(detected, "no-step") == found(detected, "stopped-first") == []


@pytest.mark.parametrize(
    ("outcome", "stands_s", "is_told"),
    [("completed", 1_000, False), ("stopped", 600, False), ("stopped", 1_000, True), ("failed", 600, True)],
)
def test_the_end_of_a_run_is_no_standstill_unless_it_stood_before(
    standing: Standing, looked: Looked, outcome: Outcome, stands_s: int, is_told: bool
) -> None:
    frames = standing(stands_s, [HELD_UP, HELD_UP, COMPUTING, HELD_UP])
    end_ns = int(frames[0].times_ns[-1])
    ended = RunEnded(id="end", occurred_ns=end_ns, run=RUN, outcome=outcome)
    detected = looked(*frames, events=[ended])
    assert found(detected, "no-step") == [RUN] * is_told


@pytest.mark.parametrize(("readings", "hangs"), [(1, False), (2, False), (3, True)])
def test_a_step_that_no_reading_missed_is_awaited(
    framed: Made, noisy: Noisy, looked: Looked, readings: int, hangs: bool
) -> None:
    """Steps of 20 s that are read every 15 s: the last reading showed the same one for so many readings."""
    made = noisy(20.0, 200)
    every = [made[int(15 * row / 20)] for row in range(240)]
    steps = framed(STEP, [*every, *[every[-1]] * readings], [RUN], labels=[{"run": RUN}], every_s=15.0)
    now_ns = int(steps.times_ns[-1]) + 29 * 10**9
    assert found(looked(steps, now_ns=now_ns), "no-step") == [RUN] * hangs
