"""Takes a file or a directory into a store: a journal, a known format, or a log of steps."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from io import BytesIO
from itertools import chain, islice
from pathlib import Path

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import (
    UNDATED_NS_MAX,
    AnyEvent,
    CostRate,
    ReferenceDeclared,
    is_undated,
    kind_of,
)
from holdfast.record.files import is_directory
from holdfast.record.home import ingest_directory
from holdfast.record.importers import import_file, table, trainer
from holdfast.record.importers.intake import (
    SKIPPED_SHOWN_MAX,
    FileReading,
    Lines,
    Options,
    Watch,
    ends_of,
    readable,
)
from holdfast.record.journal import Damage, holds_journal
from holdfast.record.store import Ingested, Selection, Store
from holdfast.record.untrusted import printable

StepsIn = Callable[[Path], list[tuple[int, int]]]
"""The moment and number of each step in a log, or in a tracker's files; empty for other files."""
HEAD_EVENTS = 100
"""The events by which a file is recognised as the one that its run was made from."""
_DECLARED = (CostRate, ReferenceDeclared)
"""What the options tell of a run, and not the file."""


class FileResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of importing a file. told: what a log has of each run, and what it cannot tell."""

    file: str
    format: str
    lines: int | None = None
    runs: int | None = None
    new: int
    known: int
    conflicting: int
    replaced: int = 0
    skipped: int
    skipped_lines: tuple[str, ...]
    summary: str = ""
    told: tuple[str, ...] = ()


class Taking(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """How files go into a store. watched: a context that is told how far a file was read."""

    store: Store
    options: Options
    steps_in: StepsIn
    watched: Callable[[Path], AbstractContextManager[Watch | None]]

    def take(self, path: Path) -> FileResult:
        """Import the path by its format; a file of unknown format may still be a step log (`--step-log`)."""
        if is_directory(path):
            return self._take_directory(path)
        try:
            with self.watched(path) as watch, import_file(path, self.options, watch) as reading:
                return self._named(
                    _taken(path, self.store.ingest(self._own(path, reading)), reading), reading
                )
        except InputError:
            if shown := self.steps_in(path):
                return self._take_steps(path, shown)
            if not (path.is_file() and trainer.is_log(ends_of(path))):
                raise
            return self._take_trainer_log(path)

    def _take_trainer_log(self, path: Path) -> FileResult:
        left_out: set[str] = set()
        with self.watched(path) as watch, readable(str(path)), path.open("rb") as stream:
            deque(trainer.read(Lines(stream, str(path)), self.options), maxlen=0)  # refused whole, or not
            stream.seek(0)
            reading = trainer.read(Lines(stream, str(path), watch), self.options)
            ingested = self.store.ingest(self._without_dated(self._own(path, reading), left_out))
        if left_out and not ingested.new + ingested.known + ingested.conflicting:
            raise InputError(
                f"{path} has no dates, and the record already has {_listed(left_out)} with dates: this log "
                "would add nothing.",
                hint="To import it as another run, name that with `--run NAME`.",
            )
        taken = _taken(path, ingested, reading)
        told = [sentence for run, sentence in reading.sentences.items() if run not in left_out]
        if left_out:
            told.append(f"Lines without dates are left out where the record has dates: {_listed(left_out)}.")
        return msgspec.structs.replace(taken, told=tuple(told))

    def _own(self, path: Path, reading: FileReading) -> Iterator[AnyEvent]:
        """The events. Refuse them if they would go into another run that is only called as the file is."""
        drawn = iter(reading)
        for event in drawn:
            if reading.run_named:
                head = [event, *islice(drawn, HEAD_EVENTS - 1)]
                self._require_own(path, reading.run_named, head)
                yield from chain(head, drawn)
            else:
                yield event

    def _require_own(self, path: Path, run: str, head: list[AnyEvent]) -> None:
        """Refuse a file whose first events are not those of the run in the record that is called as it is."""
        if all(one.run != run for one in self.store.runs()):
            return
        own = {one.id: one for one in head if one.run == run and not isinstance(one, _DECLARED)}
        at_ns = [one.occurred_ns for one in own.values()]
        there = Selection(
            run=run,
            kinds=tuple({kind_of(one) for one in own.values()}),
            since_ns=min(at_ns, default=0),
            until_ns=max(at_ns, default=0) + 1,
        )
        same = other = 0
        for event in self.store.select(there):
            same, other = (same + 1, other) if own.get(event.id) == event else (same, other + 1)
        if same < len(own) and same <= other:
            raise InputError(
                f"{path} does not say which run it is of, and the record has another run {run!r}.",
                hint=f"Add `--run NAME`, or `--run {run}` if it is that one.",
            )

    def _without_dated(self, reading: Iterable[AnyEvent], left_out: set[str]) -> Iterator[AnyEvent]:
        """The events, but none without a date of a run whose dates are recorded; such runs are `left_out`."""
        dated = {one.run for one in self.store.runs() if one.last_ns >= UNDATED_NS_MAX}
        for event in reading:
            if event.run in dated and is_undated(event):
                left_out.add(event.run)
            else:
                yield event

    def _named(self, taken: FileResult, reading: FileReading) -> FileResult:
        """The result; it says so if the run is named after the file."""
        if not reading.run_named:
            return taken
        return msgspec.structs.replace(
            taken, told=(f"The run is called {reading.run_named}, after the file.",)
        )

    def _take_steps(self, path: Path, shown: list[tuple[int, int]]) -> FileResult:
        """Import the steps as a table."""
        rows = "".join(f"{at_ns},{step}\n" for at_ns, step in shown)
        lines = Lines(BytesIO(f"occurred_ns,step\n{rows}".encode()), str(path))
        reading = table.read_csv(lines, self.options)
        taken = self._named(_taken(path, self.store.ingest(self._own(path, reading)), reading), reading)
        return msgspec.structs.replace(taken, format="step log")

    def _take_directory(self, path: Path) -> FileResult:
        if not holds_journal(path):
            if steps := self.steps_in(path):
                return self._take_steps(path, steps)
            raise InputError(
                f"The directory {path} holds no journal of Holdfast and no files of TensorBoard or W&B.",
                hint="Name the log files themselves; docs/import.md has the formats.",
            )
        damages: list[Damage] = []
        ingested = ingest_directory(self.store, path, damages)
        shown = damages[:SKIPPED_SHOWN_MAX]
        return FileResult(
            file=printable(str(path)),
            format="journal",
            new=ingested.new,
            known=ingested.known,
            conflicting=ingested.conflicting,
            skipped=len(damages),
            skipped_lines=tuple(
                printable(f"{damage.file}, line {damage.line}: {damage.reason}") for damage in shown
            ),
        )


def _listed(runs: Iterable[str]) -> str:
    return printable(", ".join(sorted(runs)[: trainer.RUNS_NAMED_MAX]))


def _taken(path: Path, ingested: Ingested, reading: FileReading) -> FileResult:
    imported = reading.imported()
    if not ingested.new + ingested.known + ingested.conflicting:
        first = (
            f", as line {skip.line}: {skip.reason}" if (skip := next(iter(imported.skipped), None)) else ""
        )
        raise InputError(
            f"Nothing in {path} can be used{first}.", hint="docs/import.md has the formats and their fields."
        )
    return FileResult(
        file=printable(str(path)),
        format=imported.format,
        lines=imported.lines,
        runs=imported.runs,
        new=ingested.new,
        known=ingested.known,
        conflicting=ingested.conflicting,
        replaced=imported.replaced_count,
        skipped=imported.skipped_count,
        skipped_lines=tuple(f"line {skip.line}: {skip.reason}" for skip in imported.skipped),
        summary=imported.summary(),
    )
