"""How many lanes each member gets, so that all members finish a step at the same moment.

Pure: it computes the next deal from the members' step times. Every member computes the deal itself from the
same figures, which came with the gradients, so all reach the same deal in the same step without exchanging
further messages. The code uses no random numbers and only addition, multiplication, division and order, so
the result is the same on every machine.

Steps are grouped into rounds of a tenth of a second or more, and a window of rounds is judged together. Lanes
move if the deal that follows from the window's medians shortens steps by at least a twelfth, by more than the
rounds vary anyway, and would have done so in most of them; or if a member clearly falls behind in a few long
rounds. Lanes are dealt evenly again if an even deal has been as good for a while. After each change more
rounds must pass before the next, so that members whose pace never settles do not keep lanes moving.

A member is called slow before that if each of its lanes takes many times as long as the others' lanes. If
lanes are long, the lanes of a single step are enough.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

WINDOW = 8
"""This many rounds are judged together. Their median ignores up to three rounds that were held up."""
HOLDS = 6
"""A new deal must have been better in this many rounds of the window."""
SUDDEN, SUDDEN_S, SUDDEN_TIMES = 3, 2.0, 2.0
"""The last three rounds are enough if they take two seconds and the same member takes twice as long as the
others in each of them. If steps are long, a whole window takes many seconds.
"""
EVIDENT_TIMES, EVIDENT_LANES, EVIDENT_S = 4.0, 4, 1.0
"""A member is named if each of its lanes takes four times as long as the others' usually do, for four or more
lanes in a row that take a second or more. A short delay would leave at least one of those lanes unaffected.
"""
SETTLED = 8
"""No member is named in the first steps of a generation: caches are cold, and something may compile."""
NAMED_AGAIN_S = 60.0
"""The least time between naming one member and the next."""
ROUND_S = 0.1
"""The least length of a round, long enough to average out short disturbances by other processes."""
GAIN_MIN = 1 / 12
"""Lanes move if that shortens a step by this fraction. Two equal members differ by less."""
SPREAD_MAX = 0.8
"""The gain must also exceed this fraction of the spread of a member's rounds. That is three standard errors
of a window's median if round times are normally distributed.
"""
SMALLER = 4
"""More lanes are advised if this many times as many, dealt by pace, would make a step shorter."""
EVEN_COST_MAX = 0.02
"""Lanes are dealt evenly again if, for a while, that would lengthen a step by no more than this fraction."""
SLOW = 1.25
"""A member that takes this many times as long as the others is called slow."""
FLOOR = 4.0
"""A member that takes this many times as long for a lane is replaced: a warm process makes better use of the
seat.
"""
LASTING_S = 10.0
"""A condition lasts if it held for at least this long and for two windows. A burst of other work on the
machine is shorter.
"""
EVERYONE = 1.5
"""If all members take this many times as long as they once did, and it lasts, a finding says so."""
EVERYONE_OVER = 1.2
"""That finding is over when they take no more than this many times as long."""
LOOK_S = 0.01
"""Least time between two looks at the window, per member: a look takes 10 to 16 microseconds a member."""
LANES = 16
"""In a look at the window, this many lanes cost as much time as one member."""
PATIENCE_MAX = 512
"""The most rounds between two changes that are required."""
CALM = 8
"""After this many times the patience without a change, the patience is halved."""

FindingKind = Literal["moved", "even", "stuck", "slow", "floor", "everyone", "everyone_over"]


class Lap(msgspec.Struct, frozen=True, kw_only=True):
    """A member's report of one step: how long its lanes took and what they cost, the time for its other work,
    and how much of all that it waited for data. No figure includes waiting for other members. quickest_s: how
    long its quickest lane took per unit of cost; 0 if unknown.
    """

    lanes_s: float
    cost: float
    rest_s: float = 0.0
    data_s: float = 0.0
    quickest_s: float = 0.0

    @property
    def pace_s(self) -> float:
        """The time its lanes took, per unit of their cost."""
        return self.lanes_s / self.cost


class BalanceFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A conclusion from the members' pace.

    moved: lanes are dealt by pace. even: lanes are dealt evenly again. stuck: a member has been slow for a
    while, and no lane can be moved away from it. slow: a member is clearly slow; whether lanes move is not
    decided yet. floor: a member is too slow to keep. everyone: all are slower than before. everyone_over:
    they no longer are. member: the number of the member that is slow or gets lanes back. times: how many
    times as long as the others it takes for the same work, or as before if it is about everyone. data: the
    part of the slowdown that is waiting for data. is_named: an earlier finding called it slow, and it has
    been slow since. wants_smaller_lanes: with more and smaller lanes a deal would be better.
    """

    kind: FindingKind
    member: int = 0
    times: float = 1.0
    data: float = 0.0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    is_named: bool = False
    wants_smaller_lanes: bool = False


class RoundStretch(msgspec.Struct, frozen=True):
    """A number of rounds and the time they took."""

    rounds: int = 0
    seconds: float = 0.0

    def longer(self, seconds: float, rounds: int = 1) -> "RoundStretch":
        return RoundStretch(self.rounds + rounds, self.seconds + seconds)


class DealDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The next deal and why. slowest: the member that the others wait for in the present deal. times: how
    many times as long as the others it takes for the same work. is_stuck: it is slow, and no other deal would
    help. wants_smaller_lanes: more and smaller lanes would. is_even_free: even shares would cost next to
    nothing. laggard: the member that takes longest per
    lane, however many lanes it has. lane_times: how many times as long as the others it takes per lane.
    """

    shares: tuple[int, ...]
    slowest: int
    times: float
    is_stuck: bool
    wants_smaller_lanes: bool
    is_even_free: bool
    laggard: int
    lane_times: float


def even_shares(lanes: int, members: int) -> tuple[int, ...]:
    """Shares that are as equal as possible, the larger ones first."""
    size, larger = divmod(lanes, members)
    return tuple(size + (number < larger) for number in range(members))


def fair_shares(lanes: int, lane_s: Sequence[float], rest_s: Sequence[float]) -> tuple[int, ...]:
    """The deal with which the last member finishes as early as possible. Each member gets at least one lane,
    because the pace of a member without lanes would be unknown.

    lane_s: the time each member takes for a lane. rest_s: the time for its other work.
    """
    shares = [1] * len(lane_s)
    queue = [(rest_s[number] + 2 * one_s, number) for number, one_s in enumerate(lane_s)]
    heapq.heapify(queue)
    for _ in range(lanes - len(shares)):
        _, number = queue[0]
        shares[number] += 1
        heapq.heapreplace(queue, (rest_s[number] + (shares[number] + 1) * lane_s[number], number))
    return tuple(shares)


def decide(rounds: Sequence[Sequence[Lap]], shares: Sequence[int], holds: int = HOLDS) -> DealDecision:
    """Choose the next deal. rounds: every member's lap in each round. shares: the present deal. holds: the
    number of rounds in which a new deal must have been better.
    """
    lanes, members = sum(shares), len(shares)
    cost = median([math.fsum(lap.cost for lap in one) / lanes for one in rounds])
    looks = [_Look(one, math.fsum(lap.cost for lap in one) / lanes) for one in rounds]
    usual = _Look(
        [
            Lap(
                lanes_s=median([one[number].pace_s for one in rounds]),
                cost=1.0,
                rest_s=median([one[number].rest_s for one in rounds]),
            )
            for number in range(members)
        ],
        cost,
    )
    present, even = tuple(shares), even_shares(lanes, members)
    present_s, even_s = usual.step_s(present), usual.step_s(even)
    gain = GAIN_MIN + SPREAD_MAX * median([_spread(rounds, number) for number in range(members)])
    wanted_s = present_s * (1 - gain)
    best, best_s = present, present_s
    if usual.least_s(lanes) <= present_s * (1 - GAIN_MIN):
        best = fair_shares(lanes, usual.lane_s, usual.rest_s)
        best_s = usual.step_s(best)
        if even_s <= best_s * (1 + EVEN_COST_MAX):
            best, best_s = even, even_s
    slowest = _largest([usual.own_s(number, present[number]) for number in range(members)])
    times = usual.lateness(slowest, [lanes / members] * members)
    laggard = _largest(usual.lane_s)
    chosen, is_stuck = present, False
    is_even_free = even_s <= present_s * (1 + EVEN_COST_MAX)
    if best_s <= wanted_s and sum(look.step_s(best) < look.step_s(present) for look in looks) >= holds:
        chosen = best
    elif times >= SLOW and best_s > present_s * (1 - GAIN_MIN):
        is_stuck = sum(look.lateness(slowest, present) >= SLOW for look in looks) >= holds
    return DealDecision(
        shares=chosen,
        slowest=slowest,
        times=times,
        is_stuck=is_stuck,
        wants_smaller_lanes=is_stuck and usual.smaller_s(lanes) <= present_s * (1 - GAIN_MIN),
        is_even_free=is_even_free,
        laggard=laggard,
        lane_times=_against_others(usual.lane_s, laggard),
    )


def is_sudden(rounds: Sequence[Sequence[Lap]], lanes: int) -> bool:
    """Whether these rounds are long and the same member clearly falls behind in all of them."""
    looks = [_Look(one, math.fsum(lap.cost for lap in one) / lanes) for one in rounds]
    members = len(rounds[0])
    even = [lanes / members] * members
    laggards = {_largest([look.own_s(number, even[number]) for number in range(members)]) for look in looks}
    return (
        len(laggards) == 1
        and math.fsum(max(lap.lanes_s + lap.rest_s for lap in one) for one in rounds) >= SUDDEN_S
        and all(look.lateness(min(laggards), even) >= SUDDEN_TIMES for look in looks)
    )


class LaneBalance:
    """The lanes of a generation's members, updated from their laps step by step. All members that note the
    same laps get the same result. shares: how many lanes each member has.
    """

    def __init__(self, lanes: int, members: int, everyone: "Everyone | None" = None) -> None:
        """everyone: the paces seen in earlier generations."""
        self.shares = even_shares(lanes, members)
        self._everyone = everyone or Everyone()
        self._rounds: deque[tuple[Lap, ...]] = deque(maxlen=WINDOW)
        self._open: list[Lap] = []
        self._open_s, self._open_steps = 0.0, 0
        self._unseen = RoundStretch()
        self._evident = _Evident()
        self._floored, self._lasting = 0, _Lasting()
        self._stuck, self._staying = 0, _Lasting()
        self._free = _Lasting()
        self._quiet = self._calm = 0
        self._patience = WINDOW
        self._told: set[tuple[FindingKind, int]] = set()

    @property
    def window(self) -> Sequence[Sequence[Lap]] | None:
        """The last rounds; None while there are too few."""
        return tuple(self._rounds) if len(self._rounds) == WINDOW else None

    def note(self, laps: Sequence[Lap]) -> tuple[BalanceFinding, ...]:
        """Note every member's lap of a step. After a finding "moved" or "even", `shares` have changed."""
        if len(laps) < 2 or any(lap.cost <= 0 for lap in laps):
            return ()
        return (*self._name(laps), *self._note_pace(laps))

    def _name(self, laps: Sequence[Lap]) -> list[BalanceFinding]:
        slow = self._evident.note(laps, self.shares, self._rounds)
        if slow is None:
            return []
        number, times = slow
        return [
            BalanceFinding(kind="slow", member=number, times=times, before=self.shares, after=self.shares)
        ]

    def _note_pace(self, laps: Sequence[Lap]) -> tuple[BalanceFinding, ...]:
        self._open = [_sum(*pair) for pair in zip(self._open, laps, strict=True)] if self._open else [*laps]
        self._open_s += max(lap.lanes_s + lap.rest_s for lap in laps)
        self._open_steps += 1
        if self._open_s < ROUND_S:
            return ()
        self._rounds.append(tuple(_mean(lap, self._open_steps) for lap in self._open))
        self._unseen = self._unseen.longer(self._open_s)
        self._open, self._open_s, self._open_steps = [], 0.0, 0
        self._quiet += 1
        self._grow_calm()
        if self.window is None or self._unseen.seconds < LOOK_S * max(len(laps), sum(self.shares) // LANES):
            return ()
        seen, self._unseen = self._unseen, RoundStretch()
        return tuple(self._judge(seen))

    def _grow_calm(self) -> None:
        self._calm += 1
        if self._calm >= CALM * self._patience and self._patience > WINDOW:
            self._patience, self._calm = self._patience // 2, 0

    def _judge(self, seen: RoundStretch) -> list[BalanceFinding]:
        assert self.window is not None
        decision = decide(self.window, self.shares)
        last = self.window[-SUDDEN:]
        if decision.shares == self.shares and is_sudden(last, sum(self.shares)):
            sudden = decide(last, self.shares, holds=SUDDEN)
            decision = msgspec.structs.replace(
                decision, shares=sudden.shares, slowest=sudden.slowest, times=sudden.times
            )
        found = [*self._everyone.note(self.window, seen), *self._judge_laggard(decision, seen)]
        found += self._judge_stuck(decision, seen)
        even = even_shares(sum(self.shares), len(self.shares))
        is_free = self._free.note(decision.is_even_free and self.shares != even, seen)
        shares = even if is_free and decision.shares == self.shares else decision.shares
        if shares != self.shares and self._quiet >= self._patience:
            found.append(self._move(decision, shares))
        return found

    def _move(self, decision: DealDecision, shares: tuple[int, ...]) -> BalanceFinding:
        before, self.shares = self.shares, shares
        is_even = self.shares == even_shares(sum(before), len(before))
        gains = [after - old for after, old in zip(self.shares, before, strict=True)]
        back = max(range(len(gains)), key=gains.__getitem__)
        self._patience, self._quiet, self._calm = min(2 * self._patience, PATIENCE_MAX), 0, 0
        self._told = {told for told in self._told if told[0] == "floor"}
        is_named = not is_even and self._evident.is_named(decision.slowest)
        if not is_even and decision.times >= SLOW:
            self._evident.named(decision.slowest)
        return BalanceFinding(
            kind="even" if is_even else "moved",
            member=back if is_even else decision.slowest,
            times=1.0 if is_even else decision.times,
            before=before,
            after=self.shares,
            is_named=is_named,
        )

    def _judge_laggard(self, decision: DealDecision, seen: RoundStretch) -> list[BalanceFinding]:
        if decision.laggard != self._floored:
            self._floored, self._lasting = decision.laggard, _Lasting()
        # With one lane each, the lane may be larger rather than the member slower.
        is_its_own = sum(self.shares) >= 2 * len(self.shares)
        if not self._lasting.note(is_its_own and decision.lane_times >= FLOOR, seen):
            return []
        return self._news("floor", decision.laggard, decision.lane_times)

    def _judge_stuck(self, decision: DealDecision, seen: RoundStretch) -> list[BalanceFinding]:
        """On a busy machine each member is slow at times, which no number of lanes would change."""
        if decision.slowest != self._stuck:
            self._stuck, self._staying = decision.slowest, _Lasting()
        if not self._staying.note(decision.is_stuck and decision.lane_times < FLOOR, seen):
            return []
        return self._news(
            "stuck", decision.slowest, decision.times, wants_smaller_lanes=decision.wants_smaller_lanes
        )

    def _news(
        self, kind: FindingKind, member: int, times: float, *, wants_smaller_lanes: bool = False
    ) -> list[BalanceFinding]:
        """The finding, unless it was already reported since lanes last moved."""
        if (kind, member) in self._told:
            return []
        self._told.add((kind, member))
        return [
            BalanceFinding(
                kind=kind,
                member=member,
                times=times,
                before=self.shares,
                after=self.shares,
                wants_smaller_lanes=wants_smaller_lanes,
            )
        ]


class Everyone:
    """Whether all members are slower than they were. No deal depends on this, because a member that joined
    later may not know how fast they were.
    """

    def __init__(self) -> None:
        self._least_s = self._least_data_s = float("inf")
        self._is_told = False
        self._lasting = _Lasting()

    def note(self, window: Sequence[Sequence[Lap]], seen: RoundStretch) -> tuple[BalanceFinding, ...]:
        """Note the last rounds. All members count as slower even if up to a quarter of them are not."""
        own_s = median([_typical([(lap.lanes_s + lap.rest_s) / lap.cost for lap in one]) for one in window])
        data_s = median([_typical([lap.data_s / lap.cost for lap in one]) for one in window])
        if own_s < self._least_s:
            self._least_s, self._least_data_s = own_s, data_s
        times = own_s / self._least_s if self._least_s else 1.0
        is_lasting = self._lasting.note(times >= EVERYONE, seen)
        if not self._is_told and is_lasting:
            self._is_told = True
            data = (data_s - self._least_data_s) / (own_s - self._least_s)
            return (BalanceFinding(kind="everyone", times=times, data=min(1.0, max(0.0, data))),)
        if self._is_told and times <= EVERYONE_OVER:
            self._is_told = False
            return (BalanceFinding(kind="everyone_over", times=times),)
        return ()


class _Evident:
    """Finds a member that is clearly slow in every lane."""

    def __init__(self) -> None:
        self._member = -1
        self._is_named = False
        self._lanes, self._lanes_s = 0, 0.0
        self._steps, self._named_s = 0, NAMED_AGAIN_S

    def note(
        self, laps: Sequence[Lap], shares: Sequence[int], rounds: Sequence[Sequence[Lap]]
    ) -> tuple[int, float] | None:
        """Note a step; `rounds` are those before it. Return the member to name now and how many times as long
        as the others it takes, or None.
        """
        number = _largest([lap.quickest_s for lap in laps])
        own, others_s = laps[number], _pace_but(laps, number)
        self._steps += 1
        self._named_s += max(lap.lanes_s for lap in laps)
        is_slow = own.quickest_s >= EVIDENT_TIMES * others_s > 0
        if is_slow and rounds:  # rule out that the others were just faster than usual
            is_slow = own.quickest_s >= EVIDENT_TIMES * median([_pace_but(one, number) for one in rounds])
        if number != self._member or not is_slow:
            self._member, self._is_named = number, False
            self._lanes, self._lanes_s = 0, 0.0
        if is_slow:
            self._lanes += shares[number]
            self._lanes_s += own.quickest_s * own.cost  # a stall in one lane does not count
        # With one lane each, the lane may be larger rather than the member slower.
        is_evident = self._lanes >= EVIDENT_LANES and self._lanes_s >= EVIDENT_S
        is_its_own = self._steps > SETTLED and sum(shares) >= 2 * len(shares)
        if self._is_named or not (is_evident and is_its_own) or self._named_s < NAMED_AGAIN_S:
            return None
        self.named(number)
        return number, own.pace_s / others_s

    def named(self, number: int) -> None:
        """Note that a finding called this member slow."""
        self._is_named, self._named_s = self._is_named or number == self._member, 0.0

    def is_named(self, number: int) -> bool:
        """Whether this member was called slow and has been slow since."""
        return self._is_named and number == self._member


class _Lasting:
    """Whether a condition has held for a while."""

    def __init__(self) -> None:
        self._stretch = RoundStretch()

    def note(self, is_so: bool, seen: RoundStretch) -> bool:
        self._stretch = self._stretch.longer(seen.seconds, seen.rounds) if is_so else RoundStretch()
        return self._stretch.rounds >= 2 * WINDOW and self._stretch.seconds >= LASTING_S


class _Look:
    """The times that members take for a lane and for their other work. cost: of a lane."""

    def __init__(self, laps: Sequence[Lap], cost: float) -> None:
        self.lane_s = [lap.pace_s * cost for lap in laps]
        self.rest_s = [lap.rest_s for lap in laps]

    def own_s(self, number: int, lanes: float) -> float:
        return self.rest_s[number] + lanes * self.lane_s[number]

    def step_s(self, shares: Sequence[int]) -> float:
        """The time until the last member finishes."""
        return max(self.own_s(number, lanes) for number, lanes in enumerate(shares))

    def least_s(self, lanes: int) -> float:
        """A lower bound for any deal of this many lanes: the time if lanes could be cut into pieces."""
        if min(self.lane_s) <= 0:
            return 0.0
        rests = math.fsum(rest_s / lane_s for rest_s, lane_s in zip(self.rest_s, self.lane_s, strict=True))
        return (lanes + rests) / math.fsum(1 / lane_s for lane_s in self.lane_s)

    def smaller_s(self, lanes: int) -> float:
        """The time with the best deal of `SMALLER` times as many lanes, each so much smaller."""
        lane_s = [one_s / SMALLER for one_s in self.lane_s]
        shares = fair_shares(SMALLER * lanes, lane_s, self.rest_s)
        return max(
            rest_s + count * one_s for count, one_s, rest_s in zip(shares, lane_s, self.rest_s, strict=True)
        )

    def lateness(self, number: int, shares: Sequence[float]) -> float:
        """How many times as long as the others a member takes."""
        return _against_others([self.own_s(one, lanes) for one, lanes in enumerate(shares)], number)


def _against_others(values: Sequence[float], number: int) -> float:
    others = median([value for other, value in enumerate(values) if other != number])
    return values[number] / others if others > 0 else 1.0


def _pace_but(laps: Sequence[Lap], number: int) -> float:
    """The median time that the others take for their lanes, per unit of cost."""
    return median([lap.pace_s for other, lap in enumerate(laps) if other != number])


def _spread(rounds: Sequence[Sequence[Lap]], number: int) -> float:
    """The gap between a member's second fastest and second slowest round, relative to its median."""
    paces = sorted(one[number].pace_s for one in rounds)
    usual = median(paces)
    return (paces[-2] - paces[1]) / usual if usual > 0 and len(paces) > 2 else 0.0


def _largest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _typical(values: Sequence[float]) -> float:
    """The lower quartile."""
    return sorted(values)[len(values) // 4]


def _sum(one: Lap, other: Lap) -> Lap:
    return Lap(
        lanes_s=one.lanes_s + other.lanes_s,
        cost=one.cost + other.cost,
        rest_s=one.rest_s + other.rest_s,
        data_s=one.data_s + other.data_s,
        quickest_s=min(one.quickest_s, other.quickest_s),
    )


def _mean(lap: Lap, steps: int) -> Lap:
    return Lap(
        lanes_s=lap.lanes_s / steps,
        cost=lap.cost / steps,
        rest_s=lap.rest_s / steps,
        data_s=lap.data_s / steps,
        quickest_s=lap.quickest_s,
    )
