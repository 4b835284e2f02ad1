"""`holdfast plan fit`: what a record of faults says about failure rates, repairs and bad nodes."""

import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.record import json_option, left_out, open_record, store_option
from holdfast.cli.terminal import print_json, printable
from holdfast.cli.values import number_between
from holdfast.economics.fitting.outages import (
    KINDS,
    Observation,
    OutageFacts,
    RunPaid,
    declares_nodes,
    observe,
)
from holdfast.ledger.runs import fold_run
from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent
from holdfast.record.importers import Options, import_file
from holdfast.record.runs import find_run, simulated_runs
from holdfast.record.sqlite import SqliteStore
from holdfast.record.store import RunSummary, Selection, Store

if TYPE_CHECKING:
    from holdfast.economics.fitting.fitting import FailureFit

RUNS_SHOWN_MIN = 1_000
"""Accounts of fewer runs are made before a bar could be read."""

DOMAIN_FILE_BYTES_MAX = 1 << 26


_COUNT = click.IntRange(1, 10**7)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    file: Path | None = argument(required=False, type=click.Path(path_type=Path))
    run: str | None = option("Only what is about this run.", metavar="RUN")
    nodes: int | None = option("How many nodes were watched, where the record does not say.", type=_COUNT)
    days: float | None = option(
        "For how many days, where the record does not say.", type=number_between(0.001, 10**5)
    )
    gpus_per_node: int | None = option("GPUs of a node, where the record counts GPUs only.", type=_COUNT)
    domains: Path | None = option(
        "What each node stands in: lines of `node,domain`. Else told from names such as rack07-node3.",
        type=click.Path(path_type=Path),
        metavar="CSV",
    )
    lemon_faults: int = option(
        "Faults of a lemon.", type=click.IntRange(2, 10**6), default=5, show_default=True
    )
    flap_minutes: float = option(
        "A node that fails again so soon after it came back is counted once as well.",
        type=number_between(0, 10**5),
        default=60.0,
        show_default=True,
    )
    burst_minutes: float = option(
        "Faults of different nodes so near to each other belong together.",
        type=number_between(0, 10**4),
        default=10.0,
        show_default=True,
    )
    seed: int = option("Of the tests' draws.", type=click.IntRange(0), default=0, show_default=True)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("fit")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Fit failure rates, repair times and bad nodes to a record of faults.

    FILE is anything that `holdfast import` reads, such as sacct's output or the InfiniteHBD trace; it is not
    kept. Without it the whole store is read, or one run of it. Every verdict says how often chance would look
    the same. docs/fitting.md explains the tests.

    Example: holdfast plan fit sacct.txt --nodes 512
    """
    if given.file is not None and given.run is not None:
        raise InputError(
            "FILE is read by itself, and `--run` names a run of the store.", hint="Give one of them."
        )
    domains = None if given.domains is None else _read_domains(given.domains)
    told = _fitted(_observed(given), domains, given)
    if given.as_json:
        print_json(told)
    else:
        from holdfast.cli.plan.fit_text import show

        show(told)


def _fitted(seen: Observation, domains: dict[str, str] | None, flags: _Flags) -> "FailureFit":
    # Help and mistakes need not wait for scipy, which takes longer to load than everything else together.
    import numpy as np

    from holdfast.economics.fitting.coincidences import domains_by_name
    from holdfast.economics.fitting.fitting import FitSettings, fit

    if domains is None:
        domains = domains_by_name([fault.node for fault in seen.faults if fault.node])
    settings = FitSettings(
        lemon_faults=flags.lemon_faults, flap_minutes=flags.flap_minutes, burst_minutes=flags.burst_minutes
    )
    return fit(seen, domains, settings, np.random.default_rng(flags.seed))


def _observed(flags: _Flags) -> Observation:
    known = OutageFacts(nodes=flags.nodes, days=flags.days, gpus_per_node=flags.gpus_per_node)
    with _record(flags) as store:
        run = None if flags.run is None else find_run(store, flags.run)
        is_named = run is not None or flags.file is not None
        simulated = frozenset() if is_named else simulated_runs(store)
        events = [
            event for event in store.select(Selection(run=run, kinds=KINDS)) if event.run not in simulated
        ]
        summaries = [
            summary for summary in store.runs() if run in (None, summary.run) and summary.run not in simulated
        ]
        if simulated and not events and not summaries:
            raise InputError(
                "The store has only simulated runs, in which nothing broke.", hint="Name one with --run."
            )
        seen = observe(events, _paid(store, summaries, events, known), known)
    if not simulated:
        return seen
    return msgspec.structs.replace(seen, assumptions=(*seen.assumptions, left_out(len(simulated))))


@contextmanager
def _record(flags: _Flags) -> Iterator[Store]:
    """The store that was named, or one that lasts as long as the file is read: both give the same numbers."""
    if flags.file is None:
        with open_record(flags.store_url) as store:
            yield store
        return
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "fit.sqlite") as store:
        with import_file(flags.file, Options(gpus_per_node=flags.gpus_per_node)) as reading:
            store.ingest(reading)
        if skipped := reading.imported().skipped_count:
            name = printable(str(flags.file))
            click.echo(f"holdfast: {skipped:,} lines of {name} cannot be used.", err=True)
        yield store


def _paid(
    store: Store, summaries: list[RunSummary], events: list[AnyEvent], given: OutageFacts
) -> list[RunPaid]:
    """What each run paid for; where the nodes are told otherwise, only when it was, which is quick."""
    if given.nodes is not None or declares_nodes(events):
        return [RunPaid(first_ns=summary.first_ns, last_ns=summary.last_ns) for summary in summaries]
    return [_accounts(store, summary) for summary in _shown(summaries)]


def _accounts(store: Store, summary: RunSummary) -> RunPaid:
    fold = fold_run(store, summary.run).settled()
    return RunPaid(
        paid_gpu_ns=fold.accounts.paid_gpu_ns,
        gpus_max=fold.accounts.gpus_max,
        members_lost=fold.counts.members_lost,
        first_ns=summary.first_ns,
        last_ns=summary.last_ns,
    )


def _shown(summaries: list[RunSummary]) -> Iterator[RunSummary]:
    """The runs, with a bar where there are many and somebody looks on."""
    from rich.console import Console
    from rich.progress import track

    is_quiet = len(summaries) < RUNS_SHOWN_MIN or not sys.stderr.isatty()
    console = Console(stderr=True)
    yield from track(summaries, "Reading runs", console=console, transient=True, disable=is_quiet)


def _read_domains(path: Path) -> dict[str, str]:
    """What each node stands in."""
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
                f"Line {number} of {path} is not a node and its domain.",
                hint="Write lines such as `node3,rack07`.",
            )
        domains[cells[0]] = cells[1]
    return domains
