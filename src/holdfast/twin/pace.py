"""The time of a step of an elastic run: it depends on how many members there are and which are slow."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil

from holdfast.twin.ground import Ground
from holdfast.twin.lanes import idle_share, rounds, step_rounds
from holdfast.wording.units import SECOND_NS


class ElasticPace:
    """steps: whether a replica takes part in the steps."""

    def __init__(self, ground: Ground, steps: Callable[[str], bool]) -> None:
        self._steps = steps
        self._ground, self._policy, self._job = ground, ground.policy, ground.job
        self._gray_ns = round(ground.policy.gray_s * SECOND_NS)
        self._full = rounds(ground.job.lanes, ground.job.members)

    def step_ns(self, now_ns: int, members: int) -> int:
        """The time of a step in a generation of this many members."""
        slow: dict[str, Fraction] = {}
        for one in self._ground.slow_at(now_ns):
            for replica in self._ground.replicas([one.machine]):
                if self._steps(replica):
                    slow[replica] = max(one.factor, slow.get(replica, one.factor))
        if not self._policy.shares_lanes:
            return round(self._job.step_ns * max(slow.values(), default=1))
        is_known = self._policy.rebalances and all(known_ns <= now_ns for known_ns in self._known_ns(now_ns))
        taken = step_rounds(self._lanes(members), members, list(slow.values())[:members], rebalances=is_known)
        return ceil(
            self._job.step_ns * taken / self._full
        )  # rounded up, so that work is never below the reference

    def change_ns(self, since_ns: int) -> int | None:
        """When steps become faster or slower; the change takes effect at the next boundary."""
        moments = [self._ground.slow_change_ns(since_ns)]
        if self._policy.rebalances:
            moments += [known_ns for known_ns in self._known_ns(since_ns) if known_ns > since_ns]
        return min((moment for moment in moments if moment is not None), default=None)

    def _known_ns(self, now_ns: int) -> list[int]:
        return [one.began_ns + self._gray_ns for one in self._ground.slow_at(now_ns)]

    def _lanes(self, members: int) -> int:
        """All lanes, or, if sharing them costs the others too much, their own share only."""
        bound = self._policy.smaller_above_share
        if bound is None or idle_share(self._job.lanes, members) <= bound:
            return self._job.lanes
        return min(self._job.lanes, self._full * members)
