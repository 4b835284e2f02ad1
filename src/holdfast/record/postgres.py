"""The store in a PostgreSQL database, for several machines: in the schema `holdfast` of that database.

Ingest uses COPY into a temporary table, reads use a cursor on the server. Messages name the server and the
database, never the password.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format

from holdfast.record.errors import InputError, StoreError
from holdfast.record.sql import COLUMNS, INDEXES, SCHEMA_VERSION, SUMMED, Parameter, Row, SqlStore, joined

_PATIENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's settings, unless the URL has others: a server that vanished silently is given up after half a
minute, not after the kernel's two hours. Seconds, except the last, which is in milliseconds.
"""
LOCK_WAIT_S = 30.0
"""How long to wait for another writer; its transactions are short, so this long means that it hangs."""

FETCH_ROWS = 5_000
"""Rows a read holds in memory at a time."""

_PREPARE_LOCK = 0x484F4C44
"""Key of the advisory lock under which the tables are made, so that two processes do not both try."""
_LEAD_LOCK = 0x484F4C45
"""Key of the one that the leader holds for as long as its connection lasts."""

# Names compare as bytes (collation C), so that every server orders them as SQLite does.
_TABLES = (
    "CREATE SCHEMA IF NOT EXISTS holdfast",
    """
    CREATE TABLE events (
        seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
        id text COLLATE "C" PRIMARY KEY,
        run text COLLATE "C" NOT NULL,
        subject text COLLATE "C" NOT NULL,
        kind text COLLATE "C" NOT NULL,
        occurred_ns bigint NOT NULL,
        recorded_ns bigint NOT NULL,
        source text COLLATE "C" NOT NULL,
        body bytea NOT NULL
    )
    """,
    """
    CREATE TABLE runs (
        run text COLLATE "C" PRIMARY KEY,
        events bigint NOT NULL,
        first_ns bigint NOT NULL,
        last_ns bigint NOT NULL
    )
    """,
    'CREATE TABLE marks (input text COLLATE "C" PRIMARY KEY, position bigint NOT NULL)',
    f"CREATE TABLE store AS SELECT {SCHEMA_VERSION} AS schema_version",
)

_STAGE = """
    CREATE TEMPORARY TABLE IF NOT EXISTS incoming (
        place bigint GENERATED ALWAYS AS IDENTITY,
        id text COLLATE "C", run text, subject text, kind text,
        occurred_ns bigint, recorded_ns bigint, source text, body bytea
    ) ON COMMIT DELETE ROWS
"""
_COLUMN_LIST = ", ".join(COLUMNS)
_COPY = f"COPY incoming ({_COLUMN_LIST}) FROM STDIN (FORMAT BINARY)"
_COLUMN_TYPES = ("text", "text", "text", "text", "int8", "int8", "text", "bytea")

# Batches take turns under this lock until they are committed, so a later commit never has a lower `seq` and a
# reader that follows with a cursor misses nothing. Readers do not wait for it.
_TAKE_TURN = "LOCK TABLE store IN EXCLUSIVE MODE"
_KEEP = f"""
    WITH fresh AS (
        INSERT INTO events ({_COLUMN_LIST})
        SELECT {_COLUMN_LIST} FROM incoming ORDER BY place
        ON CONFLICT (id) DO NOTHING
        RETURNING run, kind, occurred_ns
    ), counted AS (
        INSERT INTO runs (run, events, first_ns, last_ns)
        SELECT {SUMMED} FROM fresh GROUP BY run
        ON CONFLICT (run) DO UPDATE SET
            events = runs.events + excluded.events,
            first_ns = {joined("first_ns", "least")},
            last_ns = {joined("last_ns", "greatest")}
    )
    SELECT count(*) FROM fresh
"""
# Not a join: without statistics of `incoming` the planner would read all events for it.
_COUNT_CONFLICTING = """
    SELECT count(*) FROM incoming WHERE body <> (SELECT body FROM events WHERE events.id = incoming.id)
"""
_SET_MARK = """
    INSERT INTO marks (input, position) VALUES (%s, %s)
    ON CONFLICT (input) DO UPDATE SET position = excluded.position WHERE marks.position <> excluded.position
"""

_COUNT_STORES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'holdfast' AND tablename = 'store'"
_CONFIGURE = "SELECT set_config('search_path', 'holdfast', false), set_config('lock_timeout', %s, false)"

_URL_HINT = "Write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE; in a password, @ is %40 and / is %2F."
_SERVER_HINT = "See whether the server runs, can be reached, and knows this user, password and database."
_LOCK_HINT = "Wait until it is done, or end it, and try again."


class PostgresStore(SqlStore):
    """Events in the PostgreSQL database at `url`; waits `lock_wait_s` for other writers. must_answer: raise
    at once if the server is down, not only when it is needed.
    """

    def __init__(self, url: str, *, lock_wait_s: float = LOCK_WAIT_S, must_answer: bool = True) -> None:
        self._name = _described(url)
        self._url = url
        self._lock_wait_s = lock_wait_s
        self._writer: psycopg.Connection[Any] | None = None
        with self._explained():
            try:
                self._writer = self._opened()
            except psycopg.OperationalError:
                if must_answer:
                    raise

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _opened(self) -> psycopg.Connection[Any]:
        """A connection to a database that has our tables."""
        connection = self._connect()
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> psycopg.Connection[Any]:
        connection = _connected(self._url)
        try:
            connection.execute(_CONFIGURE, [f"{round(self._lock_wait_s * 1000)}ms"])
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Make the tables if they are missing; refuse those of a newer version."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_PREPARE_LOCK])
            if _number(connection, _COUNT_STORES) == 0:
                for statement in (*_TABLES, *INDEXES):
                    connection.execute(statement)
        self._refuse_newer(_number(connection, "SELECT schema_version FROM store"))

    def _take(self, batch: Sequence[Row], marks: Mapping[str, int]) -> tuple[int, int]:
        with self._explained():
            if self._writer is not None:
                try:
                    return _take_once(self._writer, batch, marks)
                except psycopg.OperationalError:
                    if not self._writer.closed:
                        raise
            # The server has restarted, or the connection was cut. It knows by their ids which events it
            # already has, so the batch can be offered again.
            self._writer = self._opened()
            return _take_once(self._writer, batch, marks)

    def _read(self, query: str, parameters: Sequence[Parameter]) -> Iterator[Any]:
        with self._explained():
            if self._writer is None:  # until then it is unknown whether the tables exist
                self._writer = self._opened()
        with (
            self._explained(),
            self._connect() as connection,
            connection.transaction(),
            connection.cursor(name="reading", binary=True) as cursor,
        ):
            cursor.itersize = FETCH_ROWS
            cursor.execute(query.replace("?", "%s"), parameters)
            yield from cursor

    def _events_via(self, index: str | None) -> str:
        return "events"  # the server has statistics, and chooses an index well by itself

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.LockNotAvailable as error:
            raise StoreError(f"{self._name} is locked by another process.", hint=_LOCK_HINT) from error
        except psycopg.Error as error:
            hint = "The server's log tells more." if error.sqlstate else _SERVER_HINT
            raise StoreError(f"{self._name} cannot be used: {_reason(error)}.", hint=hint) from error


class PostgresLead:
    """The lead by a lock that the server holds for one connection: for processes on any machine. A process
    that loses the connection has lost the lead, and learns it from `is_ours`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def is_ours(self) -> bool:
        try:
            if self._connection is not None:
                self._connection.execute("SELECT 1")
                return True
            connection = _connected(self._url)
            try:
                asked = connection.execute("SELECT pg_try_advisory_lock(%s)", [_LEAD_LOCK])
                ((is_taken,),) = asked.fetchall()
                if is_taken:
                    self._connection = connection
            finally:
                if self._connection is None:
                    connection.close()
            return bool(is_taken)
        except psycopg.Error:
            self.close()
            return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _connected(url: str) -> psycopg.Connection[Any]:
    named = conninfo_to_dict(url)
    patience: dict[str, Any] = {name: value for name, value in _PATIENCE.items() if not named.get(name)}
    return psycopg.connect(url, client_encoding="utf8", autocommit=True, context=_ADAPTERS, **patience)


def _take_once(
    writer: psycopg.Connection[Any], batch: Sequence[Row], marks: Mapping[str, int]
) -> tuple[int, int]:
    with writer.transaction(), writer.cursor() as cursor:
        _stage(cursor, batch)
        cursor.execute(_TAKE_TURN)
        new = _number(writer, _KEEP)
        cursor.executemany(_SET_MARK, marks.items())
        return new, 0 if new == len(batch) else _number(writer, _COUNT_CONFLICTING)


def _stage(cursor: psycopg.Cursor[Any], batch: Sequence[Row]) -> None:
    cursor.execute(_STAGE)
    with cursor.copy(_COPY) as copy:
        copy.set_types(_COLUMN_TYPES)
        for row in batch:
            copy.write_row(row)


def _number(connection: psycopg.Connection[Any], query: str) -> int:
    ((number,),) = connection.execute(query).fetchall()
    return int(number)


def _described(url: str) -> str:
    """The store's name in messages, made of the parts of the URL that are not secret."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        parts = {"host": "@"}  # libpq's message may contain the password, so it is not shown
    host, port, database = (str(parts.get(part) or "") for part in ("host", "port", "dbname"))
    # A password with a bare @ or / in it spills over into the host, the port or the name of the database.
    has_bad_port = bool(port) and not port.replace(",", "").isdigit()
    if has_bad_port or "@" in host + database:
        raise InputError("The URL of the PostgreSQL store cannot be read.", hint=_URL_HINT)
    return f"The store postgresql://{host}{port and ':'}{port}/{database}"


def _reason(error: psycopg.Error) -> str:
    """The server's own message, or the last and most specific part of the connection error."""
    if error.diag.message_primary:
        return error.diag.message_primary
    return str(error).rpartition("failed: ")[2].partition("\n")[0].removeprefix("FATAL:").strip()


def _escaped(name: str) -> str:
    """A name without NUL, which PostgreSQL's text cannot hold. Names stay distinct and ordered."""
    return name.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")


class _NameDumper(Dumper):
    oid = psycopg.adapters.types["text"].oid

    def dump(self, obj: str) -> Buffer:
        return _escaped(obj).encode()


class _NameBinaryDumper(_NameDumper):
    format = Format.BINARY


class _NameLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return bytes(data).decode().replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")


_ADAPTERS = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_dumper(str, _NameDumper)
_ADAPTERS.register_dumper(str, _NameBinaryDumper)
_ADAPTERS.register_loader("text", _NameLoader)
