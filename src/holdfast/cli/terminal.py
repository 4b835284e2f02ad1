"""Prints to the terminal: any text in any encoding, and JSON as bytes."""

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from holdfast.record.errors import complaint
from holdfast.record.untrusted import printable

__all__ = ["NO_ROOM", "discard_output", "open_streams", "print_json", "printable", "say", "tell"]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a write if a disk or a quota is full, or a file has reached its size limit."""


def open_streams() -> None:
    """Let stdout and stderr take any text: characters that their encoding lacks are replaced.

    A stream that was closed before the start (`>&-`) leads to /dev/null.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """Lead stdout to /dev/null: otherwise the interpreter tries to flush it at its end, and complains."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(sentence: str) -> None:
    """Print a line to stderr. If its reader is gone, go on."""
    with suppress(OSError):
        click.echo(f"holdfast: {printable(sentence)}", err=True)


def tell(sentence: str, hint: str = "") -> None:
    """Print a sentence to stderr, in the form of every error message."""
    with suppress(OSError):
        click.echo(complaint(printable(sentence), printable(hint)), err=True)


def print_json(data: object) -> None:
    """Print JSON for programs: indented, and UTF-8 whatever the encoding of stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
