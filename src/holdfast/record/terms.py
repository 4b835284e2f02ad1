"""One row of a PostgreSQL database for each run: which machine may coordinate it, and in which term.

The table `terms` is in the schema `holdfast`, beside the record. The machine that sets the row first has it:
the server compares and sets in one statement.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from holdfast.record.errors import InputError, StoreError

CONNECT_WAIT_S = 3
STATEMENT_WAIT_MS = 3000
_MAKE = (
    "CREATE SCHEMA IF NOT EXISTS holdfast",
    """
    CREATE TABLE IF NOT EXISTS holdfast.terms (
        run text COLLATE "C" PRIMARY KEY, term bigint NOT NULL, machine text COLLATE "C" NOT NULL
    )
    """,
)
_MAKE_LOCK = 0x484F4C46
"""Key of the advisory lock under which the table is made, so that two processes do not both try. It is none
of the keys in `postgres.py`: the arbiter may be the database of the record, on which a process leads.
"""
_SET = """
    INSERT INTO holdfast.terms AS known (run, term, machine) VALUES (%(run)s, %(term)s, %(machine)s)
    ON CONFLICT (run) DO UPDATE SET term = excluded.term, machine = excluded.machine
    WHERE known.term <= %(known)s OR (known.machine = excluded.machine AND known.term <= excluded.term)
    RETURNING term
"""


class PostgresTerms:
    """The row of one run. run: a name that no other run has, not even a later one."""

    def __init__(self, url: str, run: str) -> None:
        """Raises `InputError` if the URL is invalid."""
        try:
            psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise InputError(
                "The arbiter's URL cannot be read.", hint="Give postgresql://USER@HOST/DATABASE."
            ) from None
        self._url = url
        self._run = run

    def prepare(self) -> None:
        """Make the table if it is missing. Raises `StoreError` if the server does not answer, or refuses."""
        with _told(), self._connected() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKE_LOCK])
            for statement in _MAKE:
                connection.execute(statement)

    def choose(self, machine: str, known: int, term: int) -> bool:
        """Whether the machine, which knows no term later than `known`, may coordinate in this term. Raises as
        `prepare` does."""
        asked = {"run": self._run, "machine": machine, "known": known, "term": term}
        with _told(), self._connected() as connection:
            return connection.execute(_SET, asked).fetchone() is not None

    def _connected(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            self._url,
            connect_timeout=CONNECT_WAIT_S,
            options=f"-c statement_timeout={STATEMENT_WAIT_MS}",
            tcp_user_timeout=STATEMENT_WAIT_MS,
        )


@contextmanager
def _told() -> Iterator[None]:
    """Turn errors of the server or the connection into `StoreError`: it may be a read-only copy, or hang."""
    try:
        yield
    except psycopg.Error as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise StoreError(f"The arbiter does not answer: {reason}.") from None
