"""The store: every event once, to be asked for by run, subject, kind and time.

`Store` is what the rest of Holdfast knows of it. What is kept and how: docs/store.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, Self

import msgspec

from holdfast.record.events import AnyEvent

NO_MARKS: Mapping[str, int] = MappingProxyType({})


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are wanted; every condition must hold, and one that is not given restricts nothing.

    run, subject  exactly this name; the empty name means the cluster as a whole, or the run itself
    kinds         any of these
    since_ns      occurred then or later
    until_ns      occurred before then
    """

    run: str | None = None
    subject: str | None = None
    kinds: tuple[str, ...] = ()
    since_ns: int | None = None
    until_ns: int | None = None


EVERYTHING = Selection()


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the store sees it: how many events, and when the first and the last of them occurred.

    What was diagnosed of it is no event of the run. One of which the record has nothing else has 0 events,
    and the times of its diagnoses.
    """

    run: str
    events: int
    first_ns: int
    last_ns: int


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the events offered.

    new          were not in the store, and now are
    known        were there already, byte for byte
    conflicting  had the id of an event with other bytes; the one that came first is kept
    """

    new: int
    known: int
    conflicting: int


class Store(Protocol):
    """Where events are kept. Any number of processes may ingest; a read sees what was there when it began."""

    def ingest(self, events: Iterable[AnyEvent], *, marks: Mapping[str, int] = NO_MARKS) -> Ingested:
        """Keep what is new among these events, in bounded transactions.

        Marks say how far each input was read: a journal's file name and a byte offset, say. They are looked
        at when the last event has been drawn, and written with it or after it: a process killed on the way
        leaves a mark behind its events, never ahead of them. Where there is no event and no mark has moved,
        nothing is written and no other writer waited for.

        An event that no read could give back (its name is too long, say) is an `InputError`; it and those
        drawn after it are not kept.
        """

    def marks(self) -> dict[str, int]:
        """The last mark of every input."""

    def select(self, selection: Selection = EVERYTHING, *, limit: int | None = None) -> Iterator[AnyEvent]:
        """The events selected (the first `limit` of them) by time, then by id, in bounded memory."""

    def since(self, cursor: int, selection: Selection = EVERYTHING) -> Iterator[tuple[int, AnyEvent]]:
        """What arrived after `cursor` (0: everything), in that order, each with the cursor to go on from.

        Nothing ever arrives behind a cursor that was handed out, whoever else is writing.
        """

    def end(self) -> int:
        """The newest cursor there is: all that has arrived is at or before it (0: nothing has).

        Whoever follows rare events takes it before `since` and then goes on from it, or from the last event
        that was given if that came later; so what was looked at in vain is not looked at again.
        """

    def runs(self) -> list[RunSummary]:
        """Every run, the one with the newest event first, those without any last; quick for many events."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
