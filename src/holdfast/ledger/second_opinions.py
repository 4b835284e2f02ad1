"""Earlier runs of the same model in the record, as second opinions on what a step should take."""

from collections.abc import Iterable

from holdfast.ledger.fold import Fold
from holdfast.ledger.opinions import Kin, with_opinions
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.runs import fold_run
from holdfast.record.store import RunSummary, Selection, Store

RUNS_MAX = 5
"""So many of the latest of them are read."""
EVENTS_MAX = 500_000
"""So many events are read for second opinions, of all of them together: more would take too long."""


def consulted(store: Store, told: Report) -> Report:
    """The report with what earlier runs of the same model, and published figures, say of its reference."""
    if told.reference is None or told.reference.uncertainty is None:
        return told
    kins = _kins(store)
    own = kins.get(told.run)
    alike = [
        summary
        for summary in store.runs()
        if summary.run != told.run
        and summary.first_ns < told.first_ns
        and summary.events > 0
        and own is not None
        and summary.run in kins
        and own.is_like(kins[summary.run])
    ]
    return with_opinions(told, [report(run, fold_run(store, run)) for run in _affordable(alike)])


def _affordable(summaries: Iterable[RunSummary]) -> list[str]:
    """The first of these runs that can be read in reasonable time; one that is too long is passed over."""
    found: list[str] = []
    left = EVENTS_MAX
    for summary in summaries:
        if len(found) < RUNS_MAX and summary.events <= left:
            left -= summary.events
            found.append(summary.run)
    return found


def _kins(store: Store) -> dict[str, Kin]:
    """What every run says of its model: a few events of each are read."""
    folds: dict[str, Fold] = {summary.run: Fold() for summary in store.runs()}
    for event in store.select(Selection(kinds=("run.submitted", "run.started", "reference.declared"))):
        if event.run in folds:
            folds[event.run].apply(event)
    return {run: Kin.of(run, fold.declared) for run, fold in folds.items()}
