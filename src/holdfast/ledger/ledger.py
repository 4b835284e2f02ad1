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
from holdfast.record.errors import HoldfastError
from holdfast.record.events import AnyEvent, Correction, IncidentDiagnosed

SNAPSHOT_EVENTS = 8_192
"""A copy of the accounts is kept every so many events, and where late events came last."""
SNAPSHOT_GAP_EVENTS_MIN = 256
SNAPSHOTS_MAX = 64
WINDOW_EVENTS = 65_536
"""Among at least so many of the latest events a late one finds its place."""
LATE_MAX = 8_192
"""So many late events are put in their places at once."""
EFFECTS_MAX = 65_536
"""So many events with causes may be moved should a cause turn out to be later; the oldest stay first."""
MOVES_MAX = 4_096
"""So often events are moved because of one. Causes in a circle would never come to rest."""

_NEVER = (-1, -1)
_END_OF_TIME = 2**63


class TooLate(HoldfastError):
    """An event belongs before everything the ledger still remembers: fold the run again."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"The event {event_id} is older than all that is remembered of its run.")


def retracted(corrections: Iterable[Correction]) -> frozenset[str]:
    """The ids that corrections take back. The newest is heard first, and may take back an older one."""
    gone: set[str] = set()
    for correction in sorted(corrections, key=attrgetter("occurred_ns", "id"), reverse=True):
        if correction.id not in gone:
            gone.add(correction.target)
    return frozenset(gone)


class Ledger:
    """The accounts of one run: `add` events, then read `fold`."""

    def __init__(self, corrections: Iterable[Correction] = (), cuts_ns: Iterable[int] = ()) -> None:
        """corrections: those that are known beforehand. They then reach back any distance.

        cuts_ns: moments at which the sums are to be cut, to the nanosecond.
        """
        self.fold = Fold(cuts_ns)
        self._corrections = {correction.id: correction for correction in corrections}
        self._retracted = retracted(self._corrections.values())
        self._taken_back: dict[str, AnyEvent] = {}
        self._recent: list[AnyEvent] = []
        self._last_ns = -1
        self._snapshots: list[tuple[int, Fold]] = [(0, self.fold.copy())]
        self._forgetful = False  # whether events older than `_recent` were folded and let go
        self._late: dict[str, AnyEvent] = {}
        self._replay_from: int | None = None
        self._careful = bool(self._retracted)  # whether every event must be looked at
        self._index: dict[str, AnyEvent] = {}  # `_recent` by id, once that is needed
        self._effects: dict[str, dict[str, AnyEvent]] = {}  # cause: its effects, as they came
        self._effects_count = 0
        self._ranks: dict[str, int] = {}  # how many causes come before an event at its very nanosecond

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take these events, whatever their order. Raises `TooLate`, and is then of no further use."""
        for event in events:
            if type(event) is IncidentDiagnosed:
                continue  # an opinion about the run: when it was formed says nothing of how long the run was
            if event.causes or self._careful or type(event) is Correction:
                self._place(event)
            else:
                self._append_or_keep(event)
        self._put_right()

    def _append_or_keep(self, event: AnyEvent) -> None:
        """Fold the event if nothing later was folded before it, or keep it until the others are in."""
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
        """The careful way in: what is taken back stays out, and causes come first."""
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
        """The event with its own time, wherever its causes have moved it."""
        for cause in event.causes:
            if event.id in self._effects.get(cause, {}):
                return self._effects[cause][event.id]
        return event

    def _follows(self, event: AnyEvent, other: AnyEvent) -> bool:
        """Whether it comes after another one of the same moment."""
        return self._order(event) > self._order(other) if self._ranks else event.id > other.id

    def _order(self, event: AnyEvent) -> tuple[int, int, str]:
        return event.occurred_ns, self._ranks.get(event.id, 0), event.id

    def _after_causes(self, event: AnyEvent) -> AnyEvent:
        """The event, at the moment of the latest of its causes if its own is not later, and after it."""
        at_ns, rank = self._moment_for(event)
        self._ranks.pop(event.id, None)
        if rank:
            self._ranks[event.id] = rank
        return event if at_ns == event.occurred_ns else msgspec.structs.replace(event, occurred_ns=at_ns)

    def _moment_for(self, event: AnyEvent) -> tuple[int, int]:
        """Where an event belongs: when, and after how many causes at that nanosecond."""
        latest_ns, rank = max((self._moment_of(cause) for cause in event.causes), default=_NEVER)
        return (latest_ns, rank + 1) if event.occurred_ns <= latest_ns else (event.occurred_ns, 0)

    def _moment_of(self, event_id: str) -> tuple[int, int]:
        known = self._index.get(event_id)
        return _NEVER if known is None else (known.occurred_ns, self._ranks.get(event_id, 0))

    def _move_effects(self, event_id: str) -> None:
        """Put the effects of an event that was placed or removed where they belong now, and theirs too."""
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
        """Take an event out of those that count, and give it back if it was there."""
        known = self._index.pop(event_id, None)
        if known is None:
            return None
        self._late.pop(event_id, None)  # it may wait there, or its double may
        index = bisect_left(self._recent, self._order(known), key=self._order)
        if index < len(self._recent) and self._recent[index].id == event_id:
            del self._recent[index]
            self._redo_from(index)
        self._ranks.pop(event_id, None)
        return known

    # -- late events ---------------------------------------------------------------------------------

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
            self._forget()

    def _replay(self, index: int) -> None:
        while self._snapshots[-1][0] > index:
            self._snapshots.pop()
        start, snapshot = self._snapshots[-1]
        self.fold = snapshot.copy()
        self.fold.adopt()
        for position in range(start, len(self._recent)):
            if position == index and index - start >= SNAPSHOT_GAP_EVENTS_MIN:
                # The next late event will belong near this one.
                self._snapshots.append((position, self.fold.copy()))
            self.fold.apply(self._recent[position])
            if not (position + 1) % SNAPSHOT_EVENTS:
                self._snapshots.append((position + 1, self.fold.copy()))
        if len(self._snapshots) > SNAPSHOTS_MAX:
            del self._snapshots[1:-1:2]
        self._last_ns = self._recent[-1].occurred_ns if self._recent else -1

    def _forget(self) -> None:
        """Let go of the oldest events, once there are plenty and none waits to be put among them."""
        if len(self._recent) < 2 * WINDOW_EVENTS or self._late or self._replay_from is not None:
            return
        keep_from = max(start for start, _ in self._snapshots if start <= len(self._recent) - WINDOW_EVENTS)
        for event in self._recent[:keep_from]:
            self._index.pop(event.id, None)
            self._ranks.pop(event.id, None)
        del self._recent[:keep_from]
        self._snapshots = [(start - keep_from, fold) for start, fold in self._snapshots if start >= keep_from]
        self._forgetful = self._forgetful or keep_from > 0
