"""A run's ledger as events arrive: in any order, some late, some twice, some taken back.

Events are folded in the order of (occurred_ns, id). What arrives late is put where it belongs by going back
to a kept copy of the accounts and folding on from there; how far back that reaches is bounded, and beyond it
the caller is asked to fold the run again from the store. An event that names causes is never placed before
them, which keeps clocks that disagree from showing an effect before its cause. See docs/time.md.
"""

from bisect import bisect_left
from collections.abc import Iterable
from heapq import merge

import msgspec

from holdfast.ledger.fold import Fold
from holdfast.record.events import AnyEvent, Correction

SNAPSHOT_EVENTS = 8_192
"""A copy of the accounts is kept every so many events."""
WINDOW_EVENTS = 65_536
"""Among at least so many of the latest events a late one finds its place."""
CAUSE_WINDOW_EVENTS = 4_096
"""How many events back a cause is looked for before it is expected still to come."""
AWAITED_MAX = 1_024
"""How many causes may be expected at once; the ones expected longest are given up first."""


class TooLate(Exception):
    """An event belongs before everything the ledger still remembers: fold the run again."""


def _order(event: AnyEvent) -> tuple[int, str]:
    return event.occurred_ns, event.id


class Ledger:
    """The accounts of one run: `add` events, then read `fold.settled()`."""

    def __init__(self, retracted: Iterable[str] = ()) -> None:
        """retracted: ids that corrections take back, where they are known beforehand."""
        self.fold = Fold()
        self._retracted = set(retracted)
        self._careful = bool(self._retracted)  # whether every event must be looked at
        self._recent: list[AnyEvent] = []
        self._last_ns = -1
        self._snapshots: list[tuple[int, Fold]] = [(0, self.fold.copy())]
        self._forgetful = False  # whether events older than `_recent` were folded and let go
        self._awaited: dict[str, list[AnyEvent]] = {}
        self._late: list[AnyEvent] = []
        self._replay_from: int | None = None

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take these events, whatever their order. Raises `TooLate`, and is then of no further use."""
        recent, apply, last_ns = self._recent, self.fold.apply, self._last_ns
        for event in events:
            at_ns = event.occurred_ns
            in_order = at_ns > last_ns or (at_ns == last_ns and event.id > recent[-1].id)
            if not in_order or event.causes or self._careful or type(event) is Correction:
                self._place(event)
                continue
            last_ns = at_ns
            recent.append(event)
            apply(event)
            if not len(recent) % SNAPSHOT_EVENTS:
                self._snapshots.append((len(recent), self.fold.copy()))
        self._last_ns = last_ns
        self._put_right()
        if len(recent) >= 2 * WINDOW_EVENTS:
            self._forget()

    def _place(self, event: AnyEvent) -> None:
        """The careful way in: what is taken back stays out, causes come first, corrections take effect."""
        if event.id in self._retracted:
            return
        self._late.append(self._after_causes(event))
        for effect in self._awaited.pop(event.id, ()):
            if self._remove(effect):
                self._late.append(_stamped_after(effect, event))
        if type(event) is Correction:
            self._retracted.add(event.target)
            self._careful = True
            self._late = [late for late in self._late if late.id != event.target]
            targets = [known for known in self._recent if known.id == event.target]
            if self._forgetful and not targets:
                raise TooLate(event.target)
            for target in targets:
                self._remove(target)

    def _after_causes(self, event: AnyEvent) -> AnyEvent:
        for cause_id in event.causes:
            for known in (*reversed(self._late), *reversed(self._recent[-CAUSE_WINDOW_EVENTS:])):
                if known.id == cause_id:
                    event = _stamped_after(event, known)
                    break
            else:
                self._awaited.setdefault(cause_id, []).append(event)
                self._careful = True
                if len(self._awaited) > AWAITED_MAX:
                    del self._awaited[next(iter(self._awaited))]
        return event

    def _remove(self, event: AnyEvent) -> bool:
        """Take an event out of those that count; whether it was there."""
        for index, late in enumerate(self._late):
            if late.id == event.id:
                del self._late[index]
                return True
        index = bisect_left(self._recent, _order(event), key=_order)
        if index == len(self._recent) or self._recent[index].id != event.id:
            return False
        del self._recent[index]
        self._replay_from = index if self._replay_from is None else min(index, self._replay_from)
        return True

    def _put_right(self) -> None:
        """Put the late ones in their places and fold again from the first place that changed."""
        if self._late:
            late = sorted(self._late, key=_order)
            self._late = []
            index = bisect_left(self._recent, _order(late[0]), key=_order)
            if self._forgetful and index == 0:
                raise TooLate(late[0].id)
            self._recent[index:] = _without_repeats(self._recent[index:], late)
            self._replay_from = index if self._replay_from is None else min(index, self._replay_from)
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
        keep_from = (len(self._recent) - WINDOW_EVENTS) // SNAPSHOT_EVENTS * SNAPSHOT_EVENTS
        del self._recent[:keep_from]
        self._snapshots = [(start - keep_from, fold) for start, fold in self._snapshots if start >= keep_from]
        self._forgetful = True


def _stamped_after(effect: AnyEvent, cause: AnyEvent) -> AnyEvent:
    if effect.occurred_ns > cause.occurred_ns:
        return effect
    return msgspec.structs.replace(effect, occurred_ns=cause.occurred_ns + 1)


def _without_repeats(known: list[AnyEvent], late: list[AnyEvent]) -> list[AnyEvent]:
    merged: list[AnyEvent] = []
    for event in merge(known, late, key=_order):
        if not merged or merged[-1].id != event.id:
            merged.append(event)
    return merged
