"""Credentials for servers, from the environment or from files, never from the command line.

On a command line every user of the machine could read them. docs/collectors.md lists the variables.
"""

import os
from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.record.secret_files import read_secret
from holdfast.signals.http_client import Access

FILE_MARK = "@"


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
    hint = "Name a file with the secret on its only line."
    text = read_secret(Path(path), what=what, hint=hint, is_private=False, encoding="utf-8").rstrip("\r\n")
    if not text or not text.isprintable():
        raise InputError(f"{what}: {path} does not hold a single line.", hint="Write the secret alone.")
    return text
