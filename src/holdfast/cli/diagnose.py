"""`holdfast diagnose`: why a run is slow, whose problem it is, what it costs and what to do."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from holdfast.cli import diagnosed
from holdfast.cli.assessing import Setting, described, look
from holdfast.cli.durations import some_seconds
from holdfast.cli.incident_text import Answer, show
from holdfast.cli.moments import moment_ns
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import find_run, home, json_option, open_record, store_option
from holdfast.cli.signal_sources import open_signals, runs_in, signals_options
from holdfast.cli.terminal import print_json
from holdfast.cli.topology_sources import topology_option
from holdfast.dashboard.wording import stamp
from holdfast.diagnose.lifecycle import Casebook, Change
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.store import Store

FRESH_NS_MAX = 600 * 10**9
"""A run of which something was recorded within this time is looked at as it is now, else as it was last."""


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, typed; None for what was not given."""

    run: str | None
    at_ns: int | None
    window_s: float
    check: bool
    record: bool
    prometheus_url: str | None
    signals_path: Path | None
    topology_path: Path | None
    prices_path: Path | None
    store_url: str | None
    as_json: bool


@click.command("diagnose")
@click.argument("run", required=False)
@click.option(
    "--at", "at_ns", callback=moment_ns, metavar="TIME", help="As of this time.  [default: now, or its end]"
)
@click.option(
    "--window",
    "window_s",
    type=some_seconds,
    default="30m",
    show_default=True,
    metavar="TIME",
    help="How far to look back.",
)
@click.option("--check", is_flag=True, help="Exit with code 1 if an incident is open.")
@click.option("--record", is_flag=True, help="Write what is found into the record, for `holdfast runbook`.")
@signals_options
@topology_option
@prices_option
@store_option
@json_option
def command(**flags: Any) -> int:
    """Say why RUN is slow, whose problem it is, what it costs and what to do; or that nothing is wrong.

    Without RUN it is the one with the newest event.
    """
    given = msgspec.convert(flags, _Flags)
    answer = _answered(given)
    if given.as_json:
        print_json(_as_json(answer))
    else:
        show(answer)
    return int(given.check and any(incident.ended_ns is None for incident in answer.incidents))


def _answered(given: _Flags) -> Answer:
    with (
        open_record(given.store_url) as store,
        open_signals(given.prometheus_url, given.signals_path) as source,
    ):
        run, at_ns = _asked_for(store, given)
        setting = Setting(
            store=store,
            source=source,
            cluster=described(given.topology_path, given.prometheus_url),
            prices=load_prices(given.prices_path),
            window_s=given.window_s,
        )
        seen = runs_in(source, setting.window_ns(at_ns))
        recorded = {summary.run for summary in store.runs() if summary.run}
        if run not in seen | recorded:
            _refuse(run, seen | recorded)
        known = diagnosed.changes_of(store, run)
        book = Casebook(known, now_ns=at_ns, is_only_look=True)
        assessment = look(setting, [run], at_ns, book.since_ns)
        taken = book.take(assessment.incidents, at_ns, unseen={run} - seen)
    if given.record:
        _write(taken.changes)
        known += taken.changes
    return Answer(
        run=run,
        at_ns=at_ns,
        window_s=given.window_s,
        sees_run=run in seen,
        incidents=taken.incidents,
        recorded=frozenset(change.incident.name for change in known),
        flaws=assessment.flaws,
    )


def _asked_for(store: Store, given: _Flags) -> tuple[str, int]:
    """The run and the moment. A run need not be in the record: signals may be all there is of it."""
    run = find_run(store, None) if given.run is None else given.run
    now_ns = SystemClock().now_ns()
    last_ns = next((summary.last_ns for summary in store.runs() if summary.run == run), now_ns)
    at_ns = now_ns if now_ns - last_ns < FRESH_NS_MAX else last_ns
    return run, at_ns if given.at_ns is None else given.at_ns


def _refuse(run: str, known: Collection[str]) -> NoReturn:
    near = get_close_matches(run, sorted(known), n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}?" if near else "`holdfast runs` lists those of the record."
    raise InputError(f"Neither the record nor the signals know a run {run!r}.", hint=hint)


def _write(changes: Iterable[Change]) -> None:
    with Recorder(home() / JOURNAL_DIRECTORY) as recorder:
        for change in changes:
            diagnosed.write(recorder, change)


def _as_json(answer: Answer) -> dict[str, object]:
    """An incident's cause, domain, owner and so on are its own keys."""
    return {
        "run": answer.run,
        "at": stamp(answer.at_ns),
        "at_ns": answer.at_ns,
        "window_s": answer.window_s,
        "incidents": answer.incidents,
        "quality": {"sees_run": answer.sees_run, "flaws": answer.flaws},
    }
