"""`holdfast runs`: what is in the store."""

import time

import click
import msgspec

from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable
from holdfast.dashboard.wording import duration, short, stamp
from holdfast.ledger.ledger import retracted
from holdfast.ledger.report import Ended
from holdfast.record.events import Correction, RunEnded, RunStarted
from holdfast.record.store import RunSummary, Selection, Store

RUN_CHARS_MAX = 40
"""A longer name is cut, so that the rest of every row still fits beside it; `--json` has the whole."""
RUNNING_NS_MAX = 600 * 10**9
"""A run of which nothing was recorded for longer may have died without a word."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list. ended: its last end; None where none is recorded since it was started last."""

    run: str
    events: int
    first_ns: int
    last_ns: int
    ended: Ended | None


@click.command("runs")
@store_option
@json_option
def command(store_url: str | None, as_json: bool) -> None:
    """List the runs in the store, the one with the newest event first."""
    with open_record(store_url) as store:
        runs = _listed(store)
    if as_json:
        print_json(runs)
        return
    if not runs:
        click.echo("The store holds no runs yet; take something in with `holdfast import FILE`.", err=True)
        return
    names = [short(printable(listed.run), RUN_CHARS_MAX) for listed in runs]
    width = max(len("run"), *map(len, names))
    now_ns = time.time_ns()
    click.echo(f"{'run':{width}}  {'events':>11}  {'last event':20}  {'outcome':9}  span")
    for name, listed in zip(names, runs, strict=True):
        span, outcome = duration(listed.last_ns - listed.first_ns), _outcome(listed, now_ns)
        row = f"{name:{width}}  {listed.events:>11,}  {stamp(listed.last_ns):20}  {outcome:9}  {span}"
        click.echo(row)


def _listed(store: Store) -> list[Listed]:
    summaries = store.runs()
    ends = _ends(store)
    return [_row(summary, ends.get(summary.run)) for summary in summaries]


def _row(summary: RunSummary, ended: Ended | None) -> Listed:
    return Listed(
        run=summary.run,
        events=summary.events,
        first_ns=summary.first_ns,
        last_ns=summary.last_ns,
        ended=ended,
    )


def _ends(store: Store) -> dict[str, Ended]:
    """How each run ended that was not started again after that."""
    events = list(store.select(Selection(kinds=("run.started", "run.ended", "correction"))))
    gone = retracted(event for event in events if isinstance(event, Correction))
    ends: dict[str, Ended] = {}
    for event in events:
        if event.id in gone:
            continue
        if isinstance(event, RunStarted):
            ends.pop(event.run, None)
        elif isinstance(event, RunEnded):
            ends.setdefault(event.run, Ended.of(event))
    return ends


def _outcome(listed: Listed, now_ns: int) -> str:
    """In a word; of a run without an end nobody can say more than how old its last event is."""
    if listed.ended is not None:
        return listed.ended.outcome
    return "running" if now_ns - listed.last_ns < RUNNING_NS_MAX else "unknown"
