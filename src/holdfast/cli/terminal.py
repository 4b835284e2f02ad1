"""The way to the terminal: whatever is printed arrives as text, and JSON as bytes."""

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
"""With these a write fails where a disk or a quota is full, or a file has its greatest size."""


def open_streams() -> None:
    """Have stdout and stderr take any text: what their encoding does not know is replaced, not raised over.

    One that was closed before the start (`>&-`) leads nowhere, as was wished.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """Lead stdout nowhere: the interpreter, when it ends, tries again to write what is left and complains."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(sentence: str) -> None:
    """On stderr. A reader that is gone is no reason to stop."""
    with suppress(OSError):
        click.echo(f"holdfast: {printable(sentence)}", err=True)


def tell(sentence: str, hint: str = "") -> None:
    """On stderr, as every mistake and failure is told."""
    with suppress(OSError):
        click.echo(complaint(printable(sentence), printable(hint)), err=True)


def print_json(data: object) -> None:
    """For programs: indented, and UTF-8 whatever the encoding of stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
