"""Tables for everyone else: CSV with a header, or one JSON object a line. docs/import.md describes them.

The columns are the fields of events under their own names; what is no field is passed over, so a trainer's
log of `step,time,loss` is a table already. Lines that are events as Holdfast prints them are taken as they
are.
"""

import csv
import math
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import KINDS, SCHEMA, AnyEvent, KnownEvent, RunStarted, decode, encode, kind_of
from holdfast.record.importers.intake import Ids, Imported, Lines, Options, declarations, reason_of, time_ns

_DELIMITERS = ",;\t"
_LISTS = ("causes", "members")
"""The fields that hold several values: separated by spaces in a cell of CSV."""

_RUNLESS = frozenset({"fault.observed", "action.taken", "cost.rate", "collective.timed", "correction"})
"""The kinds that may be about the cluster as a whole; every other kind is about a run."""

_TYPES: dict[str, type[KnownEvent]] = dict(zip(KINDS, get_args(KnownEvent), strict=True))
"""Each kind's own type: converting to it is many times faster than to the union of all."""

_Row = dict[str, Any]
"""The fields of one line by their names. It does not leave this module: what leaves is an event."""

_json_row: msgspec.json.Decoder[_Row] = msgspec.json.Decoder(_Row)


def columns(line: str) -> list[str]:
    """The names in a line of CSV, in lower case; empty where the line is no CSV."""
    try:
        return [name.strip().lower() for name in _cells(line, _delimiter(line))]
    except ValueError:
        return []


def is_header(line: str) -> bool:
    """Whether this line could be the header of a table; `read_csv` says what it lacks."""
    return not {"time", "occurred_ns", "kind"}.isdisjoint(columns(line))


def read_csv(lines: Lines, options: Options) -> Imported:
    header = lines.header().decode("utf-8", "replace")
    names, delimiter = columns(header), _delimiter(header)
    _require_usable(names, lines.name, options)
    table = _Table(options)
    for number, content in lines:
        text = content.decode("utf-8", "replace")
        try:
            cells = _cells(text, delimiter)
            if len(cells) != len(names):
                raise ValueError(f"it has {len(cells)} cells and the header {len(names)}")
            row: _Row = {name: cell.strip() for name, cell in zip(names, cells, strict=True) if cell.strip()}
            table.take(row | {name: row[name].split() for name in _LISTS if name in row})
        except ValueError as error:
            lines.skip(number, str(error))
        else:
            lines.replaced_count += "\ufffd" in text
    return lines.imported("csv", table.told())


def read_jsonl(lines: Lines, options: Options) -> Imported:
    table = _Table(options)
    for number, content in lines:
        try:
            row = _json_row.decode(content)
            if _is_own(row):
                table.keep(decode(content))
            else:
                table.take(row)
        except (ValueError, RecursionError) as error:
            lines.skip(number, reason_of(error))
    return lines.imported("jsonl", table.told())


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of one line. A record is one line, so an open quote cannot swallow the lines that follow."""
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"it is no CSV: {error}") from None


def _require_usable(names: list[str], name: str, options: Options) -> None:
    if not {"time", "occurred_ns"} & set(names):
        raise InputError(
            f"{name} has no column `time`.", hint="Name the column with each line's time `time`."
        )
    if not {"kind", "step"} & set(names):
        raise InputError(
            f"{name} has neither a column `kind` nor a column `step`.",
            hint="Add `kind`, such as `step.committed`; a log of steps needs `step` and `time` only.",
        )
    if "kind" not in names and "run" not in names and options.run is None:
        raise InputError(f"{name} does not say which run it is of.", hint="Add `--run NAME`.")


def _is_own(row: _Row) -> bool:
    """Whether this is an event as Holdfast prints it: only then is its id taken for an event's id."""
    return all(row.get(name) not in (None, "") for name in ("id", "kind", "occurred_ns"))


class _Table:
    """The events of a table; when each run in it begins, and whether the table says that it started."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ids = Ids("table")
        self._kept: dict[str, AnyEvent] = {}
        self._made: list[KnownEvent] = []
        self._first_ns: dict[str, int] = {}
        self._started: set[str] = set()

    def keep(self, event: AnyEvent) -> None:
        """Take an event of Holdfast's own as it is; once, however often its line was copied."""
        self._kept.setdefault(event.id, event)
        self._note(event)

    def take(self, row: _Row) -> None:
        """Take the event in these fields; `ValueError` names the field that cannot be used."""
        if _is_own(row):
            self.keep(_converted(row))
        else:
            event = self._event(row)
            self._made.append(event)
            self._note(event)

    def _event(self, row: _Row) -> KnownEvent:
        fields = {name: value for name, value in row.items() if value is not None}
        if "kind" not in fields and "step" in fields:
            fields["kind"] = "step.committed"
        if "occurred_ns" not in fields:
            fields["occurred_ns"] = _time_ns(fields)
        run = self._options.run or fields.get("run", "")
        event = _converted({"source": self._ids.source} | fields | {"id": "-", "schema": SCHEMA, "run": run})
        if not event.run and kind_of(event) not in _RUNLESS:
            raise ValueError("run: it is missing, and `--run` is not given")
        return msgspec.structs.replace(event, id=self._ids.of(encode(event).decode()))

    def _note(self, event: AnyEvent) -> None:
        if event.run:
            self._first_ns[event.run] = min(
                event.occurred_ns, self._first_ns.get(event.run, event.occurred_ns)
            )
            if isinstance(event, RunStarted):
                self._started.add(event.run)

    def told(self) -> Iterator[AnyEvent]:
        """What the options say about each run, then the table."""
        starts: dict[tuple[str, int], str] = {}
        for run, first_ns in self._first_ns.items():
            yield from declarations(run, first_ns, self._options, self._ids, gpus=self._options.gpus)
            if self._options.gpus is not None and run not in self._started:
                start = self._start(run, first_ns, self._options.gpus)
                starts[run, first_ns] = start.id
                yield start
        yield from self._kept.values()
        for event in self._made:
            cause = starts.get((event.run, event.occurred_ns))
            # The clock does not tell that the start came first, so the cause has to.
            yield event if cause is None else msgspec.structs.replace(event, causes=(*event.causes, cause))

    def _start(self, run: str, at_ns: int, gpus: int) -> RunStarted:
        return RunStarted(
            id=self._ids.of(run, "run.started", at_ns),
            occurred_ns=at_ns,
            source=self._ids.source,
            run=run,
            gpus=gpus,
        )


def _time_ns(fields: _Row) -> int:
    if "time" not in fields:
        raise ValueError("time: it is missing")
    try:
        return time_ns(str(fields["time"]))
    except ValueError as error:
        raise ValueError(f"time: {error}") from None


def _converted(fields: _Row) -> KnownEvent:
    if (kind := fields.get("kind")) not in KINDS:
        raise ValueError("kind: it is missing" if kind is None else f"kind: {kind!r} is unknown")
    try:
        event = msgspec.convert(fields, _TYPES[kind], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(reason_of(error)) from None
    if event.schema > SCHEMA:
        raise ValueError(f"schema: {event.schema} is newer than this version")
    for name, value in msgspec.structs.asdict(event).items():
        # JSON has no word for these, so such an event could be kept in no journal.
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: {value} is no amount")
    return event
