"""Planned actions of a simulation, in order of time."""

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count

Action = Callable[[int], None]
"""Called with the current time."""


class Agenda:
    """Actions by their time. At the same moment those planned as `first` come first, then in planning order.

    `disturb` cancels what `plan_here` planned: those actions make sense only if nothing happens before them.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, bool, int, Action]] = []
        self._order = count()
        self._stretch = 0

    def plan(self, at_ns: int, action: Action, *, first: bool = False) -> None:
        heapq.heappush(self._heap, (at_ns, not first, next(self._order), action))

    def plan_here(self, at_ns: int, action: Action) -> None:
        self.plan(at_ns, partial(self._if_undisturbed, self._stretch, action), first=True)

    def disturb(self) -> None:
        self._stretch += 1

    @property
    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[int, Action]:
        at_ns, _, _, action = heapq.heappop(self._heap)
        return at_ns, action

    def _if_undisturbed(self, stretch: int, action: Action, now_ns: int) -> None:
        if stretch == self._stretch:
            action(now_ns)
