"""The store in one SQLite file: the default, for one machine and any number of processes on it.

The file is in WAL mode, so readers and the one writer of the moment do not wait for each other; but not on a
network filesystem, because the log's index is memory that only the processes of one machine share. A file
that is damaged, locked, foreign or newer than this version is refused with one sentence and not changed.
"""

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from holdfast.record import sql
from holdfast.record.errors import StoreError
from holdfast.record.files import make_private_file

LIBRARY_MIN = (3, 34, 0)
"""The SQLite of Red Hat Enterprise Linux 9, and the oldest that was tested."""

LOCK_WAIT_S = 10.0
"""How long to wait for another writer; its transactions are short, so this long means that it hangs."""

APPLICATION_ID = 0x484F4C44
"""The file header's mark that a database is ours: `HOLD`."""

CACHE_KIB = 65_536
"""Keeps the pages that ingest uses, the ends of the indexes, in memory; and bounds a sort's memory."""

CHECKPOINT_PAGES = 16_000
"""The log of changes may grow to 64 MB: each checkpoint waits for the disk, so a large ingest should have
few."""

ROWS_PER_STATEMENT = 100
"""Takes a third less time than a statement per row. Its 800 parameters are fewer than any SQLite allows."""

_TABLES = (
    """
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        run TEXT NOT NULL,
        subject TEXT NOT NULL,
        kind TEXT NOT NULL,
        occurred_ns INTEGER NOT NULL,
        recorded_ns INTEGER NOT NULL,
        source TEXT NOT NULL,
        body BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE runs (
        run TEXT PRIMARY KEY,
        events INTEGER NOT NULL,
        first_ns INTEGER NOT NULL,
        last_ns INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE TABLE marks (input TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",
)

# Without NOT INDEXED the planner reads all of an index, for its order, to group the few rows that are new.
_COUNT_RUNS = f"""
    INSERT INTO runs (run, events, first_ns, last_ns)
    SELECT {sql.SUMMED} FROM events NOT INDEXED WHERE seq > ? GROUP BY run
    ON CONFLICT (run) DO UPDATE SET
        events = runs.events + excluded.events,
        first_ns = {sql.joined("first_ns", "min")},
        last_ns = {sql.joined("last_ns", "max")}
"""
_SET_MARK = """
    INSERT INTO marks (input, position) VALUES (?, ?)
    ON CONFLICT (input) DO UPDATE SET position = excluded.position WHERE position <> excluded.position
"""

_SET_CACHE = f"PRAGMA cache_size = -{CACHE_KIB}"

# Filesystems whose files other machines may have open, by their names in /proc/self/mountinfo. FUSE counts as
# one of them: most are, and for the rest this is only slower.
_NETWORK_FILESYSTEM = re.compile(
    r"9p|afs|beegfs|ceph|cifs|dvs|fuse(\..*)?|gfs2|gpfs|lustre|nfs4?|ocfs2|orangefs|panfs|smb3|virtiofs|wekafs"
)
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How that file escapes characters that would end a field, such as a space."""

_MODE_RETRY_S = 0.02
_OTHER_PATH_HINT = "Give the path of a Holdfast store, or one where there is no file yet."

# By primary result code: what is wrong with the file, and what to do about it.
_TROUBLES = {
    sqlite3.SQLITE_BUSY: ("is locked by another process", "Wait until it is done, or end it, and try again."),
    sqlite3.SQLITE_NOTADB: ("is not a SQLite database", _OTHER_PATH_HINT),
    sqlite3.SQLITE_CORRUPT: ("is damaged", sql.REBUILD_HINT),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "Look at the disk it is on: is it full or failing?"),
    sqlite3.SQLITE_READONLY: ("may not be written", "Get the right to write to it and to its directory."),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "It must be a file, in a directory you may write to."),
    sqlite3.SQLITE_FULL: ("has no room to grow", "Make room on its disk and try again; what is in it stays."),
}


class SqliteStore(sql.SqlStore):
    """Events in the SQLite file at `path`, made if there is none; waits `lock_wait_s` for other writers.

    With `on_network` it relies on locks alone, so that processes of several machines may have it open: it is
    slower, and a write waits until all readers are done.
    """

    def __init__(self, path: Path, *, lock_wait_s: float = LOCK_WAIT_S, on_network: bool = False) -> None:
        _refuse_older_library()
        self._path = path
        self._name = f"The store {path}"
        self._lock_wait_s = lock_wait_s
        self._on_network = on_network
        with suppress(OSError):  # it exists, or SQLite says what is wrong
            make_private_file(path)
        with self._explained():
            self._writer = self._connect("rwc")
            try:
                self._prepare()
            except BaseException:
                self._writer.close()
                raise

    def close(self) -> None:
        with self._explained():
            self._writer.close()

    def _connect(self, mode: str) -> sqlite3.Connection:
        # Only the first connection may make the file ("rwc"): a file removed later must not be replaced by an
        # empty one.
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=self._lock_wait_s, isolation_level=None)

    def _prepare(self) -> None:
        """Check the file before changing it; create the tables in an empty one."""
        if self._is_empty():
            with self._writer:
                self._writer.execute("BEGIN IMMEDIATE")
                if self._is_empty():  # still: another process may have been quicker
                    for statement in (*_TABLES, *sql.INDEXES):
                        self._writer.execute(statement)
                    self._writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    self._writer.execute(f"PRAGMA user_version = {sql.SCHEMA_VERSION}")
        if self._number("PRAGMA application_id") != APPLICATION_ID:
            raise StoreError(f"{self._name} is a SQLite database of another program.", hint=_OTHER_PATH_HINT)
        self._refuse_newer(self._number("PRAGMA user_version"))
        if self._on_network:
            self._enter_mode("DELETE")
        else:
            self._enter_mode("WAL")
            # A power cut may take the last commits, marks and events together; the journals still have them.
            self._writer.execute("PRAGMA synchronous = NORMAL")
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._writer.execute(_SET_CACHE)

    def _enter_mode(self, mode: str) -> None:
        """Set the journal mode, with retries: SQLite gives up if several processes open the file at once."""
        deadline_s = time.monotonic() + self._lock_wait_s
        while True:
            try:
                self._writer.execute(f"PRAGMA journal_mode = {mode}")
                return
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                    raise
                time.sleep(_MODE_RETRY_S)

    def _is_empty(self) -> bool:
        return (
            self._number("PRAGMA application_id") == 0
            and self._number("SELECT count(*) FROM sqlite_schema") == 0
        )

    def _number(self, query: str) -> int:
        (number,) = self._writer.execute(query).fetchone()
        return int(number)

    def _take(self, batch: Sequence[sql.Row], marks: Mapping[str, int]) -> tuple[int, int]:
        with self._explained(), self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            last_seq = self._number("SELECT coalesce(max(seq), 0) FROM events")
            new = self._insert(batch)
            if new:
                self._writer.execute(_COUNT_RUNS, (last_seq,))
            self._writer.executemany(_SET_MARK, marks.items())
            return new, 0 if new == len(batch) else self._conflicting(batch)

    def _insert(self, batch: Sequence[sql.Row]) -> int:
        new = 0
        for start in range(0, len(batch), ROWS_PER_STATEMENT):
            rows = batch[start : start + ROWS_PER_STATEMENT]
            values = tuple(chain.from_iterable(rows))
            new += self._writer.execute(_insert_statement(len(rows)), values).rowcount
        return new

    def _conflicting(self, batch: Sequence[sql.Row]) -> int:
        """How many of these rows have the id, but not the bytes, of the stored row."""
        conflicting = 0
        for row in batch:
            (kept,) = self._writer.execute("SELECT body FROM events WHERE id = ?", row[:1]).fetchone()
            conflicting += kept != row[-1]
        return conflicting

    def _read(self, query: str, parameters: Sequence[sql.Parameter]) -> Iterator[Any]:
        with self._explained(), closing(self._connect("rw")) as connection:
            connection.execute(_SET_CACHE)
            yield from connection.execute(query, parameters)

    def _events_via(self, index: str | None) -> str:
        # The planner has no statistics of a file that only grows, so the query names the index.
        return f"events INDEXED BY {index}" if index else "events NOT INDEXED"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # our own mistake, not the file's state
        except sqlite3.Error as error:
            trouble, hint = _TROUBLES.get(_primary_code(error), ("cannot be used", _OTHER_PATH_HINT))
            raise StoreError(f"{self._name} {trouble} ({error}).", hint=hint) from error


def mounted() -> str:
    """The content of /proc/self/mountinfo; empty if this is not Linux."""
    try:
        return os.fsdecode(_MOUNTS.read_bytes())
    except OSError:
        return ""


def is_on_network(path: Path, mounts: str) -> bool:
    """Whether other machines may have this path open too. The path is absolute and without links."""
    depth, filesystem = 0, ""
    for line in filter(None, mounts.split("\n")):
        place, _, kind = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), place.split(" ")[4]))
        # The innermost mount counts; of several in one place, the last lies on top.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            depth, filesystem = len(point.parts), kind.split(" ")[0]
    return _NETWORK_FILESYSTEM.fullmatch(filesystem) is not None


def _refuse_older_library() -> None:
    if sqlite3.sqlite_version_info < LIBRARY_MIN:
        wanted = ".".join(map(str, LIBRARY_MIN[:2]))
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old for a store: {wanted} or newer is needed.",
            hint="Use a Python with a newer SQLite library, or a PostgreSQL store.",
        )


def _primary_code(error: sqlite3.Error) -> int:
    """The kind of error without its details; errors of the sqlite3 module itself have no code."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _insert_statement(row_count: int) -> str:
    row = f"({', '.join('?' * len(sql.COLUMNS))})"
    rows = ", ".join([row] * row_count)
    return f"INSERT INTO events ({', '.join(sql.COLUMNS)}) VALUES {rows} ON CONFLICT (id) DO NOTHING"
