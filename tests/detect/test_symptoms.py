"""A run by its own times: slow steps, late members, who is late changing, and what is none of it."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.finding import Finding
from holdfast.detect.pace import STEP
from holdfast.detect.scene import Healthy
from holdfast.detect.symptoms import COLLECTOR, LATE, MEMBER_LANES
from holdfast.record.events import ReferenceDeclared
from holdfast.signals.frame import Floats, Frame
from holdfast.signals.source import Source
from holdfast.signals.stepped import COUNTED, SteppedSource

RUN = "pretrain"
ROWS, SINCE = 180, 120
STEP_S, COMPUTE_S = 6.0, 5.0
MEMBERS = tuple(f"n{number:05}" for number in range(48))
DECLARED = (ReferenceDeclared(id="reference", occurred_ns=1, run=RUN, step_ns=round(STEP_S * 1e9)),)

Made = Callable[..., Frame]
Counted = Callable[[Sequence[int]], Iterator[Frame]]
Noisy = Callable[..., Floats]
Looked = Callable[..., Detected]


@pytest.fixture
def steps(framed: Made) -> Made:
    def make(values: Floats, run: str = RUN) -> Frame:
        return framed(STEP, values, [run], labels=[{"run": run}])

    return make


@pytest.fixture
def members(framed: Made) -> Made:
    def make(part: str, values: Floats, names: Sequence[str] = MEMBERS, run: str = RUN) -> Frame:
        labels = [{"run": run, "member": name, "node": name} for name in names]
        names_of = {"collector": COLLECTOR, "lanes": MEMBER_LANES}
        metric = names_of.get(part, f"holdfast_member_{part}_seconds")
        return framed(metric, values, names, labels=labels)

    return make


def signs(detected: Detected) -> set[tuple[str, str]]:
    return {(one.sign, one.subject) for one in detected.runs[RUN]}


def the_one(detected: Detected, sign: str) -> Finding:
    (found,) = [one for one in detected.runs[RUN] if one.sign == sign]
    return found


def estimated(step_s: float) -> Healthy:
    return Healthy(step_s=step_s, is_declared=False)


# -- slow steps ----------------------------------------------------------------------------------------


def test_a_step_is_slow_against_its_past(steps: Made, noisy: Noisy, looked: Looked) -> None:
    values = noisy(STEP_S, ROWS)
    values[SINCE:] += 1.5
    frame = steps(values)
    found = the_one(looked(frame), "slow-step")
    assert found.subject == RUN
    assert (found.since_ns, found.until_ns) == (frame.times_ns[SINCE], None)
    assert found.noticed_ns == frame.times_ns[SINCE + 2]
    assert found.usual == pytest.approx(STEP_S, rel=0.01)
    assert found.effect_s == pytest.approx(1.5, rel=0.05)


def test_a_step_that_is_longer_by_less_than_anybody_minds_is_none(
    steps: Made, noisy: Noisy, looked: Looked
) -> None:
    values = noisy(STEP_S, ROWS, share=0.001)
    values[SINCE:] += 0.025 * STEP_S
    assert looked(steps(values)).runs[RUN] == ()


def test_where_the_past_was_slow_already_the_declared_step_counts(
    steps: Made, noisy: Noisy, looked: Looked
) -> None:
    frame = steps(noisy(1.2 * STEP_S, ROWS))
    assert looked(frame).runs[RUN] == ()
    found = the_one(looked(frame, events=DECLARED), "slow-step")
    assert found.since_ns == frame.times_ns[0]
    assert found.usual == pytest.approx(STEP_S)
    assert found.effect_s == pytest.approx(0.2 * STEP_S, rel=0.05)


def test_an_estimate_of_the_step_counts_where_the_past_was_far_from_it(
    steps: Made, noisy: Noisy, looked: Looked
) -> None:
    """An estimate is the best of what was seen, and most steps take a little longer than that."""
    frame = steps(noisy(STEP_S, ROWS))
    assert looked(frame, healthy=estimated(STEP_S / 1.08)).runs[RUN] == ()
    found = the_one(looked(frame, healthy=estimated(STEP_S / 9)), "slow-step")
    assert found.method == "reference"
    assert found.usual == pytest.approx(STEP_S / 9)


def test_of_two_members_the_one_that_was_always_slow_is_late(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    compute = noisy(COMPUTE_S, ROWS, 2)
    compute[:, 0] /= 10
    frames = steps(noisy(STEP_S, ROWS)), members("compute", compute, MEMBERS[:2])
    detected = looked(*frames, healthy=estimated(STEP_S / 6))
    assert signs(detected) == {("slow-step", RUN), ("late-compute", f"{RUN}/{MEMBERS[1]}")}


def test_a_past_that_was_better_than_declared_counts(steps: Made, noisy: Noisy, looked: Looked) -> None:
    values = noisy(0.8 * STEP_S, ROWS)
    values[SINCE:] *= 0.95 / 0.8
    assert the_one(looked(steps(values), events=DECLARED), "slow-step").usual == pytest.approx(
        0.8 * STEP_S, rel=0.01
    )


def test_one_step_that_is_shown_three_times_is_one_observation(
    steps: Made, noisy: Noisy, looked: Looked
) -> None:
    """Steps of half a minute at a scrape of ten seconds: once is not three times."""
    by_step = noisy(30.0, ROWS // 3)
    by_step[40] += 10.0
    assert looked(steps(np.repeat(by_step, 3, axis=0))).runs[RUN] == ()
    by_step[40:43] += 10.0
    found = the_one(looked(steps(np.repeat(by_step, 3, axis=0))), "slow-step")
    assert found.noticed_ns >= found.since_ns + 60 * 10**9


@pytest.mark.parametrize("step_s", [20, 60, 90, 200])
def test_steps_that_take_longer_than_a_minute_become_slower_too(
    steps: Made, noisy: Noisy, looked: Looked, step_s: int
) -> None:
    before, after = noisy(step_s, 60), noisy(1.6 * step_s, 4)
    shown = (np.repeat(before, step_s // 10, axis=0), np.repeat(after, round(0.16 * step_s), axis=0))
    frame = steps(np.concatenate(shown))
    found = the_one(looked(frame, window_s=3_600.0), "slow-step")
    assert (found.since_ns, found.until_ns) == (frame.times_ns[len(shown[0])], None)


@pytest.fixture
def counted(framed: Made, shown: Callable[..., Source]) -> Counted:
    """What a source shows of a run whose count of steps is read every ten seconds."""

    def make(counts: Sequence[int]) -> Iterator[Frame]:
        read = framed("trainer_step", np.array(counts), [RUN], labels=[{"run": RUN}])
        source = SteppedSource(shown(read), "trainer_step")
        for metric in (STEP, COUNTED):
            frame = source.frame(metric, (int(read.times_ns[0]), int(read.times_ns[-1]) + 1))
            assert frame is not None
            yield frame

    return make


def test_a_step_that_a_reading_just_missed_is_no_slow_step(counted: Counted, looked: Looked) -> None:
    """Steps as long as readings are apart: one more or one less may fall between two of them."""
    for late in range(100, 112):
        frames = counted([row - (row >= late) for row in range(112)])
        assert looked(*frames).runs[RUN] == ()


def test_a_count_shows_slow_steps_within_ten_of_them(counted: Counted, looked: Looked) -> None:
    slow = [120 + int(row / 1.64) for row in range(1, 18)]
    found = the_one(looked(*counted([*range(120), *slow])), "slow-step")
    assert found.value == pytest.approx(16.4, rel=0.2)


def test_a_second_series_of_the_same_run_is_no_mistake(framed: Made, noisy: Noisy, looked: Looked) -> None:
    """Its exporter moved to another machine, and one label changed with it."""
    values = np.hstack([noisy(STEP_S, ROWS), noisy(STEP_S, ROWS, seed=1)])
    values[90:, 0] = values[:90, 1] = np.nan
    values[SINCE:, 1] += 1.5
    labels = [{"run": RUN, "instance": "a:9"}, {"run": RUN, "instance": "b:9"}]
    frame = framed(STEP, values, [RUN, RUN], labels=labels)
    found = the_one(looked(frame), "slow-step")
    assert found.since_ns == frame.times_ns[SINCE]


def test_another_run_is_another_matter(steps: Made, noisy: Noisy, looked: Looked) -> None:
    values = noisy(STEP_S, ROWS)
    values[SINCE:] += 1.5
    assert looked(steps(values, run="other")).runs[RUN] == ()


# -- late members --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", LATE)
def test_a_member_is_late_against_its_past(
    part: str, steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[SINCE:, [3, 17]] += 1.0
    frame = members(part, values)
    detected = looked(steps(noisy(STEP_S, ROWS)), frame)
    assert signs(detected) == {(f"late-{part}", f"{RUN}/{MEMBERS[number]}") for number in (3, 17)}
    for found in detected.runs[RUN]:
        assert (found.since_ns, found.until_ns) == (frame.times_ns[SINCE], None)
        assert found.noticed_ns == frame.times_ns[SINCE + 2]
        assert found.effect_s == pytest.approx(1.0, rel=0.05)


def test_who_was_late_before_the_looking_began_is_late_against_its_peers(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[:, 5] += 1.0
    values[:, 6] += 0.1  # some are always a little slower
    frame = members("compute", values)
    detected = looked(steps(noisy(STEP_S, ROWS)), frame)
    assert signs(detected) == {("late-compute", f"{RUN}/{MEMBERS[5]}")}
    assert detected.runs[RUN][0].since_ns == frame.times_ns[0]


def test_a_member_that_came_later_is_held_against_its_peers(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[:100, 7] = values[:100, 8] = np.nan
    values[100:, 8] += 1.0
    detected = looked(steps(noisy(STEP_S, ROWS)), members("compute", values))
    assert signs(detected) == {("late-compute", f"{RUN}/{MEMBERS[8]}")}


def test_a_member_that_left_is_not_late(steps: Made, members: Made, noisy: Noisy, looked: Looked) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[100:, 7] = np.nan
    assert looked(steps(noisy(STEP_S, ROWS)), members("compute", values)).runs[RUN] == ()


def test_a_run_that_began_within_the_window_is_not_late_as_a_whole(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    """A source shows the whole window, with nothing in it from before the run."""
    step, compute = noisy(STEP_S, ROWS), noisy(COMPUTE_S, ROWS, len(MEMBERS))
    step[:100] = compute[:100] = np.nan
    for events in ((), DECLARED):
        assert looked(steps(step), members("compute", compute), events=events).runs[RUN] == ()


def test_in_a_young_run_a_member_can_become_late_too(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    step, compute = noisy(STEP_S, ROWS), noisy(COMPUTE_S, ROWS, len(MEMBERS))
    compute[150:, 11] += 1.0
    step[150:] += 1.0
    step[:100] = compute[:100] = np.nan
    detected = looked(steps(step), members("compute", compute), events=DECLARED)
    assert signs(detected) == {("slow-step", RUN), ("late-compute", f"{RUN}/{MEMBERS[11]}")}


def test_members_without_a_step_time_need_the_declared_one(
    members: Made, noisy: Noisy, looked: Looked
) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[SINCE:, 3] += 1.0
    frame = members("compute", values)
    assert signs(looked(frame, events=DECLARED)) == {("late-compute", f"{RUN}/{MEMBERS[3]}")}
    assert looked(frame).runs[RUN] == ()


def test_a_run_of_one_member(steps: Made, members: Made, noisy: Noisy, looked: Looked) -> None:
    compute = noisy(COMPUTE_S, ROWS)
    compute[SINCE:] += 1.0
    detected = looked(steps(noisy(STEP_S, ROWS)), members("compute", compute, MEMBERS[:1]))
    assert signs(detected) == {("late-compute", f"{RUN}/{MEMBERS[0]}")}


# -- who is late changes -------------------------------------------------------------------------------


def another_each_time(values: Floats, since: int, extra_s: float = 1.2) -> Floats:
    for row in range(since, len(values)):
        values[row, (row * 7) % values.shape[1]] += extra_s
    return values


def test_another_member_each_time_is_wandering(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    step = noisy(STEP_S, ROWS)
    step[SINCE:] += 1.2
    frame = members("compute", another_each_time(noisy(COMPUTE_S, ROWS, len(MEMBERS)), SINCE))
    detected = looked(steps(step), frame)
    assert signs(detected) == {("slow-step", RUN), ("wandering", RUN)}
    found = the_one(detected, "wandering")
    assert found.since_ns == frame.times_ns[SINCE]
    assert frame.times_ns[SINCE + 3] <= found.noticed_ns <= frame.times_ns[SINCE + 4]
    assert found.until_ns is None
    assert found.effect_s == pytest.approx(1.2, rel=0.1)


def test_wandering_that_is_over_says_so(steps: Made, members: Made, noisy: Noisy, looked: Looked) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    another_each_time(values[:150], SINCE)
    frame = members("compute", values)
    found = the_one(looked(steps(noisy(STEP_S, ROWS)), frame), "wandering")
    assert found.until_ns is not None
    assert abs(found.until_ns - int(frame.times_ns[149])) <= 20 * 10**9


def test_the_same_few_members_are_not_wandering(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[SINCE:, 20:24] += 1.2
    detected = looked(steps(noisy(STEP_S, ROWS)), members("compute", values))
    assert {sign for sign, _ in signs(detected)} == {"late-compute"}


def test_everybody_at_once_is_not_wandering(steps: Made, members: Made, noisy: Noisy, looked: Looked) -> None:
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[SINCE:] += 1.2
    detected = looked(steps(noisy(STEP_S, ROWS)), members("compute", values))
    assert {sign for sign, _ in signs(detected)} == {"late-compute"}


def test_wandering_is_counted_by_steps_and_not_by_scrapes(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    """Two late steps that are shown five times each are two."""
    by_step = noisy(COMPUTE_S, ROWS // 5, len(MEMBERS))
    by_step[30, 3] += 1.2
    by_step[31, 9] += 1.2
    frame = members("compute", np.repeat(by_step, 5, axis=0))
    assert "wandering" not in {sign for sign, _ in signs(looked(steps(noisy(STEP_S, ROWS)), frame))}


def test_wandering_is_said_of_the_run_whatever_its_members_are_called(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    names = [f"rack1/{name}" for name in MEMBERS]
    frame = members("compute", another_each_time(noisy(COMPUTE_S, ROWS, len(MEMBERS)), SINCE), names)
    assert the_one(looked(steps(noisy(STEP_S, ROWS)), frame), "wandering").subject == RUN


# -- garbage -------------------------------------------------------------------------------------------


def test_members_that_collect_more_than_they_did(members: Made, looked: Looked) -> None:
    """One of them at a time, for a second in ten: none on its own spends much."""
    spent = np.full((ROWS, len(MEMBERS)), 0.02)
    for row in range(SINCE, ROWS):
        spent[row, (row * 5) % len(MEMBERS)] += 1.0
    frame = members("collector", np.cumsum(spent, axis=0))
    found = the_one(looked(frame), "collecting")
    assert (found.subject, found.since_ns, found.until_ns) == (RUN, frame.times_ns[SINCE], None)
    assert found.value == pytest.approx(0.1, rel=0.05)


def test_members_that_always_collect_are_nothing_new(members: Made, looked: Looked) -> None:
    spent = 0.5 + 0.01 * np.random.default_rng(5).standard_normal((ROWS, len(MEMBERS)))
    assert looked(members("collector", np.cumsum(spent, axis=0))).runs[RUN] == ()


def test_a_member_that_joins_with_a_long_history_has_not_collected_all_of_it_now(
    members: Made, looked: Looked
) -> None:
    spent = np.cumsum(np.full((ROWS, len(MEMBERS)), 0.02), axis=0)
    spent[:, 4] += 5_000.0
    spent[:SINCE, 4] = np.nan
    assert looked(members("collector", spent)).runs[RUN] == ()


def test_a_number_without_end_is_no_mistake(steps: Made, members: Made, noisy: Noisy, looked: Looked) -> None:
    """Prometheus has +Inf, and a member that divides by nothing shows it."""
    values = noisy(COMPUTE_S, ROWS, len(MEMBERS))
    values[100:, 3] = np.inf
    detected = looked(steps(noisy(STEP_S, ROWS)), members("compute", values))
    assert signs(detected) <= {("late-compute", f"{RUN}/{MEMBERS[3]}")}


def test_collecting_is_seen_in_a_window_of_less_than_a_minute(framed: Made, looked: Looked) -> None:
    """Four members in turn, half of a second each: the one in turn spends half of its time on it."""
    names = MEMBERS[:4]
    rates = np.zeros((46, 4))
    rates[26:, :] = 0.5 * np.eye(4)[np.arange(20) % 4]
    labels = [{"run": RUN, "member": name, "node": name} for name in names]
    collector = framed(COLLECTOR, np.cumsum(rates, axis=0), names, labels=labels, every_s=1.0)
    step = framed(STEP, np.where(np.arange(46) < 26, 0.125, 0.22), [RUN], labels=[{"run": RUN}], every_s=1.0)
    found = the_one(looked(collector, step, window_s=45.5), "collecting")
    assert (found.since_ns, found.until_ns) == (collector.times_ns[26], None)


def test_a_slow_member_is_late_also_when_others_have_its_lanes(
    steps: Made, members: Made, noisy: Noisy, looked: Looked
) -> None:
    """Its lanes were moved so that all take as long: without a look at lanes, who has them would be late."""
    names, moved = MEMBERS[:4], SINCE + 8
    compute, lanes = noisy(COMPUTE_S, ROWS, 4), np.full((ROWS, 4), 4.0, np.float32)
    compute[SINCE:, 0] *= 2.0
    compute[moved:, 0] /= 2.0
    compute[moved:, 1:3] *= 1.25
    lanes[moved:] = (2.0, 5.0, 5.0, 4.0)
    taken = noisy(STEP_S, ROWS)
    taken[SINCE:] += 1.5
    found = looked(steps(taken), members("compute", compute, names), members("lanes", lanes, names))
    late = [one for one in found.runs[RUN] if one.sign == "late-compute"]
    assert [one.subject for one in late] == [f"{RUN}/{names[0]}"]
    assert late[0].until_ns is None
    assert late[0].since_ns == found.runs[RUN][0].since_ns
