"""Shared by all readers of foreign data: the errors of decoders, and bounds on unpacking and display."""

import gzip
import re
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of the JSON, MessagePack and TOML decoders for data that are damaged, nested too deeply or not
UTF-8, and for numbers that no type holds."""
UNPACKED_RATIO_MAX = 200
"""JSON text shrinks by ten to fifty. A file that unpacks to more was made for that."""
UNPACKED_BYTES_MIN = 16 * 2**20
"""A file may unpack to this much at any ratio: small results do no harm."""

_STRING_OR_NO_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"?|-?\b(?:NaN|Infinity)\b', re.DOTALL)
"""A string without an end matches as well, so each byte is read once."""

T = TypeVar("T")


class TooLarge(ValueError):
    """The file would unpack to more than the limit."""


def gunzipped(path: Path, bytes_max: int) -> bytes:
    """The content of a gzip file. Raises `TooLarge`, `OSError`, or `ValueError` if it is damaged."""
    limit = min(bytes_max, max(UNPACKED_BYTES_MIN, UNPACKED_RATIO_MAX * path.stat().st_size))
    try:
        with gzip.open(path) as stream:
            found = stream.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(str(error)) from None
    if len(found) > limit:
        raise TooLarge(f"it unpacks to more than {limit:,} bytes")
    return found


def decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    """A line of JSON, where NaN, Infinity and -Infinity, which Python writes by default, are read as null."""
    try:
        return decoder.decode(line)
    except msgspec.DecodeError:
        told = _STRING_OR_NO_NUMBER.sub(
            lambda found: found[0] if found[0].startswith(b'"') else b"null", line
        )
        if told == line:
            raise
        return decoder.decode(told)


def printable(text: str) -> str:
    """The text on one line, with control characters escaped as Python writes them.

    Names, faults and reasons are foreign data: an escape sequence in one could rewrite the screen or set the
    clipboard, and a newline could pass for an event.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
