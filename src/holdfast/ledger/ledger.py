"""A run's ledger as events arrive: in any order, some late, some twice, some taken back.

Events are folded in the order of the time they occurred, then of their ids. What arrives late is put where
it belongs by going back to a kept copy of the accounts and folding on from there; how far back that reaches
is bounded, and beyond it the caller is asked to fold the run again from the store. An event that names causes
is never placed before them, which keeps clocks that disagree from showing an effect before its cause. See
docs/time.md.
"""

from bisect import bisect_left
from collections.abc import Iterable
from heapq import merge
from itertools import groupby
from operator import attrgetter

import msgspec

from holdfast.ledger.fold import Fold
from holdfast.record.events import AnyEvent, Correction

SNAPSHOT_EVENTS = 8_192
"""A copy of the accounts is kept every so many events."""
WINDOW_EVENTS = 65_536
"""Among at least so many of the latest events a late one finds its place."""
CAUSE_WINDOW_EVENTS = 4_096
"""How many events back a cause is looked for before it is expected still to come."""
EFFECTS_MAX = 4_096
"""For how many causes the effects are kept, to be moved should it turn out to be later."""
CHAIN_MAX = 64
"""How long a chain of causes is followed. No real one is; a circle of them would never end."""


_NEVER = (-1, -1)
_END_OF_TIME = 2**63


class TooLate(Exception):
    """An event belongs before everything the ledger still remembers: fold the run again."""


class Ledger:
    """The accounts of one run: `add` events, then read `fold.settled()`."""

    def __init__(self, retracted: Iterable[str] = ()) -> None:
        """retracted: ids that corrections take back, where they are known beforehand."""
        self.fold = Fold()
        self._retracted = set(retracted)
        self._recent: list[AnyEvent] = []
        self._last_ns = -1
        self._snapshots: list[tuple[int, Fold]] = [(0, self.fold.copy())]
        self._forgetful = False  # whether events older than `_recent` were folded and let go
        self._effects: dict[str, dict[str, AnyEvent]] = {}  # cause: its effects, as they came
        self._ranks: dict[str, int] = {}  # how many causes come before an event at its very nanosecond
        self._late: dict[str, AnyEvent] = {}
        self._replay_from: int | None = None

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take these events, whatever their order. Raises `TooLate`, and is then of no further use."""
        for event in events:
            if event.causes or self._retracted or self._effects or type(event) is Correction:
                self._place(event)
            else:
                self._append_or_keep(event)
        self._put_right()

    def _append_or_keep(self, event: AnyEvent) -> None:
        """Fold the event if nothing later was folded before it, or keep it until the others are in."""
        recent, at_ns = self._recent, event.occurred_ns
        if at_ns > self._last_ns or (at_ns == self._last_ns and self._order(event) > self._order(recent[-1])):
            self._last_ns = at_ns
            recent.append(event)
            self.fold.apply(event)
            if not len(recent) % SNAPSHOT_EVENTS:
                self._snapshots.append((len(recent), self.fold.copy()))
                self._forget()
        else:
            self._late[event.id] = event

    def _place(self, event: AnyEvent) -> None:
        """The careful way in: what is taken back stays out, causes come first, corrections take effect."""
        known = any(event.id in self._effects.get(cause, ()) for cause in event.causes)
        if known or event.id in self._retracted:
            return
        placed = self._after_causes(event)
        self._append_or_keep(placed)
        self._move_effects(placed)
        for cause in event.causes:
            self._effects.setdefault(cause, {})[event.id] = event
        while len(self._effects) > EFFECTS_MAX:
            del self._effects[next(iter(self._effects))]
        if type(event) is Correction:
            self._retract(event.target)

    def _order(self, event: AnyEvent) -> tuple[int, int, str]:
        return event.occurred_ns, self._ranks.get(event.id, 0), event.id

    def _after_causes(self, event: AnyEvent) -> AnyEvent:
        """The event, at the moment of the latest of its causes if its own is not later, and after it."""
        latest_ns, rank = max((self._moment_of(cause) for cause in event.causes), default=_NEVER)
        self._ranks.pop(event.id, None)
        if event.occurred_ns > latest_ns:
            return event
        self._ranks[event.id] = rank + 1
        return msgspec.structs.replace(event, occurred_ns=latest_ns)

    def _moment_of(self, event_id: str) -> tuple[int, int]:
        """When an event that is known occurred, and how many causes come before it at that nanosecond."""
        known = self._late.get(event_id)
        if known is None:
            recent = reversed(self._recent[-CAUSE_WINDOW_EVENTS:])
            known = next((event for event in recent if event.id == event_id), None)
        return _NEVER if known is None else (known.occurred_ns, self._ranks.get(event_id, 0))

    def _move_effects(self, cause: AnyEvent, chain: int = 0) -> None:
        """Put the effects of an event that is new in its place after it, and theirs after them."""
        for effect in self._effects.get(cause.id, {}).values():
            before = self._moment_of(effect.id)
            if before == _NEVER or chain == CHAIN_MAX:
                continue
            placed = self._after_causes(effect)
            if before != (placed.occurred_ns, self._ranks.get(effect.id, 0)):
                self._remove(effect.id)
                self._late[effect.id] = placed
                self._move_effects(placed, chain + 1)

    def _retract(self, event_id: str) -> None:
        if event_id in self._retracted:
            return
        self._retracted.add(event_id)
        if not self._remove(event_id) and self._forgetful:
            raise TooLate(event_id)

    def _remove(self, event_id: str) -> bool:
        """Take an event out of those that count; whether it was there."""
        if self._late.pop(event_id, None):
            return True
        for index in range(len(self._recent) - 1, -1, -1):
            if self._recent[index].id == event_id:
                del self._recent[index]
                self._redo_from(index)
                return True
        return False

    def _redo_from(self, index: int) -> None:
        self._last_ns = _END_OF_TIME  # until that is done, nothing can be added at the end
        self._replay_from = index if self._replay_from is None else min(index, self._replay_from)

    def _put_right(self) -> None:
        """Put the late ones in their places and fold again from the first place that changed."""
        if self._late:
            late = sorted(self._late.values(), key=self._order)
            self._late = {}
            index = bisect_left(self._recent, self._order(late[0]), key=self._order)
            if self._forgetful and index == 0:
                raise TooLate(late[0].id)
            merged = merge(self._recent[index:], late, key=self._order)
            self._recent[index:] = [next(repeats) for _, repeats in groupby(merged, key=attrgetter("id"))]
            self._redo_from(index)
        if self._replay_from is not None:
            self._replay(self._replay_from)
            self._replay_from = None

    def _replay(self, index: int) -> None:
        while self._snapshots[-1][0] > index:
            self._snapshots.pop()
        start, snapshot = self._snapshots[-1]
        self.fold = snapshot.copy()
        self.fold.adopt()
        for position in range(start, len(self._recent)):
            self.fold.apply(self._recent[position])
            if not (position + 1) % SNAPSHOT_EVENTS:
                self._snapshots.append((position + 1, self.fold.copy()))
        self._last_ns = self._recent[-1].occurred_ns if self._recent else -1

    def _forget(self) -> None:
        """Let go of the oldest events, once there are plenty and none waits to be put among them."""
        if len(self._recent) < 2 * WINDOW_EVENTS or self._late or self._replay_from is not None:
            return
        keep_from = (len(self._recent) - WINDOW_EVENTS) // SNAPSHOT_EVENTS * SNAPSHOT_EVENTS
        del self._recent[:keep_from]
        self._snapshots = [(start - keep_from, fold) for start, fold in self._snapshots if start >= keep_from]
        self._forgetful = True
