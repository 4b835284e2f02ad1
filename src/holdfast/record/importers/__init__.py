"""Turns logs into events: detects the format of a file and reads it.

`import_file` is the entry point. It takes Google's resiliency tracker, Slurm's accounting, the fault trace of
InfiniteHBD and plain tables, and Holdfast's own journals. docs/import.md says what each format becomes.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent
from holdfast.record.importers import google, infinitehbd, slurm, table
from holdfast.record.importers.intake import (
    FileReading,
    Format,
    Imported,
    Lines,
    Options,
    Skipped,
    Watch,
    readable,
)
from holdfast.record.journal import JOURNAL_SUFFIX, Damage, read
from holdfast.record.untrusted import decoded

__all__ = ["FileReading", "Format", "Imported", "Options", "Skipped", "Watch", "detect", "import_file"]

_JOURNAL = re.compile(rb"^[0-9a-f]{8} \{", re.MULTILINE)
_SACCT_WITHOUT_HEADER = re.compile(rb"[0-9]+[0-9_+.a-z\[\]-]*\|")
_METRICS = re.compile(rb"# (?:HELP|TYPE|UNIT) [A-Za-z_:]")
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")
"""How files of gzip, zstd, xz, bzip2 and zip begin."""

_READERS = {
    "google-resiliency": google.read,
    "infinitehbd": infinitehbd.read,
    "sacct": slurm.read,
    "csv": table.read_csv,
    "jsonl": table.read_jsonl,
}


def detect(head: bytes) -> Format | None:
    """The format of a file that begins with these lines; None if it is unknown.

    A log may have been cut or damaged at the front, so a single journal line makes a file a journal, and
    unreadable lines of JSON are skipped.
    """
    if _JOURNAL.search(head):
        return "journal"
    if infinitehbd.is_head(head):
        return "infinitehbd"
    for line in head.split(b"\n"):
        if not line.strip():
            continue
        if not line.lstrip().startswith(b"{"):
            return _detect_header(line.decode("utf-8", "replace"))
        if (keys := _keys(line)) is not None:
            return "google-resiliency" if keys >= google.KEYS else "jsonl"
    return None


def _detect_header(line: str) -> Format | None:
    if slurm.is_header(line):
        return "sacct"
    return "csv" if table.is_header(line) else None


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _keys(line: bytes) -> set[str] | None:
    try:
        found = decoded(_object, line)
    except (ValueError, RecursionError):
        return None
    return set(found)


@contextmanager
def import_file(path: Path, options: Options, watch: Watch | None = None) -> Iterator[FileReading]:
    """Read the events of this file, which stays open meanwhile; `InputError` if nothing in it can be used.

    watch: called now and then with the number of bytes read.
    """
    with readable(str(path)):
        stream = path.open("rb")
    with stream:
        lines = Lines(stream, str(path), watch)
        head = lines.head()
        form = detect(head)
        if form == "journal":
            with _on_disk(path, lines) as journal:
                yield FileReading(form, lines, _journal_events(journal, lines))
        elif form is None or b"\0" in head:
            raise _refusal(head, lines.name)
        else:
            yield _READERS[form](lines, options)


@contextmanager
def _on_disk(path: Path, lines: Lines) -> Iterator[Path]:
    """A file with the whole content: a pipe cannot be opened a second time, so it is copied to a file."""
    if path.is_file():
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=JOURNAL_SUFFIX) as copy:
        with readable(lines.name):  # or there is no room for the copy
            copy.writelines(lines.blocks())
            copy.flush()
        yield Path(copy.name)


def _journal_events(path: Path, lines: Lines) -> Iterator[AnyEvent]:
    for item in read(path):
        lines.count += 1
        if isinstance(item, Damage):
            lines.skip(item.line, item.reason)
        else:
            yield item


def _refusal(head: bytes, name: str) -> InputError:
    """Why nothing in this file can be read, and what may help."""
    if not head.strip():
        return InputError(f"{name} is empty.", hint="Check that whatever writes it has run.")
    if head.startswith(_COMPRESSED):
        return InputError(f"{name} is compressed.", hint=f"Unpack it first, as in `zcat {name} > log.jsonl`.")
    if _METRICS.match(head):
        return InputError(
            f"{name} holds metrics (OpenMetrics), not events or steps.",
            hint="Load it into a Prometheus (`promtool tsdb create-blocks-from openmetrics FILE`), and name "
            "that to `holdfast diagnose` with --prometheus.",
        )
    if b"\0" in head:
        return InputError(f"{name} is binary, not text.", hint="If it is text in UTF-16, save it as UTF-8.")
    if _SACCT_WITHOUT_HEADER.match(head):
        return InputError(
            f"{name} looks like sacct's output without its header.", hint="Run sacct without `--noheader`."
        )
    return InputError(
        f"{name} is in no format that Holdfast reads.",
        hint="It reads its own journals, Google resiliency events, `sacct --parsable2`, InfiniteHBD's fault"
        " trace, and CSV or JSON lines with `time` and `kind`; see docs/import.md.",
    )
