"""Prints to the terminal: any text in any encoding, and JSON as bytes."""

import errno
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import click
import msgspec

from holdfast.record.errors import complaint
from holdfast.record.untrusted import printable

__all__ = [
    "NO_ROOM",
    "discard_output",
    "fitted",
    "folded",
    "open_streams",
    "print_json",
    "printable",
    "say",
    "tell",
]

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


def folded(text: str, columns: int, hang: str = "  ") -> str:
    """The text with its lines wrapped by words; what goes on is indented. Only a word that is longer than a
    line is broken.
    """
    return "\n".join(
        piece
        for line in text.split("\n")
        for piece in (_wrapped(line, columns, hang) if len(line) > columns else (line,))
    )


def _wrapped(line: str, columns: int, hang: str) -> Iterator[str]:
    beginning = line[: len(line) - len(line.lstrip())]
    after = beginning + hang
    for piece in textwrap.wrap(
        line.lstrip(),
        columns,
        initial_indent=beginning,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    ):
        while len(piece) > columns:
            yield piece[:columns]
            piece = after + piece[columns:]
        yield piece


def fitted(text: str, stream: TextIO, hang: str = "  ") -> str:
    """The text as wide as the terminal that the stream is; programs that read it get their lines whole."""
    return folded(text, shutil.get_terminal_size().columns, hang) if stream.isatty() else text


def say(sentence: str) -> None:
    """Print a line to stderr. If its reader is gone, go on."""
    with suppress(OSError):
        click.echo(fitted(f"holdfast: {printable(sentence)}", sys.stderr), err=True)


def tell(sentence: str, hint: str = "") -> None:
    """Print a sentence to stderr, in the form of every error message."""
    with suppress(OSError):
        click.echo(fitted(complaint(sentence, hint), sys.stderr), err=True)


def print_json(data: object) -> None:
    """Print JSON for programs: indented, and UTF-8 whatever the encoding of stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
