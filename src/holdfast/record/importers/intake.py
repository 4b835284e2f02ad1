"""What every importer shares: lines and options in; events, ids and the account of what was skipped out.

An importer is a function from `Lines` and `Options` to `Imported`. It never fails on a line: one that it
cannot use is skipped with a reason. Only a file that cannot be used at all raises an `InputError`.
"""

import hashlib
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import BinaryIO, Literal

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent, CostRate, ReferenceDeclared

Format = Literal["journal", "google-resiliency", "sacct", "csv", "jsonl"]

LINE_BYTES_MAX = 1 << 20
"""A longer line is skipped: no known log has one, and a file without newlines must not fill the memory."""

HEAD_LINES_MAX = 20
"""How many lines detection may look at: a log that was cut at the front has one broken line, not twenty."""

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
    """What the user knows and the file does not say.

    run               the run that everything in the file belongs to, instead of what the file says
    gpus              how many GPUs a run has, where the file does not say
    gpus_per_node     how many GPUs a node has, where the file counts nodes only
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
        _require_between("gpus", self.gpus, 0, GPUS_MAX)
        _require_between("gpus-per-node", self.gpus_per_node, 1, GPUS_PER_NODE_MAX)
        _require_between("reference-step-s", self.reference_step_s, 1e-9, REFERENCE_STEP_S_MAX)
        _require_between("usd-per-gpu-hour", self.usd_per_gpu_hour, 0, USD_PER_GPU_HOUR_MAX)


def _require_between(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise InputError(f"`--{name}` cannot be {value:,}.", hint=f"Give a number from {low:,} to {high:,}.")


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of one file. A journal is recognised and not read: it has a reader of its own.

    lines              lines that held something, headers not counted
    skipped            the first `SKIPPED_SHOWN_MAX` lines that could not be used; `skipped_count` has all
    replaced_count     lines used although a text in them was not UTF-8: U+FFFD stands where those bytes were
    runs               how many runs the events are about
    runs_without_gpus  runs that had no GPU at all: nothing is paid for them
    """

    format: Format
    events: tuple[AnyEvent, ...] = ()
    lines: int = 0
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    replaced_count: int = 0
    runs: int = 0
    runs_without_gpus: int = 0

    def summary(self) -> str:
        """One line for people, such as `68 lines, 1 run, no GPUs`."""
        parts = [_counted(self.lines, "line"), _counted(self.runs, "run")]
        if self.runs_without_gpus:
            everything = self.runs_without_gpus == self.runs
            parts.append("no GPUs" if everything else f"{self.runs_without_gpus} without GPUs")
        return ", ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Lines:
    """The lines of one file, read one at a time and numbered from 1, and what became of them.

    Blank lines are passed over, and so is the header where it comes again: that happens when several outputs
    are put into one file.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.name = name
        self.replaced_count = 0
        self._numbered = self._read(stream)
        self._ahead: deque[tuple[int, bytes]] = deque()
        self._header: bytes | None = None
        self._read_count = 0
        self._skipped: list[Skipped] = []
        self._skipped_count = 0

    def head(self) -> bytes:
        """The first lines, for detection; they are read again afterwards."""
        while len(self._ahead) < HEAD_LINES_MAX and (line := next(self._numbered, None)):
            self._ahead.append(line)
        return b"\n".join(content for _, content in self._ahead)

    def header(self) -> bytes:
        """The first line, taken out of the file: it names the columns of the others."""
        self.head()
        self._header = self._ahead.popleft()[1] if self._ahead else b""
        return self._header

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for number, content in self._rest():
            if content == self._header:
                continue
            self._read_count += 1
            if len(content) > LINE_BYTES_MAX:
                self.skip(number, f"it is longer than {LINE_BYTES_MAX:,} bytes")
            elif b"\0" in content or b"\\u0000" in content:
                self.skip(number, "it holds a NUL character, which no text has")
            else:
                yield number, content

    def skip(self, line: int, reason: str) -> None:
        self._skipped_count += 1
        if len(self._skipped) < SKIPPED_SHOWN_MAX:
            self._skipped.append(Skipped(line=line, reason=reason[:REASON_CHARS_MAX]))

    def imported(self, form: Format, events: Iterable[AnyEvent], *, runs_without_gpus: int = 0) -> Imported:
        """Everything that is known once the last line has been read."""
        taken = tuple(events)
        return Imported(
            format=form,
            events=taken,
            lines=self._read_count,
            skipped=tuple(self._skipped),
            skipped_count=self._skipped_count,
            replaced_count=self.replaced_count,
            runs=len({event.run for event in taken if event.run}),
            runs_without_gpus=runs_without_gpus,
        )

    def _rest(self) -> Iterator[tuple[int, bytes]]:
        while self._ahead:
            yield self._ahead.popleft()
        yield from self._numbered

    def _read(self, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """What is not blank; of a line that is too long, only enough to show that."""
        number = 0
        while raw := stream.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(raw) > LINE_BYTES_MAX and not raw.endswith(b"\n"):
                while (more := stream.readline(LINE_BYTES_MAX)) and not more.endswith(b"\n"):
                    pass
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")  # the mark that some editors put before UTF-8
            if raw.strip():
                yield number, raw.rstrip(b"\r\n")


def reason_of(error: Exception) -> str:
    """Why a line cannot be used, the field first: msgspec names it as a path at the end of its sentence."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said, _, path = str(error).partition(" - at `$.")
    return f"{path.removesuffix('`')}: {said}" if path else said


class Ids:
    """Event ids that are the same whenever and wherever the same facts are imported.

    An id depends on what is said, and on how often the file said it before; not on the file's name, nor on
    what follows. So a file may be imported again after it has grown.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._seen: Counter[bytes] = Counter()

    def of(self, *facts: str | float | None) -> str:
        said = hashlib.blake2b("\0".join(map(str, facts)).encode(), digest_size=10)
        key = said.digest()
        if earlier := self._seen[key]:
            said.update(b"\0after %d" % earlier)
        self._seen[key] += 1
        return f"{self.source}-{said.hexdigest()}"


def declarations(
    run: str, at_ns: int, options: Options, ids: Ids, *, gpus: int | None, held: bool = False
) -> Iterator[CostRate | ReferenceDeclared]:
    """What the options say about a run, at its first event. held: its GPUs stay paid for between attempts."""
    rate = None if options.usd_per_gpu_hour is None else float(options.usd_per_gpu_hour)
    held_gpus = gpus if held else None
    if rate is not None or held_gpus is not None:
        yield CostRate(
            id=ids.of(run, "cost.rate", at_ns, held_gpus, rate),
            occurred_ns=at_ns,
            source=ids.source,
            run=run,
            gpus=held_gpus,
            usd_per_gpu_hour=rate,
        )
    if options.reference_step_s is not None:
        step_ns = round(options.reference_step_s * 1e9)
        yield ReferenceDeclared(
            id=ids.of(run, "reference.declared", at_ns, step_ns, gpus),
            occurred_ns=at_ns,
            source=ids.source,
            run=run,
            step_ns=step_ns,
            gpus=gpus,
        )


_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:[.,]([0-9]{1,9})[0-9]*)? ?(Z|z|[+-][0-9]{2}:?[0-9]{2})?"
)
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,2})?")
_UNITS_NS = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3))
"""A number below the border is in that unit: s, ms, us; above the last border in ns. 10**11 s is in the year
5138 and 10**11 ms in March 1973, so every time from then on is told apart."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ns(text: str) -> int:
    """Nanoseconds since the Unix epoch, exactly; `ValueError` with the reason where the text is no such time.

    It may be ISO 8601 with date and time of day, in UTC where it names no zone; or a number, in s, ms, us or
    ns by its size.
    """
    if written := _ISO.fullmatch(text):
        when_ns = _iso_ns(written, text)
    elif _NUMBER.fullmatch(text):
        number = Decimal(text)
        unit_ns = next((unit for border, unit in _UNITS_NS if number < border), 1)
        when_ns = int(min(number * unit_ns, Decimal(TIME_NS_MAX + 1)).to_integral_value())
    else:
        raise ValueError(f"{text[:40]!r} is no time")
    if not 0 <= when_ns <= TIME_NS_MAX:
        raise ValueError(f"{text[:40]!r} is not between the years 1970 and 2116")
    return when_ns


def _iso_ns(written: re.Match[str], text: str) -> int:
    second, fraction, zone = written.groups()
    try:
        moment = datetime.fromisoformat(second.upper() + (zone or "Z").upper())
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no time") from None
    return (moment - _EPOCH) // timedelta(seconds=1) * 10**9 + int((fraction or "").ljust(9, "0"))
