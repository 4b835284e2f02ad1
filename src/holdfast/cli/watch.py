"""`holdfast watch`: looks at runs and what is beneath them again and again, and tells of each incident."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli import diagnosed
from holdfast.cli.assessing import (
    Recalled,
    References,
    Setting,
    ends_ns,
    look,
    recall,
    recent_runs,
    sees_machines,
)
from holdfast.cli.credentials import access, url_option
from holdfast.cli.durations import some_seconds, window_seconds
from holdfast.cli.ending import Ending, interrupt, on_signal
from holdfast.cli.incident_text import BLIND, change_line, known_runs
from holdfast.cli.metrics_page import serving_metrics
from holdfast.cli.moments import past_moment_ns
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import HomeJournal, home, json_option, recorded_name, store_option
from holdfast.cli.signal_sources import logged_runs, open_signals, runs_in, signals_options
from holdfast.cli.terminal import printable
from holdfast.cli.topology_sources import (
    known_topology,
    labelled_runs,
    remark_on_topology,
    topology_option,
)
from holdfast.cli.watch_metrics import WatchMetrics
from holdfast.cli.watching import Looked, Outlet, Watch, go_on
from holdfast.diagnose.alertmanager import Alertmanager
from holdfast.diagnose.alerts import alert
from holdfast.diagnose.assess import CLUSTER
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Casebook, Change
from holdfast.diagnose.webhook import Webhook, message
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import HoldfastError, StoreError, complaint
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.store import Store, open_store
from holdfast.signals.source import Source
from holdfast.signals.stepped import last_step_ns
from holdfast.topology.file import Described

TOPOLOGY_AGE_NS_MAX = 600 * 10**9
"""How long the topology is believed before it is read again: jobs come and go."""
ABANDONED_NS = 7 * 86_400 * 10**9
"""An incident that nobody has written of for so long is over, though no look could see its run."""


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, typed; None for what was not given."""

    runs: tuple[str, ...]
    every_s: float
    window_s: float
    once: bool
    at_ns: int | None
    alertmanager_urls: tuple[str, ...]
    webhook_urls: tuple[str, ...]
    listen: str | None
    prometheus_url: str | None
    signals_path: Path | None
    topology_path: Path | None
    prices_path: Path | None
    store_url: str | None
    as_json: bool

    @property
    def is_only_look(self) -> bool:
        return self.once or self.at_ns is not None


@click.command("watch")
@click.argument("runs", nargs=-1, metavar="[RUN]...", callback=recorded_name)
@click.option("--every", "every_s", type=some_seconds, default="10s", show_default=True, metavar="TIME")
@click.option(
    "--window",
    "window_s",
    type=window_seconds,
    default="30m",
    show_default=True,
    metavar="TIME",
    help="How far each look goes back.",
)
@click.option("--once", is_flag=True, help="Look once and end; exit with code 1 if that was not possible.")
@click.option("--at", "at_ns", callback=past_moment_ns, metavar="TIME", help="Look once, as of this time.")
@click.option(
    "--alertmanager",
    "alertmanager_urls",
    multiple=True,
    envvar="HOLDFAST_ALERTMANAGER",
    callback=url_option,
    metavar="URL",
    help="Tell it. May be repeated; @FILE for a URL in a file.  [default: $HOLDFAST_ALERTMANAGER]",
)
@click.option(
    "--webhook",
    "webhook_urls",
    multiple=True,
    envvar="HOLDFAST_WEBHOOK",
    callback=url_option,
    metavar="URL",
    help="Tell it. May be repeated; @FILE for a URL in a file.  [default: $HOLDFAST_WEBHOOK]",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve metrics of the watch for Prometheus.")
@signals_options
@topology_option
@prices_option
@store_option
@json_option
def command(**flags: Any) -> int:
    """Watch RUNs (all that are live unless named): print, record and send a message for each incident.

    One message when an incident opens, when its cause or owner changes, when it becomes graver, when its cost
    has doubled and when it is over. An interrupt or SIGTERM ends it, within 20 seconds whatever servers do.
    """
    given = msgspec.convert(flags, _Flags)
    clock = SystemClock()
    with ExitStack() as stack:
        store = stack.enter_context(open_store(given.store_url, home(), must_answer=given.is_only_look))
        metrics = WatchMetrics()
        if given.listen is not None:
            stack.enter_context(serving_metrics(given.listen, metrics.registry))
        at_ns = clock.now_ns() if given.at_ns is None else given.at_ns
        opened = open_signals(
            given.prometheus_url, given.signals_path, given.at_ns, is_again=not given.is_only_look
        )
        source = stack.enter_context(opened)
        looking = _Looking(given, store, source, clock)
        book = looking.book(at_ns)
        outlets = _outlets(given, stack, clock)
        if given.is_only_look:
            return _look_once(looking, book, outlets, metrics, at_ns)
        watch = Watch(looking, book, outlets, metrics, _say)
        _watch_on(watch, given.every_s, clock)
    return 0


def _watch_on(watch: Watch, every_s: float, clock: Clock) -> None:
    """Until told to stop. A look is given up then: a server may take its time. What was found is told."""
    ending = Ending()

    def leave_look() -> None:
        if watch.is_looking:
            interrupt()

    with suppress(KeyboardInterrupt), on_signal(ending, leave_look):
        go_on(lambda: watch.turn(clock.now_ns()), every_s, ending.asked)


def _look_once(
    looking: "_Looking", book: Casebook, outlets: Sequence[Outlet], metrics: WatchMetrics, at_ns: int
) -> int:
    """A turn of the watch with a look that was taken before: where it fails it is not tried again."""
    try:
        looked = looking(at_ns, book.since_ns)
    except HoldfastError as error:
        click.echo(complaint(printable(error.sentence), printable(error.hint)), err=True)
        return 1
    Watch(lambda at_ns, since_ns: looked, book, outlets, metrics, _say).turn(at_ns)
    if looked.unseen and (others := known_runs(sorted(looking.seen))):
        _say(others)
    return 0


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the record says: which runs there are, which of them ended when, and what an assessment wants."""

    runs: tuple[str, ...]
    ended_ns: dict[str, int]
    recalled: Recalled


class _Looking:
    """A look at the runs that are watched: with the newest record and a topology that is not too old.

    seen: the runs that the signals told of in the last one.
    """

    def __init__(self, given: _Flags, store: Store, source: Source, clock: Clock) -> None:
        self._given = given
        self._store = store
        self._source = source
        self._clock = clock
        self._journal = HomeJournal(store)
        self._references = References(store)
        self._prices = load_prices(given.prices_path)
        self._cluster: Described | None = None
        self._read_ns = 0
        self._is_remarked = False
        self._known: _Known | None = None
        self._book = Casebook(None)
        self._trouble = ""
        self._stepless: set[str] = set()
        self._told: set[str] = set()
        self._strange: set[str] = set()
        self._last_ns: dict[str, int | None] = {}
        self._sees_machines = self._told_machines = False
        self.seen: frozenset[str] = frozenset()

    def book(self, at_ns: int) -> Casebook:
        """Of the runs that are watched. A store that is down is an error where there is one look only; else
        the book gets what it knows once it is back.
        """
        known: list[Change] | None = None
        try:
            self._journal.take_in()
            known = diagnosed.changes_of(self._store, *self._given.runs)
        except StoreError as error:
            if self._given.is_only_look:
                raise
            self._tell(error.sentence)
        self._book = Casebook(known, now_ns=at_ns, is_only_look=self._given.is_only_look)
        return self._book

    def __call__(self, at_ns: int, since_ns: int | None) -> Looked:
        setting = Setting(
            store=self._store,
            source=self._source,
            cluster=self._topology(),
            prices=self._prices,
            window_s=self._given.window_s,
            references=self._references,
        )
        seen = self.seen = runs_in(self._source, setting.window_ns(at_ns))
        known = self._recalled(setting, at_ns)
        # Who has ended has no signals any more, or old ones: nothing is strange or new about that.
        labelled = labelled_runs(setting.cluster)
        named = self._given.runs or tuple(sorted({*known.runs, *seen, *labelled, *logged_runs()}))
        runs = tuple(run for run in named if run not in known.ended_ns)
        unseen = self._last_steps([run for run in runs if run not in seen and run not in labelled], at_ns)
        beyond = self._beyond({*seen, *labelled, *runs, *known.ended_ns}, at_ns)
        self._tell_stepless([run for run in runs if run in labelled and run not in seen])
        found = look(setting, runs, at_ns, since_ns, known.recalled, elsewhere=not self._given.runs)
        if not self._is_remarked:
            remark_on_topology(self._given.topology_path)
            self._is_remarked = True
        return Looked(
            runs=runs,
            unseen=unseen,
            beyond=beyond,
            ends_ns=known.ended_ns,
            assessment=found,
            since_ns=setting.window_ns(at_ns)[0],
        )

    def _last_steps(self, runs: Sequence[str], at_ns: int) -> dict[str, int | None]:
        """When each run made its last step; asked once for as long as it makes none."""
        self._last_ns = {
            run: self._last_ns[run] if run in self._last_ns else last_step_ns(self._source, run, at_ns)
            for run in runs
        }
        return self._last_ns

    def _beyond(self, told: set[str], at_ns: int) -> tuple[str, ...]:
        """Runs with open incidents of which this watch has never seen anything: another source told of them.

        Nor can machines be well that no metric tells of. Whoever nobody has written of for days is gone.
        """
        self._told |= told
        is_first = not self._told_machines
        self._told_machines = True
        self._sees_machines = self._sees_machines or sees_machines(self._source)
        if is_first and not self._sees_machines:
            _say(BLIND)
        if self._sees_machines:
            self._told.add(CLUSTER)
        others = self._book.runs_since(at_ns - ABANDONED_NS) - self._told - self._strange
        self._told |= {run for run in others if last_step_ns(self._source, run, at_ns) is not None}
        self._strange |= others - self._told
        return tuple(sorted(self._strange - self._told))

    def _tell_stepless(self, runs: Sequence[str]) -> None:
        """Of runs that only labels tell of, once: what can be told of them and what cannot."""
        if new := [run for run in runs if run not in self._stepless]:
            many = f"{len(new):,} runs are" if len(new) > 1 else f"The run {new[0]} is"
            _say(
                f"{many} known by labels only: the machines are watched, but the steps are not seen. "
                "Name their metric with --step-metric, or a log with --step-log."
            )
        self._stepless.update(new)

    def _recalled(self, setting: Setting, at_ns: int) -> "_Known":
        """What the record says, or said when it could last be read: a look does without it for a while, or
        from its beginning on, unless it is the only one.
        """
        trouble = ""
        try:
            self._journal.take_in()
        except StoreError as error:
            # What was recorded stays in the journal until the store takes it.
            trouble = error.sentence
        try:
            if not self._book.knows_past:
                self._book.recall(diagnosed.changes_of(self._store, *self._given.runs), at_ns)
            self._known = self._read(setting, at_ns)
        except StoreError as error:
            if self._given.is_only_look:
                raise
            trouble = error.sentence
        self._tell(trouble)
        if self._known is not None:
            return self._known
        nothing = Recalled(events=(), healthy={})
        return _Known(runs=self._given.runs, ended_ns={}, recalled=nothing)

    def _tell(self, trouble: str) -> None:
        """That the store fails, and that it does no more, once each."""
        if trouble and not self._trouble:
            how = "with what the record said before" if self._known is not None else "without the record"
            _say(f"{trouble} Looking goes on {how}; the store is tried again.")
        elif self._trouble and not trouble:
            _say("The record can be read and written again.")
        self._trouble = trouble

    def _read(self, setting: Setting, at_ns: int) -> "_Known":
        known = self._given.runs or tuple(sorted(recent_runs(self._store, at_ns) | self.seen))
        open_runs = {incident.run for incident in self._book.open}
        ended = ends_ns(self._store, {*known, *open_runs}, at_ns)
        live = tuple(run for run in known if run not in ended)
        return _Known(runs=known, ended_ns=ended, recalled=recall(setting, live, at_ns))

    def _topology(self) -> Described:
        now_ns = self._clock.now_ns()
        if self._cluster is None or now_ns - self._read_ns > TOPOLOGY_AGE_NS_MAX:
            given = self._given
            self._cluster = known_topology(
                given.topology_path, given.prometheus_url, self._source, given.at_ns
            )
            self._read_ns = now_ns
        return self._cluster


def _outlets(given: _Flags, stack: ExitStack, clock: Clock) -> list[Outlet]:
    recorder = stack.enter_context(Recorder(home() / JOURNAL_DIRECTORY, clock=clock))
    webhooks = [
        stack.enter_context(Webhook(url, access=access("WEBHOOK"), tell=_say)) for url in given.webhook_urls
    ]
    managers = [
        stack.enter_context(
            Alertmanager(
                url,
                access=access("ALERTMANAGER"),
                generator=given.prometheus_url or "",
                every_s=given.every_s,
                clock=clock,
                tell=_say,
            )
        )
        for url in given.alertmanager_urls
    ]
    for stop in (*(one.stop for one in webhooks), *(one.stop for one in managers)):
        stack.callback(stop)  # all of them, before the first is waited for
    return [
        _Terminal(given.as_json),
        _Record(recorder),
        *map(_Webhook, webhooks),
        *map(_Alertmanager, managers),
    ]


class _Terminal:
    """A line for each change on stdout."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def changed(self, change: Change) -> None:
        click.echo(msgspec.json.encode(message(change)) if self._as_json else change_line(change))

    def standing(self, incidents: Sequence[Incident]) -> None: ...


class _Record:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def changed(self, change: Change) -> None:
        diagnosed.write(self._recorder, change)

    def standing(self, incidents: Sequence[Incident]) -> None: ...


class _Webhook:
    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook

    def changed(self, change: Change) -> None:
        self._webhook.send(change)

    def standing(self, incidents: Sequence[Incident]) -> None: ...


class _Alertmanager:
    def __init__(self, channel: Alertmanager) -> None:
        self._channel = channel

    def changed(self, change: Change) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None:
        self._channel.hold(alert(incident) for incident in incidents)


def _say(sentence: str) -> None:
    with suppress(OSError):  # nobody to tell is no reason to stop looking
        click.echo(f"holdfast: {printable(sentence)}", err=True)
