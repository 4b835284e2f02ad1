"""Shared parts of the two SQL stores: batches, the shape of a query, and decoding rows into events.

A row keeps the event's bytes unchanged; the other columns are only for searching. Connections, transactions
and errors differ by database and live in `sqlite` and `postgres`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from holdfast.record.closing import Closable
from holdfast.record.errors import InputError, StoreError
from holdfast.record.events import (
    ID_CHARS_MAX,
    NAME_CHARS_MAX,
    AnyEvent,
    IncidentDiagnosed,
    MalformedEvent,
    decode,
    encode,
    kind_of,
)
from holdfast.record.store import EVERYTHING, NO_MARKS, Ingested, RunSummary, Selection

SCHEMA_VERSION = 1
"""Of the tables, not of the events. A store with a higher one is refused."""

BATCH_EVENTS = 10_000
"""Events per transaction: enough to make the commit cheap, few enough that writers take turns often."""

REBUILD_HINT = "Move it away and import the journals again: all that is in a store came from them."

COLUMNS = ("id", "run", "subject", "kind", "occurred_ns", "recorded_ns", "source", "body")
Row = tuple[str, str, str, str, int, int, str, bytes]
Parameter = str | int
Condition = tuple[str, tuple[Parameter, ...]]
"""A piece of SQL that must hold, and the values for its question marks."""

# These kinds are nearly all of a record and rarely searched for, so the index of kinds leaves them out. The
# condition is part of the schema: a query finds the index only if it repeats it word for word.
_FREQUENT_KINDS = ("step.begun", "step.committed", "collective.timed")
_IS_SPARSE = "kind NOT IN ('step.begun', 'step.committed', 'collective.timed')"
_HAS_SUBJECT = "subject <> ''"

_OPINION = str(IncidentDiagnosed.__struct_config__.tag)
_IS_OWN = f"kind <> '{_OPINION}'"
SUMMED = f"""
    run, count(*) FILTER (WHERE {_IS_OWN}),
    coalesce(min(occurred_ns) FILTER (WHERE {_IS_OWN}), min(occurred_ns)),
    coalesce(max(occurred_ns) FILTER (WHERE {_IS_OWN}), max(occurred_ns))
"""
"""A run's events, first_ns and last_ns, of rows by run. A diagnosis does not count as an event of the run; if
there are only diagnoses, the count is 0, and the times are theirs. """

# Every index begins with the run: a query that names none goes through the table of runs. See docs/store.md.
INDEXES = (
    "CREATE INDEX events_by_run ON events (run, occurred_ns, id)",
    f"CREATE INDEX events_by_kind ON events (run, occurred_ns, id) WHERE {_IS_SPARSE}",
    f"CREATE INDEX events_by_subject ON events (run, subject, occurred_ns, id) WHERE {_HAS_SUBJECT}",
)

_INTEGER_MAX = 2**63 - 1
"""The limit of a column in either database; no event's time comes near it."""

_BOUNDS_HINT = (
    f"An id has at most {ID_CHARS_MAX} characters, another name {NAME_CHARS_MAX}; no number is negative."
)


class SqlStore(Closable, ABC):
    """A store over SQL. Every read has a connection of its own, so it neither sees nor delays the writer."""

    _name: str
    """The store's name in messages; never with a password in it."""

    def ingest(self, events: Iterable[AnyEvent], *, marks: Mapping[str, int] = NO_MARKS) -> Ingested:
        rows = map(_row, events)
        offered = new = conflicting = 0
        is_last = False
        while not is_last:
            batch = list(islice(rows, BATCH_EVENTS))
            is_last = len(batch) < BATCH_EVENTS
            moved = self._moved(marks) if is_last else NO_MARKS
            if batch or moved:
                batch_new, batch_conflicting = self._take(batch, moved)
                offered += len(batch)
                new += batch_new
                conflicting += batch_conflicting
        return Ingested(new=new, known=offered - new - conflicting, conflicting=conflicting)

    def marks(self) -> dict[str, int]:
        return dict(self._read("SELECT input, position FROM marks", ()))

    def select(self, selection: Selection = EVERYTHING, *, limit: int | None = None) -> Iterator[AnyEvent]:
        source = self._events_via(_index_for(selection))
        conditions = list(_conditions(selection))
        if selection.run is None:
            source = f"runs CROSS JOIN {source}"
            conditions += _runs_conditions(selection)
        query, parameters = _query(f"SELECT body FROM {source}", conditions, "ORDER BY occurred_ns, id")
        if limit is not None:
            query += " LIMIT ?"
            parameters.append(limit)
        try:
            for (body,) in self._read(query, parameters):
                yield decode(body)
        except MalformedEvent as error:
            raise self._unreadable(error) from error

    def since(self, cursor: int, selection: Selection = EVERYTHING) -> Iterator[tuple[int, AnyEvent]]:
        # In order of arrival only new rows are read; an index would read the whole run again.
        conditions = [("seq > ?", (cursor,)), *_conditions(selection)]
        query, parameters = _query(
            f"SELECT seq, body FROM {self._events_via(None)}", conditions, "ORDER BY seq"
        )
        try:
            for seq, body in self._read(query, parameters):
                yield seq, decode(body)
        except MalformedEvent as error:
            raise self._unreadable(error) from error

    def end(self) -> int:
        ((seq,),) = self._read("SELECT coalesce(max(seq), 0) FROM events", ())
        return int(seq)

    def runs(self) -> list[RunSummary]:
        query = "SELECT run, events, first_ns, last_ns FROM runs WHERE run <> ''"
        query += " ORDER BY events = 0, last_ns DESC, run"
        return [
            RunSummary(run=run, events=events, first_ns=first_ns, last_ns=last_ns)
            for run, events, first_ns, last_ns in self._read(query, ())
        ]

    @abstractmethod
    def close(self) -> None: ...

    def _moved(self, marks: Mapping[str, int]) -> Mapping[str, int]:
        """The marks that differ from the store's. Reading them takes no lock; writing would."""
        known = self.marks() if marks else NO_MARKS
        return {name: position for name, position in marks.items() if known.get(name) != position}

    @abstractmethod
    def _take(self, batch: Sequence[Row], marks: Mapping[str, int]) -> tuple[int, int]:
        """Store these rows and marks in one transaction. Return how many rows were new, and in conflict."""

    @abstractmethod
    def _read(self, query: str, parameters: Sequence[Parameter]) -> Iterator[Any]:
        """The rows of a query, streamed over their own connection. Question marks stand for parameters."""

    @abstractmethod
    def _events_via(self, index: str | None) -> str:
        """The table of events for a query, with this index (None: in order of arrival) if SQL can name it."""

    def _refuse_newer(self, version: int) -> None:
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._name} was made by a newer Holdfast: it has schema {version}, not {SCHEMA_VERSION}.",
                hint="Upgrade holdfast, or name another store.",
            )

    def _unreadable(self, error: MalformedEvent) -> StoreError:
        return StoreError(
            f"{self._name} is damaged: it holds bytes that are not an event ({error}).", hint=REBUILD_HINT
        )


def _row(event: AnyEvent) -> Row:
    body = encode(event)
    try:
        # Events built in Python were never checked, and one unreadable event would end every read.
        decode(body)
    except MalformedEvent as error:
        raise InputError(
            f"The event {event.id[:ID_CHARS_MAX]!r} cannot be kept: {error}.", hint=_BOUNDS_HINT
        ) from error
    return (
        event.id,
        event.run,
        event.subject,
        kind_of(event),
        event.occurred_ns,
        event.recorded_ns,
        event.source,
        body,
    )


def joined(column: str, smaller_or_larger: str) -> str:
    """SQL for a run's time after new rows were added: of real events, if either side has any."""
    return f"""CASE
        WHEN (runs.events = 0) = (excluded.events = 0)
            THEN {smaller_or_larger}(runs.{column}, excluded.{column})
        WHEN runs.events = 0 THEN excluded.{column}
        ELSE runs.{column}
    END"""


def _index_for(selection: Selection) -> str:
    if selection.subject:
        return "events_by_subject"
    return "events_by_kind" if _wants_sparse_kinds(selection) else "events_by_run"


def _wants_sparse_kinds(selection: Selection) -> bool:
    return bool(selection.kinds) and not any(kind in _FREQUENT_KINDS for kind in selection.kinds)


def _conditions(selection: Selection) -> Iterator[Condition]:
    if selection.run is not None:
        yield "events.run = ?", (selection.run,)
    if selection.subject is not None:
        yield "subject = ?", (selection.subject,)
    if selection.subject:
        yield _HAS_SUBJECT, ()
    if selection.kinds:
        yield f"kind IN ({', '.join('?' * len(selection.kinds))})", selection.kinds
    if _wants_sparse_kinds(selection):
        yield _IS_SPARSE, ()
    if selection.since_ns is not None:
        yield "occurred_ns >= ?", (_within_column(selection.since_ns),)
    if selection.until_ns is not None:
        yield "occurred_ns < ?", (_within_column(selection.until_ns),)


def _runs_conditions(selection: Selection) -> Iterator[Condition]:
    """Conditions on the table of runs, if the selection names no run."""
    yield "events.run = runs.run", ()
    if not selection.kinds or _OPINION in selection.kinds:
        return  # a diagnosis may be from before the run's first event or from after its last
    if selection.since_ns is not None:
        yield "last_ns >= ?", (_within_column(selection.since_ns),)
    if selection.until_ns is not None:
        yield "first_ns < ?", (_within_column(selection.until_ns),)


def _query(select: str, conditions: Iterable[Condition], order: str) -> tuple[str, list[Parameter]]:
    texts: list[str] = []
    parameters: list[Parameter] = []
    for text, values in conditions:
        texts.append(text)
        parameters.extend(values)
    return f"{select} WHERE {' AND '.join(texts)} {order}", parameters


def _within_column(time_ns: int) -> int:
    return max(-_INTEGER_MAX, min(time_ns, _INTEGER_MAX))
