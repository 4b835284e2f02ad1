"""Earlier runs of the same model in the record, as second opinions on what a step should take."""

from holdfast.cli.record import fold_run
from holdfast.ledger.fold import Fold
from holdfast.ledger.opinions import Kin, with_opinions
from holdfast.ledger.report import Report, report
from holdfast.record.store import Selection, Store

RUNS_MAX = 5
"""So many of the latest of them are read."""
EVENTS_MAX = 500_000
"""A run with more is passed over: to read it for a second opinion takes too long."""


def consulted(store: Store, told: Report) -> Report:
    """The report with what earlier runs of the same model, and published figures, say of its reference."""
    if told.reference is None or told.reference.uncertainty is None:
        return told
    kins = _kins(store)
    own = kins.get(told.run)
    earlier = [
        summary.run
        for summary in store.runs()
        if summary.run != told.run
        and summary.first_ns < told.first_ns
        and 0 < summary.events <= EVENTS_MAX
        and own is not None
        and summary.run in kins
        and own.is_like(kins[summary.run])
    ]
    return with_opinions(told, [report(run, fold_run(store, run)) for run in earlier[:RUNS_MAX]])


def _kins(store: Store) -> dict[str, Kin]:
    """What every run says of its model: a few events of each are read."""
    folds: dict[str, Fold] = {summary.run: Fold() for summary in store.runs()}
    for event in store.select(Selection(kinds=("run.submitted", "run.started", "reference.declared"))):
        if event.run in folds:
            folds[event.run].apply(event)
    return {run: Kin.of(run, fold.declared) for run, fold in folds.items()}
