"""Foreign logs to Holdfast events: what a file is, and what it says.

`import_file` is the way in. It takes Google's resiliency tracker, Slurm's accounting and plain tables;
Holdfast's own journals are recognised and left to their reader. docs/import.md tells what each format
becomes.
"""

import re
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.importers import google, slurm, table
from holdfast.record.importers.intake import Format, Imported, Lines, Options, Skipped

__all__ = ["Format", "Imported", "Options", "Skipped", "detect", "import_file"]

_JOURNAL = re.compile(rb"[0-9a-f]{8} \{")
_SACCT_WITHOUT_HEADER = re.compile(rb"[0-9]+[0-9_+.a-z\[\]-]*\|")
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")
"""How files of gzip, zstd, xz, bzip2 and zip begin."""

_READERS = {
    "google-resiliency": google.read,
    "sacct": slurm.read,
    "csv": table.read_csv,
    "jsonl": table.read_jsonl,
}


def detect(head: bytes) -> Format | None:
    """The format of a file that begins with these lines; None where it is none that is known.

    Lines of JSON that cannot be read are passed over: a log that was cut at the front begins with one.
    """
    for line in head.split(b"\n"):
        if not line.strip():
            continue
        if _JOURNAL.match(line):
            return "journal"
        if not line.lstrip().startswith(b"{"):
            return _detect_header(line.decode("utf-8", "replace"))
        if (keys := _keys(line)) is not None:
            return "google-resiliency" if keys >= google.KEYS else "jsonl"
    return None


def _detect_header(line: str) -> Format | None:
    if slurm.is_header(line):
        return "sacct"
    return "csv" if table.is_header(line) else None


def _keys(line: bytes) -> set[str] | None:
    try:
        return set(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except (ValueError, RecursionError):
        return None


def import_file(path: Path, options: Options) -> Imported:
    """Everything that can be read in this file, and an account of the rest; `InputError` where nothing can.

    A journal, or a directory of them, gives its format and no events.
    """
    if path.is_dir():
        return Imported(format="journal")
    try:
        with path.open("rb") as stream:
            return _import_stream(stream, str(path), options)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.", hint="Check the name and the permissions."
        ) from None


def _import_stream(stream: BinaryIO, name: str, options: Options) -> Imported:
    lines = Lines(stream, name)
    head = lines.head()
    form = detect(head)
    if form == "journal":
        return Imported(format="journal")
    if form is None or b"\0" in head:
        raise _refusal(head, name)
    return _READERS[form](lines, options)


def _refusal(head: bytes, name: str) -> InputError:
    """Why nothing in this file can be read, and what may help."""
    if not head.strip():
        return InputError(f"{name} is empty.", hint="Check that whatever writes it has run.")
    if head.startswith(_COMPRESSED):
        return InputError(f"{name} is compressed.", hint=f"Unpack it first, as in `zcat {name} > log.jsonl`.")
    if b"\0" in head:
        return InputError(f"{name} is binary, not text.", hint="If it is text in UTF-16, save it as UTF-8.")
    if _SACCT_WITHOUT_HEADER.match(head):
        return InputError(
            f"{name} looks like sacct's output without its header.", hint="Run sacct without `--noheader`."
        )
    return InputError(
        f"{name} is in no format that Holdfast reads.",
        hint="It reads its own journals, Google resiliency events, `sacct --parsable2`, and CSV or JSON lines"
        " with `time` and `kind`; see docs/import.md.",
    )
