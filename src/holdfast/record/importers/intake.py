"""Shared by all importers: lines and options in; events, their ids and an account of the lines out.

An importer is a function from `Lines` and `Options` to a `FileReading`: events to be drawn once, and then an
account of the lines. It never fails on a line: an unusable line is skipped with a reason. Only a file that
cannot be used at all raises an `InputError`.
"""

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import NAME_CHARS_MAX, AnyEvent, CostRate, Event, ReferenceDeclared
from holdfast.record.untrusted import printable
from holdfast.wording import many

Format = Literal["journal", "google-resiliency", "infinitehbd", "sacct", "csv", "jsonl", "trainer log"]
Made = TypeVar("Made", bound=Event)
Watch = Callable[[int], None]
"""Called now and then with the number of bytes read."""

LINE_BYTES_MAX = 1 << 20
"""A longer line is skipped: no known log has one, and a file without newlines must not fill the memory."""

HEAD_LINES_MAX = 20
"""How many lines detection may look at: a log that was cut at the front has one broken line, not twenty."""

ENDS_BYTES = 1 << 18
"""Of a file's head, and of its tail."""

BLOCK_BYTES = 1 << 20
"""Bytes between two reports of progress, and per read if no lines are needed."""

SKIPPED_SHOWN_MAX = 20
"""How many skipped lines are kept with their reason; all of them are counted."""

REASON_CHARS_MAX = 200
GPUS_MAX = 2**31
GPUS_PER_NODE_MAX = 1024
TIME_NS_MAX = 2**62
REFERENCE_STEP_S_MAX = 10**9
USD_PER_GPU_HOUR_MAX = 10**6


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A line that could not be used, and why."""

    line: int
    reason: str


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the user that the file does not have.

    run               the run that everything in the file belongs to, instead of the file's own; only
                      Holdfast's own events keep theirs, because their ids stand for it
    gpus              how many GPUs a run has, if the file does not say
    gpus_per_node     how many GPUs a node has, if the file counts nodes only
    reference_step_s  how long a healthy step takes
    usd_per_gpu_hour  what a GPU-hour costs
    """

    run: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    reference_step_s: float | None = None
    usd_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        if self.run is not None and not (self.run.strip() and self.run.isprintable()):
            raise InputError(f"`--run` cannot be {self.run!r}.", hint="Give a name, or leave it out.")
        if self.run is not None and len(self.run) > NAME_CHARS_MAX:
            raise InputError(
                f"`--run` cannot have {len(self.run):,} characters.",
                hint=f"Give a name of at most {NAME_CHARS_MAX}.",
            )
        _require_between("gpus", self.gpus, 0, GPUS_MAX)
        _require_between("gpus-per-node", self.gpus_per_node, 1, GPUS_PER_NODE_MAX)
        _require_between("reference-step-s", self.reference_step_s, 1e-9, REFERENCE_STEP_S_MAX)
        _require_between("usd-per-gpu-hour", self.usd_per_gpu_hour, 0, USD_PER_GPU_HOUR_MAX)


def _require_between(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise InputError(f"`--{name}` cannot be {value:,}.", hint=f"Give a number from {low:,} to {high:,}.")


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The account of the lines of one file.

    lines              lines with content, headers not counted
    skipped            the first `SKIPPED_SHOWN_MAX` lines that could not be used; `skipped_count` has all
    replaced_count     lines used although a text in them was not UTF-8: U+FFFD stands where those bytes were
    runs               how many runs the events are about
    runs_without_gpus  runs that had no GPU at all: nothing is paid for them
    """

    format: Format
    lines: int = 0
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    replaced_count: int = 0
    runs: int = 0
    runs_without_gpus: int = 0

    def summary(self) -> str:
        """One line for people, such as `68 lines, 1 run, no GPUs`."""
        parts = [many(self.lines, "line"), many(self.runs, "run")]
        if self.runs_without_gpus:
            everything = self.runs_without_gpus == self.runs
            parts.append("no GPUs" if everything else f"{self.runs_without_gpus} without GPUs")
        return ", ".join(parts)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn an `OSError` from reading this file into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{name} cannot be read: {error.strerror or error}.", hint="Check the name and the permissions."
        ) from None


class Lines:
    """The lines of one file, read one at a time and numbered from 1, and counts of skipped ones.

    Blank lines are ignored, and so is a repeated header: that happens when several outputs are put into one
    file.
    """

    def __init__(self, stream: BinaryIO, name: str, watch: Watch | None = None) -> None:
        self.name = name
        self.count = 0
        self.replaced_count = 0
        self.skipped: list[Skipped] = []
        self.skipped_count = 0
        self.run_named = ""  # the run that lines belong to which name none: the file is called so
        self.is_unfinished = False  # whether the line just read has no end: the file may be growing
        self._stream = stream
        self._numbered = self._read(watch)
        self._ahead: deque[tuple[int, bytes]] = deque()
        self._header: bytes | None = None

    def head(self) -> bytes:
        """The first lines, for detection; they are read again afterwards."""
        while len(self._ahead) < HEAD_LINES_MAX and (line := next(self._numbered, None)):
            self._ahead.append(line)
        return b"".join(raw for _, raw in self._ahead)

    def header(self) -> bytes:
        """The first line, taken out of the file: it names the columns of the others."""
        _, raw = next(self._raw(), (0, b""))
        self._header = raw.rstrip(b"\r\n")
        return self._header

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for number, raw in self._raw():
            content = raw.rstrip(b"\r\n")
            self.is_unfinished = content == raw
            if content == self._header:
                continue
            self.count += 1
            if len(content) > LINE_BYTES_MAX:
                self.skip(number, f"it is longer than {LINE_BYTES_MAX:,} bytes")
            elif b"\0" in content or b"\\u0000" in content:
                self.skip(number, "it holds a NUL character, which no text has")
            else:
                yield number, content

    def blocks(self) -> Iterator[bytes]:
        """Every byte of the file, for a reader that splits lines itself; instead of the lines, not after."""
        yield from (raw for _, raw in self._ahead)
        with readable(self.name):
            while block := self._stream.read(BLOCK_BYTES):
                yield block

    def skip(self, line: int, reason: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < SKIPPED_SHOWN_MAX:
            self.skipped.append(Skipped(line=line, reason=reason[:REASON_CHARS_MAX]))

    def _raw(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not blank."""
        while self._ahead:
            number, raw = self._ahead.popleft()
            if raw.strip():
                yield number, raw
        for number, raw in self._numbered:
            if raw.strip():
                yield number, raw

    def _read(self, watch: Watch | None) -> Iterator[tuple[int, bytes]]:
        """Every line unchanged; of a line that is too long, only enough to show that."""
        number = read_bytes = told_bytes = 0
        with readable(self.name):
            while raw := self._stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                read_bytes += len(raw)
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")  # the mark that some editors put before UTF-8
                yield number, raw
                while len(raw) > LINE_BYTES_MAX and not raw.endswith(b"\n"):
                    raw = self._stream.readline(LINE_BYTES_MAX + 1)
                    read_bytes += len(raw)
                if watch is not None and read_bytes - told_bytes >= BLOCK_BYTES:
                    told_bytes = read_bytes
                    watch(read_bytes)


class FileReading:
    """The events in a file, to be drawn once, and then the account of its lines."""

    def __init__(
        self, form: Format, lines: Lines, events: Iterable[AnyEvent], *, runs_without_gpus: int = 0
    ) -> None:
        self.format = form
        self._lines = lines
        self._events = events
        self._runs: set[str] = set()
        self._runs_without_gpus = runs_without_gpus

    def __iter__(self) -> Iterator[AnyEvent]:
        for event in self._events:
            if event.run:
                self._runs.add(event.run)
            yield event

    @property
    def run_named(self) -> str:
        """The run that the events so far were given because the file is called so; empty if there is none."""
        return self._lines.run_named

    def imported(self) -> Imported:
        """The account, complete once the last event has been drawn."""
        return Imported(
            format=self.format,
            lines=self._lines.count,
            skipped=tuple(self._lines.skipped),
            skipped_count=self._lines.skipped_count,
            replaced_count=self._lines.replaced_count,
            runs=len(self._runs),
            runs_without_gpus=self._runs_without_gpus,
        )


def reason_of(error: Exception) -> str:
    """Why a line cannot be used, the field first: msgspec names it as a path at the end of its sentence."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said, _, path = str(error).partition(" - at `$.")
    return f"{path.removesuffix('`')}: {said}" if path else said


def named_after(name: str) -> str:
    """The run that a file or directory is named after; empty for a pipe."""
    path = Path(name)
    if path.parts[:2] in (("/", "dev"), ("/", "proc")) or not (path.is_file() or path.is_dir()):
        return ""
    of_tensorboard = path.name.startswith("events.out.tfevents.")  # which names a moment and a host
    named = (
        path.resolve().parent.name if of_tensorboard else path.stem if path.is_file() else path.resolve().name
    )
    return printable(named.strip())[:NAME_CHARS_MAX]


def ends_of(path: Path) -> bytes:
    """The head and the tail of a file, by which it is recognised however long it is."""
    with readable(str(path)), path.open("rb") as stream:
        head = stream.read(ENDS_BYTES)
        left = stream.seek(0, os.SEEK_END) - len(head)
        if left <= 0:
            return head
        stream.seek(-min(left, ENDS_BYTES), os.SEEK_END)
        return head.rpartition(b"\n")[0] + b"\n" + stream.read(ENDS_BYTES).partition(b"\n")[2]


def require_name(field: str, name: str) -> None:
    """Refuse a name that is too long for a run or a subject: such an event could not be stored."""
    if len(name) > NAME_CHARS_MAX:
        raise ValueError(f"{field} has {len(name):,} characters, and a name at most {NAME_CHARS_MAX}")


def event_id(source: str, at_ns: int, said: bytes, *, rank: int = 0, step: int = 0) -> str:
    """An id that is the same at every import of an event.

    It depends on the event's content, not on the file's name or its other lines: a file may be imported again
    after it has grown, or in parts. Of two events at the same moment the one with the lower rank (0 to 15),
    and then the lower step, comes first. The time leads, because growing ids are appended to a store's index,
    which is twice as fast as random inserts.
    """
    return f"{source}-{at_ns:016x}-{rank:x}{step:014x}-{hashlib.blake2b(said, digest_size=8).hexdigest()}"


def said(*facts: str | int) -> bytes:
    """The content of an event for its id, made of a few facts."""
    return "\0".join(map(str, facts)).encode()


def made(
    kind: type[Made], source: str, run: str, at_ns: int, facts: bytes, *, rank: int = 0, **fields: Any
) -> Made:
    """An importer's event, identified by these facts."""
    identity = event_id(source, at_ns, facts, rank=rank)
    return kind(id=identity, occurred_ns=at_ns, source=source, run=run, **fields)


def declarations(
    run: str, at_ns: int, options: Options, source: str, *, gpus: int | None, held: bool = False
) -> Iterator[CostRate | ReferenceDeclared]:
    """The options' facts about a run, at its first event.

    held: its GPUs are paid for until its last. The ids leave out the values, so another value at the next
    import shows as a conflict; with two rates at the same moment, chance would decide which of them counts.
    """
    if held and gpus:
        yield made(CostRate, source, run, at_ns, said(run, "cost.rate", "gpus"), gpus=gpus)
    if options.usd_per_gpu_hour is not None:
        usd = float(options.usd_per_gpu_hour)
        yield made(CostRate, source, run, at_ns, said(run, "cost.rate", "usd"), usd_per_gpu_hour=usd)
    if options.reference_step_s is not None:
        facts, step_ns = said(run, "reference.declared"), round(options.reference_step_s * 1e9)
        yield made(ReferenceDeclared, source, run, at_ns, facts, step_ns=step_ns, gpus=gpus or None)


_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:[.,]([0-9]{1,9})[0-9]*)? ?(Z|z|[+-][0-9]{2}:?[0-9]{2})?"
)
_NUMBER = re.compile(r"([0-9]{1,20})(?:\.([0-9]{0,20}))?([eE][+-]?[0-9]{1,2})?")
_UNITS = ((10**11, 9), (10**14, 6), (10**17, 3))
"""A number below the border is in s, ms or us, which are so many powers of ten above a ns; above the last
border it is in ns. 10**11 s is in the year 5138 and 10**11 ms in March 1973, so every time from then on is
unambiguous."""


def time_ns(text: str) -> int:
    """Exact nanoseconds since the Unix epoch; raises `ValueError` with the reason if the text is not a time.

    It may be ISO 8601 with date and time of day, in UTC if it names no zone; or a number, in s, ms, us or ns
    by its size.
    """
    if written := _ISO.fullmatch(text):
        when_ns = _iso_ns(written, text)
    elif written := _NUMBER.fullmatch(text):
        when_ns = _number_ns(written, text)
    else:
        raise ValueError(f"{text[:40]!r} is not a time")
    if not 0 <= when_ns <= TIME_NS_MAX:
        raise ValueError(f"{text[:40]!r} is not between the years 1970 and 2116")
    return when_ns


def _iso_ns(written: re.Match[str], text: str) -> int:
    second, fraction, zone = written.groups()
    try:
        moment = datetime.fromisoformat(second.upper() + (zone or "Z").upper())
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time") from None
    # A whole second is exact in a float; a fraction would not be.
    return int(moment.timestamp()) * 10**9 + int((fraction or "").ljust(9, "0"))


def _number_ns(written: re.Match[str], text: str) -> int:
    whole, fraction, exponent = written.groups()
    if exponent:
        whole, _, fraction = f"{Decimal(text):f}".partition(".")
    number = int(whole)
    for border, digits in _UNITS:
        if number < border:
            # Fractions of a nanosecond are cut off, as in ISO 8601.
            return int(whole + (fraction or "")[:digits].ljust(digits, "0"))
    return number
