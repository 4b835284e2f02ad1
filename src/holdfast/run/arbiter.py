"""Who decides between two halves of a run's machines, of which neither can know what became of the other."""

import asyncio
from typing import Protocol

from holdfast.record.errors import HoldfastError, InputError


class Arbiter(Protocol):
    """Outside the run, and one for all its machines. A row of PostgreSQL is one; etcd or a Kubernetes Lease
    could be.
    """

    def prepare(self) -> None:
        """Be ready to choose. `HoldfastError` where it cannot."""

    def choose(self, machine: str, known: int, term: int) -> bool:
        """Whether the machine may coordinate in this term, that knows of no later one than `known`: False as
        soon as another one was chosen for a later term than that. In one step, whoever else asks meanwhile.
        """


def arbiter_at(url: str, run: str, started_ns: int) -> Arbiter | None:
    """For this run, and none of the same name; None: there is no arbiter. `InputError` for another kind."""
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
    """The same without holding anybody up. One that does not answer has not chosen."""
    try:
        return await asyncio.to_thread(arbiter.choose, machine, known, term)
    except HoldfastError:
        return False
