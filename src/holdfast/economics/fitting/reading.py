"""Read faults for a fit: from a store, or from a file through a temporary store."""

import csv
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.economics.fitting.outages import (
    KINDS,
    Observation,
    OutageFacts,
    RunPaid,
    declares_nodes,
    observe,
)
from holdfast.ledger.runs import Progress, fold_run
from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent
from holdfast.record.importers import Options, import_file
from holdfast.record.runs import find_run, simulated_remark, simulated_runs
from holdfast.record.sqlite import SqliteStore
from holdfast.record.store import RunSummary, Selection, Store

DOMAIN_FILE_BYTES_MAX = 1 << 26


@contextmanager
def passing_store(file: Path, options: Options) -> Iterator[tuple[Store, int]]:
    """A temporary store with the file's events, and the number of skipped lines."""
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "fit.sqlite") as store:
        with import_file(file, options) as reading:
            store.ingest(reading)
        yield store, reading.imported().skipped_count


def observed(
    store: Store, known: OutageFacts, reading: Progress, *, run: str | None, is_whole: bool
) -> Observation:
    """The faults in the store, or of one run if it is named. is_whole: simulated runs count, too."""
    run = None if run is None else find_run(store, run)
    simulated = frozenset() if run is not None or is_whole else simulated_runs(store)
    events = [event for event in store.select(Selection(run=run, kinds=KINDS)) if event.run not in simulated]
    summaries = [
        summary for summary in store.runs() if run in (None, summary.run) and summary.run not in simulated
    ]
    if simulated and not events and not summaries:
        raise InputError(
            "The store has only simulated runs, which have no real faults.", hint="Name one with --run."
        )
    seen = observe(events, _paid(store, summaries, events, known, reading), known)
    if not simulated:
        return seen
    return msgspec.structs.replace(seen, assumptions=(*seen.assumptions, simulated_remark(len(simulated))))


def _paid(
    store: Store, summaries: list[RunSummary], events: list[AnyEvent], given: OutageFacts, reading: Progress
) -> list[RunPaid]:
    """What each run paid for; if the nodes are known otherwise, only its time, which is quick."""
    if given.nodes is not None or declares_nodes(events):
        return [RunPaid(first_ns=summary.first_ns, last_ns=summary.last_ns) for summary in summaries]
    with reading(summaries) as shown:
        return [_accounts(store, summary) for summary in shown]


def _accounts(store: Store, summary: RunSummary) -> RunPaid:
    fold = fold_run(store, summary.run).settled()
    return RunPaid(
        paid_gpu_ns=fold.accounts.paid_gpu_ns,
        gpus_max=fold.accounts.gpus_max,
        members_lost=fold.counts.members_lost,
        first_ns=summary.first_ns,
        last_ns=summary.last_ns,
    )


def read_domains(path: Path) -> dict[str, str]:
    """The domain of each node, from a CSV file."""
    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(DOMAIN_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path} cannot be read: {reason}.", hint="Check the name and the file.") from None
    domains = {}
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) != 2 or not all(cells):
            raise InputError(
                f"Line {number} of {path} does not have the form NODE,DOMAIN.",
                hint="Write lines such as `node3,rack07`.",
            )
        domains[cells[0]] = cells[1]
    return domains
