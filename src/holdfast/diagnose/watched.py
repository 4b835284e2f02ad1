"""The looks of a watch: at which runs, with the newest record, and with a recent topology."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.detect.xids import Overrides
from holdfast.diagnose import recorded
from holdfast.diagnose.alerts import AlertWorth
from holdfast.diagnose.assess import CLUSTER
from holdfast.diagnose.lifecycle import Casebook, IncidentChange
from holdfast.diagnose.looking import LookSetting, Recalled, References, look, recall, sees_machines
from holdfast.diagnose.watching import Looked
from holdfast.diagnose.wording import BLIND
from holdfast.economics.pricing.prices import Prices
from holdfast.record.clock import Clock
from holdfast.record.errors import StoreError
from holdfast.record.home import HomeJournal
from holdfast.record.runs import ends_ns, recent_runs
from holdfast.record.store import Store
from holdfast.signals.source import Source
from holdfast.signals.stepped import last_step_ns, runs_in
from holdfast.topology.discovery.prometheus import labelled_runs
from holdfast.topology.file import Described

TOPOLOGY_AGE_NS_MAX = 600 * 10**9
"""How long the topology is used before it is read again: jobs come and go."""
ABANDONED_NS = 7 * 86_400 * 10**9
"""An incident without an entry in the record for this long is over, although no look could see its run."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What a watch looks at, and what it may call at each look.

    runs          the named runs; if none are named, all live ones
    is_only_look  it looks once: unreadable data is then an error
    logged_runs   runs whose step logs were named
    worth         from where on an incident is worth an alert
    journal       this machine's own, on its way into the store
    topology      reads the topology anew
    xids          the site's policy for XIDs
    remark        says, after the first look, what the topology lacks
    say           prints a sentence for the operator
    """

    runs: tuple[str, ...]
    window_s: float
    is_only_look: bool
    logged_runs: tuple[str, ...]
    prices: Prices
    worth: AlertWorth
    journal: HomeJournal
    topology: Callable[[], Described]
    xids: Callable[[], Overrides]
    remark: Callable[[], None]
    say: Callable[[str], None]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the record says: the runs, when each ended, and what an assessment needs."""

    runs: tuple[str, ...]
    ended_ns: dict[str, int]
    recalled: Recalled


class Looking:
    """A look at the watched runs, with the newest record and a recent topology.

    runs, seen, node_count, metric_count: the runs that the last look was about, all that have signals, the
    known nodes and the metrics.
    """

    def __init__(self, scope: Scope, store: Store, source: Source, clock: Clock) -> None:
        self._scope = scope
        self._store = store
        self._source = source
        self._clock = clock
        self._references = References(store)
        self._cluster: Described | None = None
        self._read_ns = 0
        self._is_remarked = False
        self._known: _Known | None = None
        self._book = Casebook(None)
        self._changes = recorded.RecordedChanges(store, scope.runs)
        self._trouble = ""
        self._stepless: set[str] = set()
        self._told: set[str] = set()
        self._strange: set[str] = set()
        self._last_ns: dict[str, int | None] = {}
        self._sees_machines = self._told_machines = False
        self.runs: tuple[str, ...] = ()
        self.seen: frozenset[str] = frozenset()
        self.node_count = self.metric_count = 0

    def book(self, at_ns: int) -> Casebook:
        """The casebook of the watched runs. If the store is down, an only look fails; otherwise the book gets
        its past once the store is back.
        """
        known: list[IncidentChange] | None = None
        try:
            self._scope.journal.take_in()
            known = self._changes()
        except StoreError as error:
            if self._scope.is_only_look:
                raise
            self._tell(error.sentence)
        self._book = Casebook(
            known, now_ns=at_ns, is_only_look=self._scope.is_only_look, worth=self._scope.worth
        )
        return self._book

    def __call__(self, at_ns: int, since_ns: int | None) -> Looked:
        setting = LookSetting(
            store=self._store,
            source=self._source,
            cluster=self._topology(),
            prices=self._scope.prices,
            window_s=self._scope.window_s,
            references=self._references,
            xids=self._scope.xids(),
        )
        seen = self.seen = runs_in(self._source, setting.window_ns(at_ns))
        known = self._recalled(setting, at_ns)
        # Ended runs have no signals, or old ones: they are neither unseen nor new.
        labelled = labelled_runs(setting.cluster.survey)
        named = self._scope.runs or tuple(sorted({*known.runs, *seen, *labelled, *self._scope.logged_runs}))
        runs = self.runs = tuple(run for run in named if run not in known.ended_ns)
        unseen = self._last_steps([run for run in runs if run not in seen and run not in labelled], at_ns)
        beyond = self._beyond({*seen, *labelled, *runs, *known.ended_ns}, at_ns)
        self._tell_stepless([run for run in runs if run in labelled and run not in seen])
        found = look(setting, runs, at_ns, since_ns, known.recalled, elsewhere=not self._scope.runs)
        if not self._is_remarked:
            self._scope.remark()
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
        """When each run made its last step; asked once while it makes none."""
        self._last_ns = {
            run: self._last_ns[run] if run in self._last_ns else last_step_ns(self._source, run, at_ns)
            for run in runs
        }
        return self._last_ns

    def _beyond(self, told: set[str], at_ns: int) -> tuple[str, ...]:
        """Runs with open incidents that this watch has never seen: another source reported them.

        The same holds for machines without any metric. Incidents without an entry for days are over.
        """
        self._told |= told
        is_first = not self._told_machines
        self._told_machines = True
        self._sees_machines = self._sees_machines or sees_machines(self._source)
        if is_first and not self._sees_machines:
            self._scope.say(BLIND)
        if self._sees_machines:
            self._told.add(CLUSTER)
        others = self._book.runs_since(at_ns - ABANDONED_NS) - self._told - self._strange
        self._told |= {run for run in others if last_step_ns(self._source, run, at_ns) is not None}
        self._strange |= others - self._told
        return tuple(sorted(self._strange - self._told))

    def _tell_stepless(self, runs: Sequence[str]) -> None:
        """Say once, of runs known only by labels, what is watched and what is not."""
        if new := [run for run in runs if run not in self._stepless]:
            many = f"{len(new):,} runs are" if len(new) > 1 else f"The run {new[0]} is"
            self._scope.say(
                f"{many} known by labels only: the machines are watched, but the steps are not seen. "
                "Name their metric with --step-metric, or a log with --step-log."
            )
        self._stepless.update(new)

    def _recalled(self, setting: LookSetting, at_ns: int) -> _Known:
        """What the record says, or said when it was last readable: a look can do without the record for a
        while, or from the start, unless it is the only one.
        """
        trouble = ""
        try:
            self._scope.journal.take_in()
        except StoreError as error:
            # Recorded events stay in the journal until the store accepts them.
            trouble = error.sentence
        try:
            self._book.recall(self._changes(), at_ns)
            self._known = self._read(setting, at_ns)
        except StoreError as error:
            if self._scope.is_only_look:
                raise
            trouble = error.sentence
        self._tell(trouble)
        if self._known is not None:
            return self._known
        nothing = Recalled(events=(), healthy={})
        return _Known(runs=self._scope.runs, ended_ns={}, recalled=nothing)

    def _tell(self, trouble: str) -> None:
        """Say once that the store fails, and once that it works again."""
        if trouble and not self._trouble:
            how = "with what the record said before" if self._known is not None else "without the record"
            self._scope.say(f"{trouble} The watch continues {how}; it will retry the store.")
        elif self._trouble and not trouble:
            self._scope.say("The record can be read and written again.")
        self._trouble = trouble

    def _read(self, setting: LookSetting, at_ns: int) -> _Known:
        known = self._scope.runs or tuple(sorted(recent_runs(self._store, at_ns) | self.seen))
        open_runs = {incident.run for incident in self._book.open}
        ended = ends_ns(self._store, {*known, *open_runs}, at_ns)
        live = tuple(run for run in known if run not in ended)
        return _Known(runs=known, ended_ns=ended, recalled=recall(setting, live, at_ns))

    def _topology(self) -> Described:
        now_ns = self._clock.now_ns()
        if self._cluster is None or now_ns - self._read_ns > TOPOLOGY_AGE_NS_MAX:
            self._cluster = self._scope.topology()
            self._read_ns = now_ns
            kinds = self._cluster.survey.kinds.values()
            self.node_count = sum(kind == "node" for kind in kinds)
            self.metric_count = len(self._source.metrics())
        return self._cluster
