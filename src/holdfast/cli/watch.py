"""`holdfast watch`: watch runs and the machines beneath them, and report each incident."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import click
import msgspec

from holdfast import wording
from holdfast.cli.ending import StopRequest, interrupt, on_signal
from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.incident_text import change_line
from holdfast.cli.metrics_page import serving_metrics
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.pulse import Pulse
from holdfast.cli.record import home, home_journal, json_option, recorded_name, store_option
from holdfast.cli.signal_sources import SignalFlags, open_signals, signals_options, url_option
from holdfast.cli.terminal import say, tell
from holdfast.cli.topology_sources import known_topology, remark_on_topology, topology_option
from holdfast.cli.values import past_moment_ns, window_seconds
from holdfast.cli.xid_policy import load_xids
from holdfast.diagnose.alertmanager import Alertmanager
from holdfast.diagnose.alerts import WORTH, AlertWorth
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Casebook, IncidentChange
from holdfast.diagnose.recorded import RecordOutlet
from holdfast.diagnose.watch_metrics import WatchMetrics
from holdfast.diagnose.watched import Looking, Scope
from holdfast.diagnose.watching import AlertOutlet, Watch, go_on
from holdfast.diagnose.webhook import Webhook, message
from holdfast.diagnose.wording import known_runs
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import HoldfastError, StoreError
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.runs import known_run, run_names
from holdfast.record.store import Store
from holdfast.record.stores import open_store
from holdfast.signals.credentials import access
from holdfast.signals.source import Source
from holdfast.wording.parsing import some_seconds

RUNS_CHARS_MAX = 60
"""How long the list of runs may be in the line that says what is watched."""


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[str, ...] = argument(nargs=-1, metavar="[RUN]...", callback=recorded_name)
    every_s: float = option("--every", type=some_seconds, default="10s", show_default=True, metavar="TIME")
    window_s: float = option(
        "--window",
        "How far back each look goes.",
        type=window_seconds,
        default="30m",
        show_default=True,
        metavar="TIME",
    )
    once: bool = option("Look once and end; exit with code 1 if that was not possible.")
    at_ns: int | None = option("--at", "Look once, as of this time.", callback=past_moment_ns, metavar="TIME")
    alertmanager_urls: tuple[str, ...] = option(
        "--alertmanager",
        "Tell it. May be repeated; @FILE for a URL in a file.  [default: $HOLDFAST_ALERTMANAGER]",
        envvar="HOLDFAST_ALERTMANAGER",
        callback=url_option,
        metavar="URL",
    )
    webhook_urls: tuple[str, ...] = option(
        "--webhook",
        "Tell it. May be repeated; @FILE for a URL in a file.  [default: $HOLDFAST_WEBHOOK]",
        envvar="HOLDFAST_WEBHOOK",
        callback=url_option,
        metavar="URL",
    )
    worth_usd: float = option(
        "--worth",
        "Send alerts of incidents that slow a run by 1 %, or cost this much an hour. 0: all.",
        type=click.FloatRange(min=0.0),
        default=WORTH.usd_per_hour_min,
        show_default=True,
        metavar="USD",
    )
    listen: str | None = option("Serve metrics of the watch for Prometheus.", metavar="HOST:PORT")
    signals: SignalFlags = shared(signals_options)
    topology_path: Path | None = shared(topology_option)
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)

    @property
    def worth(self) -> AlertWorth:
        return AlertWorth(usd_per_hour_min=self.worth_usd)

    @property
    def is_only_look(self) -> bool:
        return self.once or self.at_ns is not None


@click.command("watch")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Watch RUNs (default: all live ones): print, record and send a message for each incident.

    One message when an incident opens, when its cause or owner changes, when it becomes graver, when its cost
    has doubled and when it is over. An interrupt or SIGTERM ends it, within 20 seconds even if a server
    hangs.
    """
    clock, ending = SystemClock(), StopRequest()
    with ExitStack() as stack:
        if not given.is_only_look:  # a server may be slow to answer for the first time
            stack.enter_context(suppress(KeyboardInterrupt))
            stack.enter_context(on_signal(ending, interrupt))
        store = stack.enter_context(open_store(given.store_url, home(), must_answer=given.is_only_look))
        metrics = WatchMetrics()
        if given.listen is not None:
            stack.enter_context(serving_metrics(given.listen, metrics.registry))
        at_ns = clock.now_ns() if given.at_ns is None else given.at_ns
        opened = open_signals(
            given.signals, given.at_ns, window_s=given.window_s, is_again=not given.is_only_look
        )
        source = stack.enter_context(opened)
        looking = Looking(_scope(given, store, source), store, source, clock)
        book = looking.book(at_ns)
        outlets = _outlets(given, store, stack, clock)
        if given.is_only_look:
            return _look_once(looking, book, outlets, metrics, at_ns)
        watch = Watch(looking, book, outlets, metrics, say)
        pulse = stack.enter_context(Pulse("Watching", given.every_s).shown())

        def turn() -> None:
            pulse.clear()
            at_ns = clock.now_ns()
            if watch.turn(at_ns):
                pulse.beat(_watched(looking, book), at_ns)

        _watch_on(watch, turn, given.every_s, ending)
    return 0


def _scope(given: _Flags, store: Store, source: Source) -> Scope:
    return Scope(
        runs=tuple(dict.fromkeys(_called(store, run) for run in given.runs)),
        window_s=given.window_s,
        is_only_look=given.is_only_look,
        logged_runs=given.signals.logged_runs,
        prices=load_prices(given.prices_path),
        worth=given.worth,
        journal=home_journal(store),
        topology=lambda: known_topology(
            given.topology_path, given.signals.prometheus_url, source, given.at_ns
        ),
        xids=load_xids,
        remark=lambda: remark_on_topology(given.topology_path),
        say=say,
    )


def _called(store: Store, run: str) -> str:
    """The run's id, if the store answers now."""
    try:
        return known_run(store, run) or run
    except StoreError:
        return run


def _watched(looking: Looking, book: Casebook) -> str:
    """What the last look was about."""
    runs = wording.many(len(looking.runs), "run")
    dark = len(set(looking.runs) - looking.seen)
    without = f"; the steps of {dark:,} are not seen" if dark else ""
    names = wording.short(", ".join(looking.runs), RUNS_CHARS_MAX)
    named = f" ({names}{without})" if looking.runs else ""
    nodes = wording.many(looking.node_count, "node")
    found = f", {wording.many(len(book.open), 'open incident')}" if book.open else ""
    return f"{runs}{named} and {nodes} by {wording.many(looking.metric_count, 'metric')}{found}"


def _watch_on(watch: Watch, turn: Callable[[], None], every_s: float, ending: StopRequest) -> None:
    """Watch until stopped. The current look is then given up, because a server may be slow; findings so far
    are reported.
    """

    def leave_look() -> None:
        if watch.is_looking:
            interrupt()

    with suppress(KeyboardInterrupt), on_signal(ending, leave_look):
        go_on(turn, every_s, ending.asked)


def _look_once(
    looking: Looking, book: Casebook, outlets: Sequence[AlertOutlet], metrics: WatchMetrics, at_ns: int
) -> int:
    """Look once, and play one turn of the watch with the result. A look that fails is not repeated."""
    try:
        looked = looking(at_ns, book.since_ns)
    except HoldfastError as error:
        tell(error.sentence, error.hint)
        return 1
    Watch(lambda at_ns, since_ns: looked, book, outlets, metrics, say).turn(at_ns)
    if looked.unseen and (others := known_runs(sorted(looking.seen))):
        say(others)
    return 0


def _outlets(given: _Flags, store: Store, stack: ExitStack, clock: Clock) -> list[AlertOutlet]:
    recorder = stack.enter_context(Recorder(home() / JOURNAL_DIRECTORY, clock=clock))
    webhooks = [
        stack.enter_context(Webhook(url, access=access("WEBHOOK"), tell=say)) for url in given.webhook_urls
    ]
    managers = [
        stack.enter_context(
            Alertmanager(
                url,
                access=access("ALERTMANAGER"),
                generator=given.signals.prometheus_url or "",
                every_s=given.every_s,
                clock=clock,
                tell=say,
            )
        )
        for url in given.alertmanager_urls
    ]
    for stop in (*(one.stop for one in webhooks), *(one.stop for one in managers)):
        stack.callback(stop)  # stops all of them before the first is waited for
    terminal = _Terminal(given, store, has_receivers=bool(webhooks or managers))
    return [terminal, RecordOutlet(recorder), *webhooks, *managers]


class _Terminal:
    """Prints a line for each change to stdout."""

    def __init__(self, given: _Flags, store: Store, *, has_receivers: bool) -> None:
        self._as_json, self._store = given.as_json, store
        self._worth = given.worth if has_receivers else None

    def changed(self, change: IncidentChange) -> None:
        if self._as_json:
            click.echo(msgspec.json.encode(message(change)))
        else:
            click.echo(change_line(change, self._name(change.incident.run), self._worth))

    def _name(self, run: str) -> str:
        with suppress(StoreError):  # the line is due even if the store is down
            return run_names(self._store, run).get(run, "")
        return ""

    def confirmed(self, changes: Sequence[IncidentChange]) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None: ...
