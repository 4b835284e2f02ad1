"""The arbiter decides between two halves of a run's machines when neither can know the state of the other."""

import asyncio
from typing import Protocol

from holdfast.record.errors import HoldfastError, InputError


class Arbiter(Protocol):
    """A service outside the run that all its machines share. A PostgreSQL row serves as one; etcd or a
    Kubernetes Lease could, too.
    """

    def prepare(self) -> None:
        """Get ready to choose. Raise `HoldfastError` if that fails."""

    def choose(self, machine: str, known: int, term: int) -> bool:
        """Whether the machine may coordinate in this term. `known` is the latest term it knows of: the answer
        is False if another machine was already chosen for a later term. The choice is atomic.
        """


def arbiter_at(url: str, run: str, started_ns: int) -> Arbiter | None:
    """The arbiter of exactly this run, not of another with its name; None for an empty URL. Raise
    `InputError` for an unsupported kind.
    """
    if not url:
        return None
    if url.partition("://")[0] not in ("postgresql", "postgres"):
        raise InputError(
            "The arbiter is not a PostgreSQL database.", hint="Give postgresql://USER@HOST/DATABASE."
        )
    try:
        from holdfast.record.terms import PostgresTerms
    except ImportError:
        raise InputError(
            "An arbiter in PostgreSQL needs the package psycopg, which is not installed.",
            hint="Run `pip install 'psycopg[binary]'`.",
        ) from None
    return PostgresTerms(url, f"{run} {started_ns}")


async def chosen(arbiter: Arbiter, machine: str, known: int, term: int) -> bool:
    """Like `Arbiter.choose`, without blocking the event loop. False if the arbiter does not answer."""
    try:
        return await asyncio.to_thread(arbiter.choose, machine, known, term)
    except HoldfastError:
        return False
