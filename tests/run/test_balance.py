"""How many lanes each member has: the best deal, found soon and kept despite noise."""

import random
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples, sampled

from holdfast.run.balance import (
    EVIDENT_TIMES,
    FLOOR,
    LASTING_S,
    NAMED_AGAIN_S,
    ROUND_S,
    SETTLED,
    SUDDEN,
    WINDOW,
    BalanceFinding,
    Everyone,
    FindingKind,
    LaneBalance,
    Lap,
    RoundStretch,
    even_shares,
    fair_shares,
)

LANE_S = 0.05
Pace = Callable[[int, int], float]
"""How many times as long as usual a member takes for a lane in a step."""


class Run:
    """Members that compute as many lanes as the balance gives them."""

    def __init__(
        self,
        lanes: int,
        members: int,
        *,
        noise: float = 0.0,
        seed: int = 0,
        lane_s: float = LANE_S,
        cost: float = 1.0,
    ) -> None:
        self.balance = LaneBalance(lanes, members)
        self.found: list[tuple[int, BalanceFinding]] = []
        self.shares: list[tuple[int, ...]] = []
        self._noise, self._random, self._lane_s = noise, random.Random(seed), lane_s
        self._cost = cost

    def go(self, steps: int, pace: Pace, *, rest_s: Sequence[float] = (), tells: bool = True) -> None:
        for _ in range(steps):
            step = len(self.shares)
            self.shares.append(self.balance.shares)
            laps = [
                self._lap(
                    count, self._lane_s * pace(step, number), rest_s[number] if rest_s else 0.001, tells=tells
                )
                for number, count in enumerate(self.balance.shares)
            ]
            self.found += [(step, one) for one in self.balance.note(laps)]

    def _lap(self, count: int, lane_s: float, rest_s: float, *, tells: bool) -> Lap:
        costs = [1.0] * count if tells else [self._random.choice((0.5, 1.0, 4.0)) for _ in range(count)]
        seconds = [cost * lane_s * (1 + self._random.uniform(-self._noise, self._noise)) for cost in costs]
        return Lap(
            lanes_s=sum(seconds),
            cost=self._cost * sum(costs),
            rest_s=rest_s,
            quickest_s=min(took_s / (self._cost * cost) for took_s, cost in zip(seconds, costs, strict=True)),
        )

    def steps_of(self, *kinds: FindingKind) -> list[int]:
        return [step for step, one in self.found if one.kind in kinds]

    @property
    def changes(self) -> int:
        return sum(before != after for before, after in pairwise([*self.shares, self.balance.shares]))


def slow(member: int, times: float, since: int = 0, until: int = 10**9) -> Pace:
    return lambda step, number: times if number == member and since <= step < until else 1.0


def alike(_step: int, _member: int) -> float:
    return 1.0


@given(
    lanes_log2=st.integers(0, 3),
    lane_s=st.lists(st.floats(0.01, 10), min_size=1, max_size=4),
    data=st.data(),
)
def test_no_other_deal_is_through_sooner(lanes_log2: int, lane_s: list[float], data: st.DataObject) -> None:
    lanes, members = max(1 << lanes_log2, len(lane_s)), len(lane_s)
    rest_s = data.draw(st.lists(st.floats(0, 10), min_size=members, max_size=members))
    shares = fair_shares(lanes, lane_s, rest_s)
    assert sum(shares) == lanes
    assert min(shares) >= 1

    def ends_s(deal: Sequence[int]) -> float:
        return max(rest + n * one for rest, n, one in zip(rest_s, deal, lane_s, strict=True))

    every = {
        order
        for deal in combinations_with_replacement(range(1, lanes + 1), members)
        if sum(deal) == lanes
        for order in permutations(deal)
    }
    assert ends_s(shares) == min(map(ends_s, every))


@given(
    lanes_log2=st.integers(3, 7),
    members=st.integers(2, 8),
    paces=st.lists(st.floats(0.2, 8), min_size=8, max_size=8),
    noise=st.floats(0, 0.5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_lane_is_dealt_and_each_member_has_one(
    lanes_log2: int, members: int, paces: list[float], noise: float, seed: int
) -> None:
    run = Run(1 << lanes_log2, members, noise=noise, seed=seed)
    run.go(60, lambda step, number: paces[(number + step // 20) % 8])
    assert {sum(shares) for shares in run.shares} == {1 << lanes_log2}
    assert all(min(shares) >= 1 for shares in run.shares)
    assert run.changes == len(run.steps_of("moved", "even"))


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_half_the_speed_is_found_within_a_few_steps_and_dealt_for(lanes: int, noise: float) -> None:
    run = Run(lanes, 4, noise=noise)
    run.go(200, slow(1, 2.0, since=50))
    (moved,) = run.steps_of("moved")
    assert 50 <= moved <= 50 + WINDOW + 2
    assert run.changes == 1
    found = run.found[0][1]
    assert found.member == 1
    assert found.times == pytest.approx(2.0, rel=0.2)
    best = fair_shares(lanes, [1, 2, 1, 1], [0] * 4)
    shares = run.shares[-1]

    def ends(deal: Sequence[int]) -> float:
        return max(deal[0], 2 * deal[1], deal[2], deal[3])

    assert ends(best) >= 0.9 * ends(shares)
    assert ends(best) < 0.75 * ends(even_shares(lanes, 4))


@pytest.mark.parametrize("cost", [1.0, 4096.0])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_member_far_behind_in_long_steps_is_found_after_three_of_them(noise: float, cost: float) -> None:
    run = Run(16, 4, noise=noise, lane_s=0.2, cost=cost)
    run.go(200, slow(1, 3.0, since=50), rest_s=(0.2, 0.2, 0.2, 0.2))
    assert run.steps_of("moved") == [50 + SUDDEN - 1]
    assert run.changes == 1
    assert run.found[0][1].member == 1
    assert run.shares[-1][1] < 4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cost", [1.0, 4096.0])
def test_what_a_member_does_beside_its_lanes_does_not_make_it_slow(cost: float, seed: int) -> None:
    run = Run(16, 4, noise=0.9, seed=seed, lane_s=0.5, cost=cost)
    run.go(400, alike, rest_s=(0.6, 0.2, 0.2, 0.2))
    assert run.changes <= 1


@pytest.mark.parametrize(
    ("lanes", "pace"),
    [
        pytest.param(16, slow(1, 10.0, since=50, until=50 + SUDDEN - 1), id="two-rounds"),
        pytest.param(16, lambda step, number: 3.0 if number == step % 4 else 1.0, id="in-turns"),
        pytest.param(16, lambda step, _member: 3.0 if step >= 50 else 1.0, id="everyone"),
        pytest.param(4, slow(1, 3.0, since=50), id="nothing-to-move"),
    ],
)
def test_long_steps_that_are_held_up_move_nothing(lanes: int, pace: Pace) -> None:
    run = Run(lanes, 4, lane_s=0.5)
    run.go(200, pace)
    assert run.changes == 0


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("lanes", [16, 256])
def test_lanes_come_back_when_it_recovers(lanes: int, noise: float) -> None:
    """Even if one lane more or less hardly changes the step."""
    run = Run(lanes, 4, noise=noise)
    run.go(300, slow(2, 2.0, since=20, until=150))
    assert len(run.steps_of("moved")) == 1
    (back,) = run.steps_of("even")
    free = 0 if lanes == 16 else round(LASTING_S / (lanes / 4 * LANE_S))  # at once if it does
    assert 150 <= back <= 150 + 2 * WINDOW + free
    assert run.found[-1][1].member == 2
    assert run.shares[-1] == even_shares(lanes, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(5), [2]))
@pytest.mark.parametrize("noise", sampled([0.1, 0.9], [0.9]))
@pytest.mark.parametrize("lane_s", sampled([LANE_S, 1.0], [LANE_S]))
def test_noise_moves_nothing(noise: float, seed: int, lane_s: float) -> None:
    run = Run(64, 4, noise=noise, seed=seed, lane_s=lane_s)
    run.go(10_000, alike)
    assert run.changes <= 1
    assert len(run.found) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "steps"), sampled([(0, 2_000), *((seed, 10_000) for seed in range(3))], [(0, 2_000)])
)
def test_members_whose_pace_never_settles_do_not_keep_lanes_moving(seed: int, steps: int) -> None:
    """Each is slow until that is found, and then another one is."""
    moods = random.Random(seed)
    paces = [[moods.choice((1.0, 1.0, 3.0)) for _ in range(8)] for _ in range(steps // 20)]
    run = Run(64, 8, noise=0.2, seed=seed)
    run.go(steps, lambda step, number: paces[step // 20][number])
    assert 0 < run.changes <= 30


def test_a_pause_now_and_then_moves_nothing() -> None:
    """An evaluation on rank 0, garbage collection: every tenth step a member takes ten times as long."""
    run = Run(64, 4, noise=0.1)
    run.go(2_000, lambda step, number: 10.0 if step % 10 == 0 and number == step // 10 % 4 else 1.0)
    assert run.changes == 0


def test_a_slowdown_of_all_members_is_reported_and_moves_no_lanes() -> None:
    run = Run(16, 4, noise=0.1)
    run.go(300, lambda step, _: 2.0 if 100 <= step < 200 else 1.0)
    assert run.changes == 0
    assert [one.kind for _, one in run.found] == ["everyone", "everyone_over"]
    step, told = run.found[0]
    assert 100 < step <= 100 + WINDOW + LASTING_S / (4 * LANE_S)
    assert told.times == pytest.approx(2.0, rel=0.3)
    assert told.data == 0.0


def test_the_cause_of_a_slowdown_of_all_members_is_named() -> None:
    everyone, usual = Everyone(), Lap(lanes_s=1.0, cost=4.0, rest_s=0.1, data_s=0.2)
    starved = Lap(lanes_s=1.0, cost=4.0, rest_s=1.1, data_s=1.2)
    assert everyone.note([[usual] * 4] * WINDOW, RoundStretch(1, 1.0)) == ()
    found = [everyone.note([[starved] * 4] * WINDOW, RoundStretch(1, 1.0)) for _ in range(40)]
    (told,) = (one for each in found for one in each)
    assert told.data == pytest.approx(1.0)


def test_lanes_that_cost_more_are_not_slow_where_the_script_tells_what_they_cost() -> None:
    """Sequences of very different lengths, and one member that is slow among them."""
    run = Run(16, 4, seed=3)
    run.go(2_000, alike, tells=False)
    assert run.changes == 0
    run.go(100, slow(3, 2.0), tells=False)
    assert run.changes == 1
    assert run.found[0][1].member == 3


def test_work_beside_the_lanes_counts() -> None:
    """Rank 0 writes a log between any two steps: with fewer lanes it finishes with the others."""
    run = Run(16, 4)
    run.go(50, alike, rest_s=(0.2, 0.0, 0.0, 0.0))
    assert run.shares[-1][0] < 4
    assert run.changes == 1


def test_where_no_lane_can_be_moved_that_is_told_once() -> None:
    run = Run(4, 4, noise=0.1)
    run.go(500, slow(1, 2.0))
    assert run.changes == 0
    ((step, found),) = run.found
    assert (found.kind, found.member, found.wants_smaller_lanes) == ("stuck", 1, True)
    assert step * 2 * LANE_S >= LASTING_S - ROUND_S  # a short burst of other work is not worth a line


def test_on_a_busy_machine_nothing_is_told_of_members_that_are_slow_in_turn() -> None:
    run = Run(8, 4, noise=0.1, lane_s=0.1)
    run.go(600, lambda step, number: 1.5 if step // 20 % 4 == number else 1.0)  # each for some six seconds
    assert run.steps_of("stuck") == []


def test_more_lanes_are_no_help_against_slow_work_beside_the_lanes() -> None:
    run = Run(8, 8, lane_s=0.01)
    run.go(500, alike, rest_s=(0.1, *[0.07] * 7))
    ((_, found),) = run.found
    assert (found.kind, found.member, found.wants_smaller_lanes) == ("stuck", 0, False)


def test_a_member_below_the_floor_is_given_up_after_a_while_and_fed_less_until_then() -> None:
    run = Run(16, 4, noise=0.1)
    run.go(200, slow(2, 2 * FLOOR))
    kinds = [one.kind for _, one in run.found]
    assert kinds == ["moved", "floor"]
    assert run.found[1][1].member == 2
    assert run.found[1][1].times == pytest.approx(2 * FLOOR, rel=0.2)
    assert run.steps_of("floor")[0] >= run.steps_of("moved")[0] + WINDOW


def test_quick_steps_are_taken_together() -> None:
    """A short delay on a busy machine is as long as many such steps."""
    run = Run(16, 4)
    run.go(10 * WINDOW, lambda _, number: (2.0 if number == 1 else 1.0) / 100)  # four lanes in 2 or 4 ms
    assert run.balance.window is None
    run.go(20 * WINDOW, lambda _, number: (2.0 if number == 1 else 1.0) / 100)
    assert run.changes == 1


def test_a_large_run_is_looked_at_less_often_and_in_the_end_dealt_for() -> None:
    run = Run(512, 64, noise=0.1)
    run.go(40, slow(17, 2.0))
    assert run.changes == 1
    assert run.found[0][1].member == 17
    assert run.balance.shares[17] <= 4


def test_a_step_without_a_report_of_every_member_does_not_count() -> None:
    balance = LaneBalance(8, 2)
    for _ in range(100):
        assert balance.note([Lap(lanes_s=1.0, cost=4.0), Lap(lanes_s=0.0, cost=0.0)]) == ()
    assert balance.window is None


def test_two_members_that_hear_the_same_decide_the_same() -> None:
    one, other = (Run(64, 4, noise=0.4, seed=9) for _ in range(2))
    for run in (one, other):
        run.go(1_000, slow(0, 2.0, since=100, until=400))
    assert one.shares == other.shares
    assert one.changes > 0


# ---- members called slow before lanes move ---------------------------------------------------------------

PLAINLY = 1.25 * EVIDENT_TIMES


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize(
    ("lanes", "lane_s", "steps"),
    [
        pytest.param(16, 0.1, 1, id="four-long-lanes"),
        pytest.param(8, 0.1, 2, id="two-long-lanes"),
        pytest.param(16, 0.01, 5, id="short-lanes"),
    ],
)
def test_a_clearly_slow_member_is_named_after_four_lanes_and_a_second(
    lanes: int, lane_s: float, steps: int, noise: float
) -> None:
    run = Run(lanes, 4, noise=noise, lane_s=lane_s)
    run.go(60, slow(2, PLAINLY * (1 + 2 * noise), since=20))
    named, found = next((step, one) for step, one in run.found if one.kind == "slow")
    assert found.member == 2
    assert found.times >= EVIDENT_TIMES
    assert named == 20 + steps - 1 if not noise else 20 <= named < 20 + steps


def test_it_is_named_once_and_what_moves_lanes_then_is_the_same() -> None:
    run = Run(16, 4, lane_s=0.1)
    run.go(100, slow(2, PLAINLY, since=20))
    (named, _), (moved, finding), *_ = run.found
    assert [one.kind for _, one in run.found] == ["slow", "moved", "floor"]
    assert named < moved
    assert finding.is_named
    assert run.changes == 1


def test_a_slow_member_with_fewer_lanes_is_not_named_again() -> None:
    run = Run(16, 4, lane_s=0.1)
    run.go(30, slow(2, PLAINLY))  # from the first step on, when no member is named yet
    assert [one.kind for _, one in run.found] == ["moved", "floor"]
    assert not run.found[0][1].is_named


def test_one_with_fits_is_named_once_a_minute_at_most() -> None:
    run = Run(16, 4, lane_s=0.1)
    run.go(2_000, lambda step, number: PLAINLY if number == 1 and step > 20 and step % 20 == 0 else 1.0)
    assert run.changes == 0
    lasted_s = 2_000 * 4 * 0.1 * (1 + (PLAINLY - 1) / 20)
    assert 2 <= len(run.steps_of("slow")) <= lasted_s / NAMED_AGAIN_S + 1


@pytest.mark.parametrize(
    ("lanes", "pace"),
    [
        pytest.param(16, slow(1, EVIDENT_TIMES - 0.1), id="less"),
        pytest.param(16, slow(1, 1.2), id="a-little"),
        pytest.param(16, slow(1, 0.8), id="quicker"),
        pytest.param(16, slow(1, PLAINLY, until=SETTLED), id="first-steps"),
        pytest.param(16, lambda step, _: PLAINLY if step >= 20 else 1.0, id="everyone"),
        pytest.param(4, slow(1, PLAINLY, since=20), id="one-lane-each"),
        pytest.param(8, lambda step, number: PLAINLY if number == step % 4 else 1.0, id="in-turns"),
    ],
)
def test_a_member_that_is_not_clearly_slow_is_not_named(lanes: int, pace: Pace) -> None:
    run = Run(lanes, 4, lane_s=0.1)
    run.go(200, pace)
    assert run.steps_of("slow") == []


class BusyMachine:
    """Equal members on a machine with other work: lane times vary, sometimes a lane is held up for a second
    or more, and sometimes another process takes half of a member's processor for some seconds, or most of it
    for a moment.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._members = self._random.choice((2, 3, 4, 8))
        self._share = self._random.choice((2, 3, 4, 8))
        self._lane_s = self._random.choice((0.005, 0.02, 0.1, 0.5))
        self._spread = self._random.uniform(0.0, 0.7)
        self._paces = [self._random.uniform(0.8, 1.2) for _ in range(self._members)]
        self._now_s = [0.0] * self._members
        self._fit_until_s = [0.0] * self._members
        self._fit = [1.0] * self._members

    def named(self, steps: int) -> list[BalanceFinding]:
        balance = LaneBalance(self._members * self._share, self._members)
        found = [
            one
            for _ in range(steps)
            for one in balance.note([self._lap(number, has) for number, has in enumerate(balance.shares)])
        ]
        return [one for one in found if one.kind == "slow"]

    def _lap(self, number: int, lanes: int) -> Lap:
        took_s = [self._lane(number) for _ in range(lanes)]
        return Lap(lanes_s=sum(took_s), cost=lanes, rest_s=0.001, quickest_s=min(took_s))

    def _lane(self, number: int) -> float:
        chance = self._random
        if self._now_s[number] >= self._fit_until_s[number]:
            self._fit[number] = 1.0
            if chance.random() < 0.01:
                self._fit[number], longest_s = chance.choice(((2.0, 5.0), (8.0, 0.3)))
                self._fit_until_s[number] = self._now_s[number] + chance.uniform(0.0, longest_s)
        usual_s = self._lane_s * self._paces[number] * chance.lognormvariate(0.0, self._spread)
        stall_s = chance.expovariate(1.0) if chance.random() < 0.002 else 0.0
        took_s = usual_s * self._fit[number] + stall_s
        self._now_s[number] += took_s
        return took_s


@pytest.mark.parametrize("seed", sampled(range(30), range(10)))
def test_equal_members_on_a_busy_machine_are_not_called_slow(seed: int) -> None:
    assert BusyMachine(seed).named(200) == []


@pytest.mark.soak
def test_nor_are_they_in_thousands_of_runs() -> None:
    named = [seed for seed in range(3_000) if BusyMachine(seed).named(300)]
    assert named == []
