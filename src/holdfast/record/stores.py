"""A store by its URL: SQLite or PostgreSQL. Its database driver is imported when it is opened, not before."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from holdfast.record.errors import InputError, StoreError
from holdfast.record.files import make_private_directory
from holdfast.record.leading import FileLead, Lead
from holdfast.record.store import Store

DEFAULT_FILE = "record.sqlite"
_SQLITE_SUFFIXES = (".sqlite", ".db")
_CONNECTION = re.compile(r"://|(^|\s)(dbname|host|hostaddr|password|service|user)\s*=")
"""A connection string in the form of libpq or another program."""
_SEEN_WITH_PASSWORDS = re.compile("[:=@]")
_URL_HINT = "Give a file ending in .sqlite or .db, sqlite:///PATH, or postgresql://USER@HOST/DATABASE."


def open_store(url: str | None, home: Path, *, must_answer: bool = True) -> Store:
    """Open the store at `url`, made if it does not exist; without a URL, the SQLite file in `home`.

    must_answer: raise `StoreError` if its server is down; otherwise each use raises it until the server is
    up.
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
        raise InputError(f"Write a store's URL without a driver: plain {kind}://.", hint=_URL_HINT)
    if kind != "sqlite":
        return _open_postgres(url, must_answer=must_answer)
    path = unquote(rest.removeprefix("//"))
    if not rest.startswith("///") or path.endswith("/") or "\x00" in path:
        raise InputError(
            "The URL of the SQLite store does not name an absolute path of a file.", hint=_URL_HINT
        )
    return _open_sqlite(Path(path))


def open_lead(url: str | None, home: Path) -> Lead:
    """The lead among the processes that use this store; `open_store` has accepted the URL before."""
    scheme, _, rest = (url or "").partition(":")
    if scheme in ("postgresql", "postgres"):
        from holdfast.record.postgres import PostgresLead

        return PostgresLead(url or "")
    path = unquote(rest.removeprefix("//")) if scheme == "sqlite" else url or home / DEFAULT_FILE
    return FileLead(Path(f"{path}.lead"))


def _open_path(path: str) -> Store:
    # Text that may hold a password is not repeated, whether or not it was meant as a URL.
    if _CONNECTION.search(path):
        raise InputError("The store is named neither by a path nor by a URL known here.", hint=_URL_HINT)
    if not path.endswith(_SQLITE_SUFFIXES):
        name = "The store's name" if _SEEN_WITH_PASSWORDS.search(path) else f"The store {path!r}"
        raise InputError(f"{name} is neither a URL nor ends in .sqlite or .db.", hint=_URL_HINT)
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
