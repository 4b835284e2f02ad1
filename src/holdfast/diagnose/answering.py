"""Diagnose one run once: find the run and the moment, look, and compare with the record."""

from collections.abc import Collection
from typing import NoReturn

import msgspec

from holdfast.detect.standstill import RanksStanding
from holdfast.diagnose import recorded as diagnosed
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Casebook, IncidentChange, Taken
from holdfast.diagnose.looking import (
    LookSetting,
    Recalled,
    References,
    look,
    recall,
    seats_of,
    sees_machines,
)
from holdfast.diagnose.reading import RunReading, passed, read, with_recorded_steps
from holdfast.diagnose.standing import with_standing
from holdfast.diagnose.weighing import not_measured
from holdfast.diagnose.wording import known_runs, stepless
from holdfast.economics.pricing.prices import Prices
from holdfast.ledger.remarks import NO_TIMES
from holdfast.ledger.report import IncidentReport, ReportedPace
from holdfast.record.errors import InputError, nearest
from holdfast.record.events import CostRate
from holdfast.record.runs import cut_off_ns, ends_ns, find_run
from holdfast.record.sizes import gpus_of
from holdfast.record.store import Store
from holdfast.signals.quality import Flaw
from holdfast.signals.source import Source
from holdfast.signals.stepped import last_step_ns, runs_in, without_steps
from holdfast.topology.discovery.prometheus import labelled_runs
from holdfast.topology.file import Described

FRESH_NS_MAX = 600 * 10**9
"""A run with a recorded event within this time is examined as of now; otherwise as of its last event, or as
of its end if it has ended.
"""
WINDOW_S_MAX = 6 * 3_600.0
"""An assessment holds all readings of its window in memory."""


class DiagnoseQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a run.

    window_s   how far to look back; is_exact: no further, even if the last step is older
    logged     the runs whose step logs were named
    gpus       the number of the run's GPUs, used if no record gives it
    ranks      what dumps of its flight recorder tell
    """

    run: str
    at_ns: int
    window_s: float
    is_exact: bool
    logged: tuple[str, ...] = ()
    gpus: int | None = None
    ranks: RanksStanding | None = None


class DiagnoseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `diagnose`.

    sees_run  whether the signals have any data of the run in the window
    unshown   incidents that are open in the record and that this look does not show
    recorded  the names of those incidents that `runbook` will find
    others    the other runs in the signals
    again     the command that repeats the diagnosis and records it
    pace      how far the steps of the whole run are from a healthy one, as in `report`
    last_ns   when it made its last step, if the window does not show its pace
    sees_signals   whether there are any signals: without them, the answer is the record's or a log's alone
    sees_machines  whether the signals have any data of machines
    name           the run's, if it is called otherwise than its id
    reading   the run up to that moment, as its report has it
    past      what happened in the window according to that, and that no incident here explains
    members   the members in the run, with their nodes, by its record
    unmeasured     missing telemetry that might show a cause, and the team that has it
    """

    run: str
    at_ns: int
    window_s: float
    sees_run: bool
    incidents: tuple[Incident, ...]
    unshown: tuple[Incident, ...]
    recorded: frozenset[str]
    others: tuple[str, ...]
    flaws: tuple[Flaw, ...]
    again: tuple[str, ...] = ()
    name: str = ""
    pace: ReportedPace | None = None
    last_ns: int | None = None
    sees_signals: bool = True
    sees_machines: bool = True
    reading: RunReading | None = None
    past: tuple[IncidentReport, ...] = ()
    members: dict[str, str] = {}
    unmeasured: tuple[tuple[str, str], ...] = ()

    @property
    def since_ns(self) -> int:
        return self.at_ns - round(self.window_s * 10**9)

    @property
    def misnamed(self) -> tuple[str, ...]:
        """Subjects that the telemetry knows by none of the run's names."""
        return tuple(flaw.text for flaw in self.flaws if flaw.kind == "names")

    @property
    def blindness(self) -> str:
        """The sentence that nothing can be said, for signals that do not show the run."""
        has_log = self.reading is not None and self.reading.steps_from == "step log"
        asked = "signals" if self.sees_signals else "log" if has_log else "record"
        sentence = f"Nothing can be said of {self.run}: {stepless(self.last_ns, self.since_ns, asked)}"
        return f"{sentence} {known_runs(self.others)}".rstrip()


def asked_for(
    store: Store, run: str | None, at_ns: int | None, logged: tuple[str, ...], now_ns: int
) -> tuple[str, int]:
    """The run and the moment. A run need not be in the record: it may be known from signals only."""
    run = run or _logged(logged) or find_run(store, None)
    if at_ns is not None:
        return run, at_ns
    found = (summary for summary in store.runs() if summary.run == run and summary.events)
    last_ns = next((summary.last_ns for summary in found), now_ns)
    cut_ns = cut_off_ns(store, run, now_ns)
    if cut_ns == 0:
        raise InputError(
            f"Nothing can be said of {run}. {NO_TIMES}",
            hint="Import a log that has a time in each line; or name the time to look at with --at.",
        )
    if now_ns - last_ns >= FRESH_NS_MAX or cut_ns is not None:
        return run, ends_ns(store, [run], last_ns).get(run, last_ns)
    return run, ends_ns(store, [run], now_ns).get(run, now_ns)


def _logged(runs: tuple[str, ...]) -> str | None:
    """The run of the given step log."""
    if len(runs) > 1:
        raise InputError("Several step logs are given, and no RUN.", hint=f"Name one of {', '.join(runs)}.")
    return next(iter(runs), None)


def answered(
    asked: DiagnoseQuestion, store: Store, source: Source, cluster: Described, prices: Prices
) -> tuple[DiagnoseAnswer, tuple[IncidentChange, ...]]:
    """The answer, and the changes that the record does not have yet."""
    run, at_ns = asked.run, asked.at_ns
    sees_signals = bool(without_steps(source).metrics())
    asked_ns = at_ns - round(asked.window_s * 10**9), at_ns + 1
    source = with_recorded_steps(source, store, run, asked_ns)
    ended = ends_ns(store, [run], at_ns)
    setting = LookSetting(
        store=store,
        source=source,
        cluster=cluster,
        prices=prices,
        window_s=asked.window_s if run in ended else _wide_enough_s(source, asked),
        references=References(store),
    )
    window_ns = setting.window_ns(at_ns)
    seen = runs_in(source, window_ns)
    recorded = {summary.run for summary in store.runs() if summary.run}
    told = {*seen, *labelled_runs(setting.cluster.survey), *asked.logged}
    if run not in {*told, *recorded}:
        _refuse(run, told, recorded)
    reading = read(store, source, run, at_ns, asked.gpus)
    if reading.steps_from == "record":
        setting.references.know(run, at_ns, reading.pace)
    known = diagnosed.changes_of(store, run)
    # The answer is about this window: it does not reach back to incidents that the record has open, and does
    # not end those that this one look fails to show.
    book = Casebook(known, now_ns=at_ns)
    said = _recalled(setting, asked)
    assessment = look(setting, [run], at_ns, recalled=said)
    incidents = with_standing(assessment.incidents, asked.ranks, at_ns)
    taken = book.take(incidents, at_ns, unseen={run} - seen, ends_ns=ended)
    lasted = [(one.began_ns, one.ended_ns or at_ns) for one in taken.incidents]
    answer = DiagnoseAnswer(
        run=run,
        at_ns=at_ns,
        window_s=setting.window_s,
        sees_run=run in seen,
        incidents=taken.incidents,
        unshown=_unshown(book, taken, at_ns),
        recorded=frozenset(change.incident.name for change in known),
        others=tuple(sorted(seen - {run})),
        flaws=assessment.flaws,
        pace=reading.pace,
        last_ns=None if run in seen else last_step_ns(source, run, at_ns) or reading.last_ns,
        sees_signals=sees_signals,
        sees_machines=sees_machines(source),
        reading=reading,
        past=passed(reading, window_ns, lasted),
        members=seats_of(said.events, run),
        unmeasured=tuple(not_measured(assessment.measured)),
    )
    return answer, tuple(taken.changes)


def _wide_enough_s(source: Source, asked: DiagnoseQuestion) -> float:
    """Far enough back to show when a stalled run stopped, unless the user gave the window."""
    window_s = asked.window_s
    if asked.is_exact:
        return window_s
    last_ns = last_step_ns(source, asked.run, asked.at_ns)
    since_s = 0.0 if last_ns is None else (asked.at_ns - last_ns) / 1e9
    return window_s + since_s if window_s / 2 < since_s <= WINDOW_S_MAX - window_s else window_s


def _recalled(setting: LookSetting, asked: DiagnoseQuestion) -> Recalled:
    said = recall(setting, [asked.run], asked.at_ns)
    if asked.gpus is None or gpus_of(event for event in said.events if event.run == asked.run):
        return said
    given = CostRate(id="", occurred_ns=asked.at_ns, run=asked.run, gpus=asked.gpus)
    return msgspec.structs.replace(said, events=(*said.events, given))


def _unshown(book: Casebook, taken: Taken, at_ns: int) -> tuple[Incident, ...]:
    shown = {incident.name for incident in taken.incidents}
    return tuple(one for one in book.open if one.name not in shown and one.noticed_ns <= at_ns)


def _refuse(run: str, seen: Collection[str], recorded: Collection[str]) -> NoReturn:
    listed = f"{known_runs(sorted(seen))} `holdfast runs` lists those of the record.".lstrip()
    hint = nearest(run, sorted({*seen, *recorded}), listed, likeness=0.4, quote="'")
    raise InputError(f"Neither the record nor the signals know a run {run!r}.", hint=hint)
