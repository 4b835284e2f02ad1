"""Tables for all other logs: CSV with a header, or one JSON object a line.

docs/import.md describes them. The columns are the fields of events under their own names; other columns are
ignored, so a trainer's log of `step,time,loss` is a table already. Lines that are events as Holdfast prints
them are kept unchanged. Tables may be large, so each event is yielded as its line is read.
"""

import csv
from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec

from holdfast.record import events
from holdfast.record.errors import InputError
from holdfast.record.importers import intake
from holdfast.record.untrusted import decoded

_SOURCE = "table"
_DELIMITERS = ",;\t"
_LISTS = ("causes", "members", "skipped_lanes", "arguments")
"""The fields that hold several values: separated by spaces in a cell of CSV."""

_RUNLESS = frozenset(
    {
        "fault.observed",
        "action.taken",
        "cost.rate",
        "collective.timed",
        "control.acted",
        "breaker.changed",
        "correction",
    }
)
"""The kinds that may be about the cluster as a whole; every other kind is about a run."""

_TYPES: dict[str, type[events.KnownEvent]] = dict(zip(events.KINDS, get_args(events.KnownEvent), strict=True))
"""Each kind's own type: converting to it is many times faster than to the union of all."""

_SIZING = (events.RunStarted, events.GenerationOpened, events.MemberJoined, events.CostRate)
"""The kinds that give a run's number of GPUs; a submission only requests some."""

_COLUMNS = frozenset({"time", "kind"}.union(*(kind.__struct_fields__ for kind in _TYPES.values())))
"""Every column that is used; reading the others would only take time."""

_Row = dict[str, Any]
"""The fields of one line by their names. Used only inside this module, which returns events."""

_json_row: msgspec.json.Decoder[_Row] = msgspec.json.Decoder(_Row)


def columns(line: str) -> list[str]:
    """The names in a line of CSV, in lower case; empty if the line is not CSV."""
    try:
        return [name.strip().lower() for name in _cells(line, _delimiter(line))]
    except ValueError:
        return []


def is_header(line: str) -> bool:
    """Whether this line could be the header of a table; `read_csv` says what it lacks."""
    return not {"time", "occurred_ns", "kind"}.isdisjoint(columns(line))


def read_csv(lines: intake.Lines, options: intake.Options) -> intake.FileReading:
    header = lines.header().decode("utf-8", "replace")
    names, delimiter = columns(header), _delimiter(header)
    default_run = "" if "run" in names else intake.named_after(lines.name)
    _require_usable(names, lines.name, options.run or default_run)
    table = _Table(options, lines, default_run)
    used = [(index, name) for index, name in enumerate(names) if name in _COLUMNS]

    def event_in(content: bytes) -> events.AnyEvent:
        text = content.decode("utf-8", "replace")
        cells = _cells(text, delimiter)
        if len(cells) != len(names):
            raise ValueError(f"it has {len(cells)} cells and the header {len(names)}")
        row: _Row = {name: cell for index, name in used if (cell := cells[index].strip())}
        for name in _LISTS:
            if name in row:
                row[name] = row[name].split()
        event = table.event(row)
        lines.replaced_count += "\ufffd" in text
        return event

    return intake.FileReading("csv", lines, table.told(event_in))


def read_jsonl(lines: intake.Lines, options: intake.Options) -> intake.FileReading:
    table = _Table(options, lines, intake.named_after(lines.name))

    def event_in(content: bytes) -> events.AnyEvent:
        row = decoded(_json_row, content)
        if _is_own(row):
            return events.decode(content)
        return table.event({name: value for name, value in row.items() if value is not None})

    return intake.FileReading("jsonl", lines, table.told(event_in))


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of one line. A record is one line, so an open quote cannot swallow the lines that follow."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}") from None


def _require_usable(names: list[str], name: str, run: str) -> None:
    if not {"time", "occurred_ns"} & set(names):
        raise InputError(
            f"{name} has no column `time`.", hint="Name the column with each line's time `time`."
        )
    if not {"kind", "step"} & set(names):
        raise InputError(
            f"{name} has neither a column `kind` nor a column `step`.",
            hint="Add `kind`, such as `step.committed`; a log of steps needs `step` and `time` only.",
        )
    if "kind" not in names and "run" not in names and not run:
        raise InputError(f"{name} does not say which run it is of.", hint="Add `--run NAME`.")


def _is_own(row: _Row) -> bool:
    """Whether this is an event as Holdfast prints it: only then is its id the event's id."""
    return bool(row.get("id") and row.get("kind")) and row.get("occurred_ns") not in (None, "")


# Logs have stamps of whole seconds, so ends and beginnings often share one: ends come first.
_TIE_ORDER: tuple[tuple[str, ...], ...] = (
    ("cost.rate", "reference.declared"),
    ("step.committed",),
    ("checkpoint.saved",),
    (
        "lane.examined",
        "step.witnessed",
        "checkpoint.failed",
        "checkpoint.verified",
        "checkpoint.copied",
        "run.endangered",
        "collective.timed",
        "members.timed",
        "data.moved",
    ),
    ("fault.observed",),
    ("action.taken",),
    ("member.lost",),
    ("run.ended",),
    ("run.submitted",),
    ("run.started",),
    ("member.joined",),
    ("generation.opened",),
    ("checkpoint.loaded",),
    ("phase.entered",),
    ("step.begun",),
    ("checkpoint.begun", "incident.diagnosed", "control.acted", "breaker.changed", "correction"),
)
_TIE_RANKS = {kind: rank for rank, kinds in enumerate(_TIE_ORDER) for kind in kinds}

UNFINISHED_NS_MAX = 30 * 86_400 * 10**9
"""A last line without an end may be half a line; its time is refused if it is further from the last one."""


class _Table:
    """The events of a table; when each run in it begins, and for which of them it gives the GPUs.

    default_run: that of lines which name none, unless others do; empty if there is none.
    """

    def __init__(self, options: intake.Options, lines: intake.Lines, default_run: str) -> None:
        self._options = options
        self._lines = lines
        self._default_run = default_run
        self._first_ns: dict[str, int] = {}
        self._sized: set[str] = set()

    def told(self, event_in: Callable[[bytes], events.AnyEvent]) -> Iterator[events.AnyEvent]:
        """The events in the lines, then the options' facts about their runs."""
        lines = self._lines
        last_ns: int | None = None
        for number, content in lines:
            try:
                event = event_in(content)
                if lines.is_unfinished and last_ns is not None:
                    _require_near(event.occurred_ns, last_ns)
            except (ValueError, RecursionError) as error:
                lines.skip(number, intake.reason_of(error))
            else:
                last_ns = event.occurred_ns
                self._note(event)
                yield event
        for run, first_ns in self._first_ns.items():
            held = run not in self._sized
            yield from intake.declarations(
                run, first_ns, self._options, _SOURCE, gpus=self._options.gpus, held=held
            )

    def event(self, row: _Row) -> events.KnownEvent:
        """The event in these fields; `ValueError` names the field that cannot be used."""
        if _is_own(row):
            return _converted(row)
        if "kind" not in row and "step" in row:
            row["kind"] = "step.committed"
        if "occurred_ns" not in row:
            row["occurred_ns"] = _time_ns(row)
        if row.get("run"):
            self._default_run = ""
        of_cluster = str(row.get("kind")) in _RUNLESS
        named = "" if self._options.run or row.get("run") or of_cluster else self._default_run
        row["run"] = self._options.run or row.get("run") or named
        row["id"] = "-"
        row["schema"] = events.SCHEMA
        row.setdefault("source", _SOURCE)
        event = _converted(row)
        if not event.run and events.kind_of(event) not in _RUNLESS:
            raise ValueError("run: it is missing, and `--run` is not given")
        # Two equal lines are one event, so that parts of a log may overlap.
        self._lines.run_named = self._lines.run_named or named
        rank, step = _TIE_RANKS[events.kind_of(event)], getattr(event, "step", None) or 0
        own_id = intake.event_id(_SOURCE, event.occurred_ns, events.encode(event), rank=rank, step=step)
        return msgspec.structs.replace(event, id=own_id)

    def _note(self, event: events.AnyEvent) -> None:
        run = event.run
        if not run:
            return
        first_ns = self._first_ns.get(run)
        if first_ns is None or event.occurred_ns < first_ns:
            self._first_ns[run] = event.occurred_ns
        if isinstance(event, _SIZING) and event.gpus:
            self._sized.add(run)


def _require_near(at_ns: int, last_ns: int) -> None:
    if abs(at_ns - last_ns) > UNFINISHED_NS_MAX:
        raise ValueError("time: it is far from the others, and the line has no end; it may be half a line")


def _time_ns(row: _Row) -> int:
    if "time" not in row:
        raise ValueError("time: it is missing")
    try:
        return intake.time_ns(str(row["time"]))
    except ValueError as error:
        raise ValueError(f"time: {error}") from None


def _converted(row: _Row) -> events.KnownEvent:
    if (kind := row.get("kind")) not in events.KINDS:
        raise ValueError("kind: it is missing" if kind is None else f"kind: {kind!r} is unknown")
    try:
        event = msgspec.convert(row, _TYPES[kind], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(intake.reason_of(error)) from None
    if event.schema > events.SCHEMA:
        raise ValueError(f"schema: {event.schema} is newer than this version")
    return event
