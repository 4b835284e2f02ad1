"""A run's steps up to a moment, and what happened to it, as `holdfast report` reads them.

The record comes first. Where its steps end, those of the run's own log go on; if it has none, those that the
signals show. So `diagnose` and `report` price the same stretches, whichever of them has read the log.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import Literal

import msgspec

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Ended, IncidentReport, ReportedPace
from holdfast.ledger.reporting import pace_of, report
from holdfast.record import events as ev
from holdfast.record.sizes import SIZING, gpus_of
from holdfast.record.store import Selection, Store
from holdfast.signals.source import STEP_S, Source
from holdfast.signals.step_files import StepLogSource
from holdfast.signals.stepped import Shown, logged_steps, runs_in, seen_steps

HISTORY_NS = 6 * 3_600 * 10**9
"""How far back steps are read from signals, as the detectors do."""

StepsFrom = Literal["record", "step log", "signals", "nowhere"]


class RunReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says of a run up to a moment.

    steps_from  where its last steps come from
    steps       how many it has; last_ns: when the last one was made, if any was
    gpus        of the run; 0 if nothing gives their number, and amounts are then those of one GPU
    on_cpu      whether its members have no GPU, and amounts are those of members
    pace        how far its steps are from a healthy one; None if it has none
    incidents   all of the run, in order of time
    """

    steps_from: StepsFrom
    steps: int
    last_ns: int | None
    gpus: int
    on_cpu: bool
    pace: ReportedPace | None
    ended: Ended | None
    incidents: tuple[IncidentReport, ...]


def recorded_steps(store: Store, run: str, window_ns: tuple[int, int]) -> Iterator[Shown]:
    """The steps that the record has in this time."""
    asked = Selection(run=run, kinds=("step.committed",), since_ns=window_ns[0], until_ns=window_ns[1])
    for one in store.select(asked):
        if isinstance(one, ev.StepCommitted):
            yield one.occurred_ns, one.step


def with_recorded_steps(source: Source, store: Store, run: str, window_ns: tuple[int, int]) -> Source:
    """The source; with the steps of the record if it has none of this run in this time."""
    has_own = run in runs_in(source, window_ns) or logged_steps(source, run, window_ns[1])
    if has_own:
        return source
    steps = list(recorded_steps(store, run, (window_ns[0] - HISTORY_NS, window_ns[1])))
    return StepLogSource(source, lambda: steps, run, step_s=STEP_S) if steps else source


def read(store: Store, source: Source, run: str, at_ns: int, gpus: int | None) -> RunReading:
    """The run's reading up to this moment. gpus: their number, used if the record does not give it."""
    last_ns = max((shown_ns for shown_ns, _ in recorded_steps(store, run, (0, at_ns + 1))), default=None)
    steps_from: StepsFrom = "nowhere" if last_ns is None else "record"
    further = [shown for shown in logged_steps(source, run, at_ns) if last_ns is None or shown[0] > last_ns]
    if further:
        steps_from = "step log"
    elif last_ns is None and (further := seen_steps(source, run, (at_ns - HISTORY_NS, at_ns + 1))):
        steps_from = "signals"
    recorded_gpus = gpus_of(_told(store, run, at_ns, SIZING))
    corrections = _told(store, run, at_ns, ("correction",))
    ledger = Ledger(one for one in corrections if isinstance(one, ev.Correction))
    made = _made(run, further)
    first = next(merge(_told(store, run, at_ns), made, key=_ORDER), None)
    if first is not None and not recorded_gpus:
        held = ev.CostRate(id="", occurred_ns=first.occurred_ns, run=run, gpus=gpus or 1)
        ledger.add([held])
    ledger.add(merge(_told(store, run, at_ns), made, key=_ORDER))
    found = report(run, ledger.fold)
    return RunReading(
        steps_from=steps_from,
        steps=found.steps_kept,
        last_ns=further[-1][0] if further else last_ns,
        gpus=recorded_gpus or gpus or 0,
        on_cpu=found.on_cpu,
        pace=pace_of(ledger.fold),
        ended=found.ended,
        incidents=tuple(sorted(found.incidents, key=lambda one: one.began_ns)),
    )


_ORDER = attrgetter("occurred_ns", "id")
"""As a store gives events."""


def _told(store: Store, run: str, at_ns: int, kinds: tuple[str, ...] = ()) -> Iterator[ev.AnyEvent]:
    return store.select(Selection(run=run, kinds=kinds, until_ns=at_ns + 1))


def _made(run: str, steps: Sequence[Shown]) -> list[ev.AnyEvent]:
    """These steps as events, as `holdfast import` makes them."""
    return [
        ev.StepCommitted(id=f"step {step}", occurred_ns=at_ns, run=run, step=step) for at_ns, step in steps
    ]


def passed(
    reading: RunReading, window_ns: tuple[int, int], explained: Sequence[tuple[int, int]]
) -> tuple[IncidentReport, ...]:
    """What happened in this time, but for slow stretches that an incident of the diagnosis explains.

    explained: from when to when those lasted.
    """
    first_ns, end_ns = window_ns
    return tuple(
        one
        for one in reading.incidents
        if one.began_ns < end_ns
        and (one.recovered_ns is None or one.recovered_ns >= first_ns)
        and not (is_slow_stretch(one) and any(_is_mostly(one, span, end_ns) for span in explained))
    )


def is_slow_stretch(one: IncidentReport) -> bool:
    """Whether the ledger found it by the steps alone: nothing recorded says why."""
    return not one.evidence


def _is_mostly(one: IncidentReport, span: tuple[int, int], end_ns: int) -> bool:
    until_ns = one.recovered_ns or end_ns
    common_ns = min(until_ns, span[1]) - max(one.began_ns, span[0])
    return 2 * common_ns > until_ns - one.began_ns
