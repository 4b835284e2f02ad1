"""The way to the terminal: whatever is printed arrives as text, and JSON as bytes."""

import errno
import io
import os
import sys
from pathlib import Path

import click
import msgspec

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


def printable(text: str) -> str:
    """The text on one line, with what a terminal would obey written as Python escapes it.

    Names, faults and reasons come from others: an escape sequence in one could rewrite the screen or set the
    clipboard, and a newline could pass for an event.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_json(data: object) -> None:
    """For programs: indented, and UTF-8 whatever the encoding of stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
