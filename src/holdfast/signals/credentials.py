"""Credentials for servers, from the environment or from files, never from the command line.

On a command line every user of the machine could read them. docs/collectors.md lists the variables.
"""

import os
from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.signals.http_client import Access

FILE_MARK = "@"
FILE_BYTES_MAX = 64 << 10


def access(server: str) -> Access:
    """The credentials for `server`, one of PROMETHEUS, ALERTMANAGER, WEBHOOK, SCRAPE."""
    return Access(
        bearer=secret(f"HOLDFAST_{server}_TOKEN"),
        user=secret(f"HOLDFAST_{server}_USER"),
        password=secret(f"HOLDFAST_{server}_PASSWORD"),
    )


def secret(name: str) -> str:
    """The environment variable NAME, or the contents of the file that NAME_FILE names."""
    path = os.environ.get(f"{name}_FILE")
    return _contents(path, what=f"${name}_FILE") if path else os.environ.get(name, "")


def spelled_out(url: str, *, what: str) -> str:
    """The URL itself, read from the file if the URL was given as `@FILE` to hide a secret."""
    return _contents(url.removeprefix(FILE_MARK), what=what) if url.startswith(FILE_MARK) else url


def _contents(path: str, *, what: str) -> str:
    try:
        with Path(path).open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(
            f"{what}: Cannot read {path}: {reason}.", hint="Name a file with the secret on its only line."
        ) from None
    if not text or not text.isprintable():
        raise InputError(f"{what}: {path} does not hold a single line.", hint="Write the secret alone.")
    return text
