"""Earlier runs of the same model in the record, as second opinions on what a step should take."""

from collections.abc import Iterable, Mapping, Sequence

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
    earlier = _affordable(_earlier(told.run, _kins(store), store.runs()))
    return with_opinions(told, [report(run, fold_run(store, run)) for run in earlier])


def compared(store: Store, reports: Sequence[Report]) -> list[Report]:
    """The reports, each with what the earlier ones among them say of its reference."""
    kins, summaries, known = _kins(store), store.runs(), {told.run: told for told in reports}
    return [
        with_opinions(
            told, [known[one.run] for one in _earlier(told.run, kins, summaries) if one.run in known]
        )
        for told in reports
    ]


def _earlier(run: str, kins: Mapping[str, Kin], summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs of the same model that began before it."""
    began_ns = next((one.first_ns for one in summaries if one.run == run), 0)
    return [
        one
        for one in summaries
        if one.first_ns < began_ns and one.events and one.run in kins and kins[run].is_like(kins[one.run])
    ]


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
