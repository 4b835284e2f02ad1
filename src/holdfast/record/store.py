"""The store: every event once, queried by run, subject, kind and time.

The rest of Holdfast only uses `Store`. docs/store.md says what is kept and how.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, Self

import msgspec

from holdfast.record.events import AnyEvent

NO_MARKS: Mapping[str, int] = MappingProxyType({})


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events: every given condition must hold.

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

    A diagnosis is not an event of the run. A run with nothing but diagnoses has 0 events, and their times.
    """

    run: str
    events: int
    first_ns: int
    last_ns: int


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ingest.

    new          were not in the store, and now are
    known        were there already, byte for byte
    conflicting  had the id of an event with other bytes; the one that came first is kept
    """

    new: int
    known: int
    conflicting: int


class Store(Protocol):
    """Stores events. Any number of processes may ingest; a read sees the state at its beginning."""

    def ingest(self, events: Iterable[AnyEvent], *, marks: Mapping[str, int] = NO_MARKS) -> Ingested:
        """Keep the new ones among these events, in bounded transactions.

        Marks say how far each input was read: for example a journal's file name and a byte offset. They are
        read when the last event has been drawn, and written with it or after it: a process killed on the way
        leaves a mark behind its events, never ahead of them. If there is no event and no mark has moved,
        nothing is written, and no lock is taken.

        An event that could not be read back (for example because its name is too long) raises `InputError`;
        it and those drawn after it are not kept.
        """

    def marks(self) -> dict[str, int]:
        """The last mark of every input."""

    def select(self, selection: Selection = EVERYTHING, *, limit: int | None = None) -> Iterator[AnyEvent]:
        """The events selected (the first `limit` of them) by time, then by id, in bounded memory."""

    def since(self, cursor: int, selection: Selection = EVERYTHING) -> Iterator[tuple[int, AnyEvent]]:
        """The events that arrived after `cursor` (0: all), in that order, each with the cursor to go on from.

        No event ever arrives before a cursor that was handed out, even while other processes write.
        """

    def end(self) -> int:
        """The newest cursor: all events so far are at or before it (0: there are none).

        A reader that follows rare events takes it before `since` and then goes on from it, or from the last
        event it got if that came later; so events that do not match are not read again.
        """

    def runs(self) -> list[RunSummary]:
        """Every run, the one with the newest event first, those without any last; quick for many events."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
