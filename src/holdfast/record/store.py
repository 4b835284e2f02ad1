"""The store: every event once, to be asked for by run, subject, kind and time.

`Store` is what the rest of Holdfast knows of it; `open_store` picks SQLite or PostgreSQL by the URL. No
database driver is imported before a store of its kind is opened. What is kept and how: docs/store.md.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self
from urllib.parse import unquote

import msgspec

from holdfast.record.errors import InputError, StoreError
from holdfast.record.events import AnyEvent
from holdfast.record.private import make_private_directory

DEFAULT_FILE = "record.sqlite"
NO_MARKS: Mapping[str, int] = MappingProxyType({})

_SQLITE_SUFFIXES = (".sqlite", ".db")
_CONNECTION = re.compile(r"://|(^|\s)(dbname|host|hostaddr|password|service|user)\s*=")
"""A way to a server that is spelled as libpq or another program wants it."""
_SEEN_WITH_PASSWORDS = re.compile("[:=@]")
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
        """Every run, the one with the newest event first and those without any last; as quick for many events
        as for few.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def open_store(url: str | None, home: Path, *, must_answer: bool = True) -> Store:
    """The store at `url`, made if it is not there yet; without a URL, the SQLite file in `home`.

    must_answer: `StoreError` where its server is down; else whatever is done with it raises that until the
    server is there.
    """
    if url is None:
        _make_directory(home)
        return _open_sqlite(home / DEFAULT_FILE)
    scheme, separator, rest = url.partition(":")
    kind, plus, _ = scheme.partition("+")
    if not separator or not kind.isalnum():
        return _open_path(url)
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise InputError(f"Stores of the kind {kind}: are not known.", hint=_URL_HINT)
    if plus:
        raise InputError(f"A store's URL names no driver: plain {kind}:// is wanted.", hint=_URL_HINT)
    if kind != "sqlite":
        return _open_postgres(url, must_answer=must_answer)
    path = unquote(rest.removeprefix("//"))
    if not rest.startswith("///") or path.endswith("/") or "\x00" in path:
        raise InputError("The URL of the SQLite store names no absolute path of a file.", hint=_URL_HINT)
    return _open_sqlite(Path(path))


def _open_path(path: str) -> Store:
    # What may hold a password is not repeated, whether or not it was meant as a URL.
    if _CONNECTION.search(path):
        raise InputError("The store is named neither by a path nor by a URL known here.", hint=_URL_HINT)
    if not path.endswith(_SQLITE_SUFFIXES):
        name = "The store's name" if _SEEN_WITH_PASSWORDS.search(path) else f"The store {path!r}"
        raise InputError(f"{name} is no URL and does not end in .sqlite or .db.", hint=_URL_HINT)
    return _open_sqlite(Path(path))


def _open_sqlite(path: Path) -> Store:
    from holdfast.record.sqlite import SqliteStore, is_on_network, mounted

    return SqliteStore(path, on_network=is_on_network(Path(os.path.realpath(path)), mounted()))


def _open_postgres(url: str, *, must_answer: bool) -> Store:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise InputError(
            "A PostgreSQL store needs the package psycopg, which is not installed.",
            hint="Run `pip install 'psycopg[binary]'`.",
        ) from None
    from holdfast.record.postgres import PostgresStore

    return PostgresStore(url, must_answer=must_answer)


def _make_directory(path: Path) -> None:
    try:
        make_private_directory(path)
    except OSError as error:
        raise StoreError(
            f"The directory {path} cannot be made: {error.strerror}.",
            hint="Set HOLDFAST_HOME to a directory you may write to, or name a store with --store.",
        ) from error
