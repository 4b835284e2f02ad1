"""The store: every event once, to be asked for by run, subject, kind and time.

`Store` is what the rest of Holdfast knows of it; `open_store` picks SQLite or PostgreSQL by the URL. No
database driver is imported before a store of its kind is opened. What is kept and how: docs/store.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self
from urllib.parse import unquote

import msgspec

from holdfast.record.errors import InputError, StoreError
from holdfast.record.events import AnyEvent

DEFAULT_FILE = "record.sqlite"
NO_MARKS: Mapping[str, int] = MappingProxyType({})

_SQLITE_SUFFIXES = (".sqlite", ".db")
_URL_HINT = "Give a file ending in .sqlite or .db, sqlite:///PATH, or postgresql://USER@HOST/DATABASE."


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
    """A run as the store sees it: how many events, and when the first and the last of them occurred."""

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
        leaves a mark behind its events, never ahead of them.
        """

    def marks(self) -> dict[str, int]:
        """The last mark of every input."""

    def select(self, selection: Selection = EVERYTHING, *, limit: int | None = None) -> Iterator[AnyEvent]:
        """The events selected (the first `limit` of them) by time, then by id, in bounded memory."""

    def since(self, cursor: int, selection: Selection = EVERYTHING) -> Iterator[tuple[int, AnyEvent]]:
        """What arrived after `cursor` (0: everything), in that order, each with the cursor to go on from.

        Nothing ever arrives behind a cursor that was handed out, whoever else is writing.
        """

    def runs(self) -> list[RunSummary]:
        """Every run, the one with the newest event first; as quick for many events as for few."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def open_store(url: str | None, home: Path) -> Store:
    """The store at `url`, made if it is not there yet; without a URL, the SQLite file in `home`."""
    if url is None:
        _make_directory(home)
        return _open_sqlite(home / DEFAULT_FILE)
    scheme, separator, rest = url.partition(":")
    if not separator or not scheme.isalnum():
        return _open_path(url)
    if scheme in ("postgresql", "postgres"):
        return _open_postgres(url)
    if scheme != "sqlite":
        # Only the scheme is repeated: the rest of a foreign URL may hold a password.
        raise InputError(f"Stores of the kind {scheme}: are not known.", hint=_URL_HINT)
    if not rest.startswith("///") or rest.endswith("/"):
        raise InputError(f"The store {url} names no absolute path of a file.", hint=_URL_HINT)
    return _open_sqlite(Path(unquote(rest.removeprefix("//"))))


def _open_path(path: str) -> Store:
    if not path.endswith(_SQLITE_SUFFIXES):
        raise InputError(f"The store {path!r} is no URL and does not end in .sqlite or .db.", hint=_URL_HINT)
    return _open_sqlite(Path(path))


def _open_sqlite(path: Path) -> Store:
    from holdfast.record.sqlite import SqliteStore

    return SqliteStore(path)


def _open_postgres(url: str) -> Store:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise InputError(
            "A PostgreSQL store needs the package psycopg, which is not installed.",
            hint="Run `pip install 'holdfast[postgres]'`.",
        ) from None
    from holdfast.record.postgres import PostgresStore

    return PostgresStore(url)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"The directory {path} cannot be made: {error.strerror}.",
            hint="Set HOLDFAST_HOME to a directory you may write to, or name a store with --store.",
        ) from error
