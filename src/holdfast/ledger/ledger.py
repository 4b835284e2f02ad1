"""A run's ledger as events arrive: in any order, some late, some twice, some retracted.

The ledger folds events in the order of the time they occurred, then of their ids. For a late event it goes
back to a kept copy of the accounts and folds again from there. It can go back a limited distance; for an
older event the caller must fold the run again from the store. An event that names causes is never placed
before them, so clocks that disagree cannot show an effect before its cause. See docs/time.md.
"""

from bisect import bisect_left
from collections.abc import Iterable
from heapq import merge
from itertools import groupby
from operator import attrgetter

import msgspec

from holdfast.ledger.fold import Fold
from holdfast.record.errors import HoldfastError
from holdfast.record.events import AnyEvent, Correction, IncidentDiagnosed

SNAPSHOT_EVENTS = 8_192
"""The accounts are copied every so many events, and also where the last late events were inserted."""
SNAPSHOT_GAP_EVENTS_MIN = 256
SNAPSHOTS_MAX = 64
WINDOW_EVENTS = 65_536
"""At least this many of the latest events are kept; a late event is inserted among them."""
LATE_MAX = 8_192
"""Late events are inserted at the latest when more than this many have gathered."""
EFFECTS_MAX = 65_536
"""How many events with causes can still move if a cause turns out to be later; the oldest are dropped."""
MOVES_MAX = 4_096
"""How many moves one event may set off. Events that cause each other in a circle would move for ever."""

_NEVER = (-1, -1)
_END_OF_TIME = 2**63


class TooLate(HoldfastError):
    """An event is older than every event the ledger still remembers: fold the run again."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"The event {event_id} is older than every remembered event of its run.")


def retracted(corrections: Iterable[Correction]) -> frozenset[str]:
    """The ids that corrections retract. A newer correction may retract an older one."""
    gone: set[str] = set()
    for correction in sorted(corrections, key=attrgetter("occurred_ns", "id"), reverse=True):
        if correction.id not in gone:
            gone.add(correction.target)
    return frozenset(gone)


class Ledger:
    """The accounts of one run: `add` events, then read `fold`."""

    def __init__(self, corrections: Iterable[Correction] = (), cuts_ns: Iterable[int] = ()) -> None:
        """Start empty.

        corrections: those known beforehand; they apply to events of any age.
        cuts_ns: moments at which to cut the sums, to the nanosecond.
        """
        self.fold = Fold(cuts_ns)
        self._corrections = {correction.id: correction for correction in corrections}
        self._retracted = retracted(self._corrections.values())
        self._taken_back: dict[str, AnyEvent] = {}
        self._recent: list[AnyEvent] = []
        self._last_ns = -1
        self._snapshots: list[tuple[int, Fold]] = [(0, self.fold.copy())]
        self._forgetful = False  # whether events older than `_recent` were folded and dropped
        self._late: dict[str, AnyEvent] = {}
        self._replay_from: int | None = None
        self._careful = bool(self._retracted)  # whether every event must go through `_place`
        self._index: dict[str, AnyEvent] = {}  # recent and late events by id, once `_careful`
        self._effects: dict[str, dict[str, AnyEvent]] = {}  # cause: its effects, with their original times
        self._effects_count = 0
        self._ranks: dict[str, int] = {}  # how many causes precede an event at the same nanosecond

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take these events, in any order. After `TooLate` the ledger cannot be used any more."""
        for event in events:
            if type(event) is IncidentDiagnosed:
                continue  # an opinion about the run: its time says nothing about how long the run lasted
            if event.causes or self._careful or type(event) is Correction:
                self._place(event)
            else:
                self._append_or_keep(event)
        self._put_right()

    def _append_or_keep(self, event: AnyEvent) -> None:
        """Fold the event if it is the latest so far; else keep it to be inserted later."""
        recent, at_ns = self._recent, event.occurred_ns
        if at_ns > self._last_ns or (at_ns == self._last_ns and self._follows(event, recent[-1])):
            self._last_ns = at_ns
            recent.append(event)
            self.fold.apply(event)
            if not len(recent) % SNAPSHOT_EVENTS:
                self._snapshots.append((len(recent), self.fold.copy()))
                self._forget()
        else:
            self._late[event.id] = event
            if len(self._late) > LATE_MAX:
                self._put_right()

    # -- corrections and causes ----------------------------------------------------------------------

    def _place(self, event: AnyEvent) -> None:
        """Add an event with all checks: skip it if retracted, and place it after its causes."""
        if not self._careful:
            self._careful = True
            self._index = {known.id: known for known in (*self._recent, *self._late.values())}
        if type(event) is Correction:
            self._correct(event)
        elif event.id in self._retracted:
            self._taken_back[event.id] = event
        elif event.id not in self._index and event.id not in self._late:
            placed = self._after_causes(event)
            self._append_or_keep(placed)
            self._index[event.id] = placed
            for cause in event.causes:
                self._effects.setdefault(cause, {})[event.id] = event
                self._effects_count += 1
            if self._effects_count > EFFECTS_MAX:
                self._effects_count -= len(self._effects.pop(next(iter(self._effects))))
            self._move_effects(event.id)

    def _correct(self, correction: Correction) -> None:
        self._corrections[correction.id] = correction
        before, self._retracted = self._retracted, retracted(self._corrections.values())
        for event_id in self._retracted - before:
            known = self._remove(event_id)
            if known is not None:
                self._taken_back[event_id] = self._as_it_came(known)
                self._move_effects(event_id)
            elif self._forgetful:
                raise TooLate(event_id)
        for event_id in before - self._retracted:
            if event_id in self._taken_back:
                self._place(self._taken_back.pop(event_id))

    def _as_it_came(self, event: AnyEvent) -> AnyEvent:
        """The event with its original time, even if its causes moved it."""
        for cause in event.causes:
            if event.id in self._effects.get(cause, {}):
                return self._effects[cause][event.id]
        return event

    def _follows(self, event: AnyEvent, other: AnyEvent) -> bool:
        """Whether the event comes after another event of the same moment."""
        return self._order(event) > self._order(other) if self._ranks else event.id > other.id

    def _order(self, event: AnyEvent) -> tuple[int, int, str]:
        return event.occurred_ns, self._ranks.get(event.id, 0), event.id

    def _after_causes(self, event: AnyEvent) -> AnyEvent:
        """The event; if it is not later than its latest cause, moved to just after that cause."""
        at_ns, rank = self._moment_for(event)
        self._ranks.pop(event.id, None)
        if rank:
            self._ranks[event.id] = rank
        return event if at_ns == event.occurred_ns else msgspec.structs.replace(event, occurred_ns=at_ns)

    def _moment_for(self, event: AnyEvent) -> tuple[int, int]:
        """When the event belongs, and after how many causes at that nanosecond."""
        latest_ns, rank = max((self._moment_of(cause) for cause in event.causes), default=_NEVER)
        return (latest_ns, rank + 1) if event.occurred_ns <= latest_ns else (event.occurred_ns, 0)

    def _moment_of(self, event_id: str) -> tuple[int, int]:
        known = self._index.get(event_id)
        return _NEVER if known is None else (known.occurred_ns, self._ranks.get(event_id, 0))

    def _move_effects(self, event_id: str) -> None:
        """Move the effects of an event that was placed or removed, and in turn their effects."""
        moved = [event_id]
        for _ in range(MOVES_MAX):
            if not moved:
                return
            for effect in self._effects.get(moved.pop(), {}).values():
                if self._moment_of(effect.id) not in (_NEVER, self._moment_for(effect)):
                    self._remove(effect.id)
                    placed = self._after_causes(effect)
                    self._late[effect.id] = self._index[effect.id] = placed
                    moved.append(effect.id)

    def _remove(self, event_id: str) -> AnyEvent | None:
        """Remove an event and return it; None if it is unknown."""
        known = self._index.pop(event_id, None)
        if known is None:
            return None
        self._late.pop(event_id, None)  # the event or a duplicate of it may be waiting there
        index = bisect_left(self._recent, self._order(known), key=self._order)
        if index < len(self._recent) and self._recent[index].id == event_id:
            del self._recent[index]
            self._redo_from(index)
        self._ranks.pop(event_id, None)
        return known

    # -- late events ---------------------------------------------------------------------------------

    def _redo_from(self, index: int) -> None:
        self._last_ns = _END_OF_TIME  # until the replay, no event may be appended
        self._replay_from = index if self._replay_from is None else min(index, self._replay_from)

    def _put_right(self) -> None:
        """Insert the late events and fold again from the first change."""
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
            self._forget()

    def _replay(self, index: int) -> None:
        while self._snapshots[-1][0] > index:
            self._snapshots.pop()
        start, snapshot = self._snapshots[-1]
        self.fold = snapshot.copy()
        self.fold.adopt()
        for position in range(start, len(self._recent)):
            if position == index and index - start >= SNAPSHOT_GAP_EVENTS_MIN:
                # The next late event probably belongs near this one.
                self._snapshots.append((position, self.fold.copy()))
            self.fold.apply(self._recent[position])
            if not (position + 1) % SNAPSHOT_EVENTS:
                self._snapshots.append((position + 1, self.fold.copy()))
        if len(self._snapshots) > SNAPSHOTS_MAX:
            del self._snapshots[1:-1:2]
        self._last_ns = self._recent[-1].occurred_ns if self._recent else -1

    def _forget(self) -> None:
        """Drop the oldest events once there are enough newer ones and no late event is waiting."""
        if len(self._recent) < 2 * WINDOW_EVENTS or self._late or self._replay_from is not None:
            return
        keep_from = max(start for start, _ in self._snapshots if start <= len(self._recent) - WINDOW_EVENTS)
        for event in self._recent[:keep_from]:
            self._index.pop(event.id, None)
            self._ranks.pop(event.id, None)
        del self._recent[:keep_from]
        self._snapshots = [(start - keep_from, fold) for start, fold in self._snapshots if start >= keep_from]
        self._forgetful = self._forgetful or keep_from > 0
