"""Incidents in the record: how to write them, and how to find them again."""

import re
from collections.abc import Collection, Iterable, Sequence

from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange, diagnosis, restored
from holdfast.record.errors import InputError
from holdfast.record.events import NAME_CHARS_MAX, IncidentDiagnosed
from holdfast.record.recorder import Recorder
from holdfast.record.runs import known_run
from holdfast.record.store import Selection, Store

KIND = "incident.diagnosed"
_NAME = re.compile(r"(?P<run>.+)(?P<number>/s[0-9]+)")


def write(recorder: Recorder, change: IncidentChange) -> None:
    incident = change.incident
    recorder.record(
        IncidentDiagnosed,
        occurred_ns=change.at_ns,
        run=incident.run,
        subject=incident.cause.subject[:NAME_CHARS_MAX],
        incident=incident.name,
        state=change.state,
        diagnosis=diagnosis(incident),
    )


class RecordOutlet:
    """Writes each change of a watch into the record."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def changed(self, change: IncidentChange) -> None:
        write(self._recorder, change)

    def confirmed(self, changes: Sequence[IncidentChange]) -> None:
        for change in changes:
            write(self._recorder, change)

    def standing(self, incidents: Sequence[Incident]) -> None: ...


class RecordedChanges:
    """Follows the changes of incidents of some runs in the record; of every run if none is named."""

    def __init__(self, store: Store, runs: Collection[str]) -> None:
        self._store, self._runs = store, runs
        self._cursor = 0

    def __call__(self) -> list[IncidentChange]:
        """Those that have arrived since the last call, oldest first; at first, all."""
        end, events = self._store.end(), []
        for cursor, event in self._store.since(self._cursor, Selection(kinds=(KIND,))):
            end = max(end, cursor)
            events.append(event)
        self._cursor = end
        found = restored(sorted(events, key=lambda event: event.occurred_ns))
        return [one for one in found if not self._runs or one.incident.run in self._runs]


def changes_of(store: Store, *runs: str) -> list[IncidentChange]:
    """All recorded changes of incidents of these runs, oldest first; of every run if none is named."""
    return [
        change
        for run in runs or (None,)
        for change in restored(store.select(Selection(run=run, kinds=(KIND,))))
    ]


def latest(changes: Iterable[IncidentChange]) -> list[IncidentChange]:
    """The last change of each incident, the incident that began last first."""
    last = {change.incident.name: change for change in changes}
    return sorted(last.values(), key=lambda change: (-change.incident.began_ns, change.incident.name))


def find(store: Store, name: str | None) -> IncidentChange:
    """The incident of this name; for a run, its newest open one, or its newest; for None, of any run."""
    found = _NAME.fullmatch(name) if name else None
    asked = found["run"] if found else name
    run = asked and (known_run(store, asked) or asked)
    changes = latest(changes_of(store) if run is None else changes_of(store, run))
    if found:
        changes = [change for change in changes if change.incident.name == f"{run}{found['number']}"]
    if not changes:
        what = f"no incident {name!r}" if found else "no incident" + (f" of {name!r}" if name else "")
        hint = "`holdfast incidents` lists them; `holdfast watch` and `holdfast diagnose --record` find them."
        raise InputError(f"The record has {what}.", hint=hint)
    return next((change for change in changes if change.state != "resolved"), changes[0])
