"""One look at runs: read their record and signals, call `assess`, and price the incidents."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from holdfast.detect.scene import Healthy, PlannedWork
from holdfast.detect.xids import NO_OVERRIDES, Overrides
from holdfast.diagnose.assess import Assessment, Circumstances, Inquiry, assess
from holdfast.economics.pricing.prices import Prices
from holdfast.ledger.report import ReportedPace
from holdfast.ledger.reporting import pace_of
from holdfast.ledger.runs import fold_run
from holdfast.record import events as ev
from holdfast.record.store import Selection, Store
from holdfast.signals.catalogue import describe
from holdfast.signals.coverage import Coverage, coverage, skewed
from holdfast.signals.named import HOSTED, NamedSource, Namer
from holdfast.signals.source import Source
from holdfast.signals.translated import TranslatedSource
from holdfast.topology.file import Described, MachineSeat, Maintenance

REFERENCE_AGE_NS_MAX = 300 * 10**9
"""The time of a healthy step changes little from one look to the next."""
REFERENCE_AGE_TIMES = 50
"""A reading is kept for this many times as long as it took, so that a watch is not busy with it."""
CONTEXT_KINDS = (
    *("run.submitted", "run.started", "run.ended", "generation.opened", "member.joined", "member.lost"),
    "phase.entered",
    *("checkpoint.begun", "checkpoint.saved", "checkpoint.failed", "fault.observed", "action.taken"),
    *("cost.rate", "reference.declared"),
)
"""The events that an assessment needs. Steps are left out: the signals have them, and they are too many."""


class References:
    """The time of a healthy step of each run, and how far its steps are from that, as in `report`.

    A reading is kept for a while, because it folds the whole run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, tuple[range, ReportedPace | None]] = {}

    def know(self, run: str, at_ns: int, pace: ReportedPace | None) -> None:
        """Use this reading, which was made for another purpose."""
        self._read[run] = range(at_ns, at_ns + REFERENCE_AGE_NS_MAX), pace

    def pace(self, run: str, at_ns: int) -> ReportedPace | None:
        """The pace; None if the record has no step of the run."""
        known_ns, pace = self._read.get(run, (range(0), None))
        if at_ns not in known_ns:
            begun_ns = time.monotonic_ns()
            pace = pace_of(fold_run(self._store, run))
            took_ns = time.monotonic_ns() - begun_ns
            age_ns_max = max(REFERENCE_AGE_NS_MAX, REFERENCE_AGE_TIMES * took_ns)
            self._read[run] = range(at_ns, at_ns + age_ns_max), pace
        return pace

    def healthy(self, run: str, at_ns: int) -> Healthy | None:
        pace = self.pace(run, at_ns)
        if pace is None:
            return None
        return Healthy(step_s=pace.step_ns / 1e9, is_declared=pace.origin == "declared")


class LookSetting(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What an assessment reads, and its prices."""

    store: Store
    source: Source
    cluster: Described
    prices: Prices
    window_s: float
    references: "References"
    xids: Overrides = NO_OVERRIDES

    def window_ns(self, at_ns: int) -> tuple[int, int]:
        return at_ns - round(self.window_s * 10**9), at_ns + 1


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """What the record says about runs, for an assessment. healthy: the step times they should have."""

    events: tuple[ev.KnownEvent, ...]
    healthy: dict[str, Healthy]


def sees_machines(source: Source) -> bool:
    """Whether there is a metric of any host or device: without one, nothing beneath a run is visible."""
    return any(describe(name).scope in HOSTED for name in TranslatedSource(source).metrics())


def recall(setting: LookSetting, runs: Sequence[str], at_ns: int) -> Recalled:
    found = ((run, setting.references.healthy(run, at_ns)) for run in runs)
    return Recalled(
        events=tuple(event for run in (*runs, "") for event in _context(setting.store, run, at_ns)),
        healthy={run: known for run, known in found if known is not None},
    )


def look(
    setting: LookSetting,
    runs: Sequence[str],
    at_ns: int,
    since_ns: int | None = None,
    recalled: Recalled | None = None,
    *,
    elsewhere: bool = False,
) -> Assessment:
    """Assess these runs at this moment. since_ns: when a known problem began.

    recalled: the record's contents, if they were read before. elsewhere: also assess machines without any of
    these runs.
    """
    said = recall(setting, runs, at_ns) if recalled is None else recalled
    cluster = _grounded(setting.cluster, _members(said.events))
    topology = cluster.topology
    source = NamedSource(TranslatedSource(setting.source), _namer(cluster))
    asked = Inquiry(
        now_ns=at_ns, runs=tuple(runs), window_s=setting.window_s, since_ns=since_ns, elsewhere=elsewhere
    )
    known = Circumstances(
        events=at_machines(said.events, cluster),
        planned=_planned(setting.cluster.maintenance),
        healthy={run: said.healthy[run] for run in runs if run in said.healthy},
        prices=_priced(setting.prices.holding(at_ns), said.events),
        xids=setting.xids,
        shown=source.hosts,
    )
    found = assess(source, topology, asked, known)
    hosts = frozenset().union(*source.hosts.values())
    covered = {run: coverage(topology, run, hosts) for run in runs}
    found = msgspec.structs.replace(found, flaws=(*skewed(source, at_ns), *found.flaws))
    return _doubted(_called(found, said.events), covered)


def _called(found: Assessment, events: Iterable[ev.KnownEvent]) -> Assessment:
    """The same, with the names of the runs."""
    names = {event.run: event.name for event in events if isinstance(event, ev.RunSubmitted | ev.RunStarted)}
    incidents = tuple(
        msgspec.structs.replace(incident, run_name=name)
        if (name := names.get(incident.run, "")) not in ("", incident.run)
        else incident
        for incident in found.incidents
    )
    return msgspec.structs.replace(found, incidents=incidents)


def _doubted(found: Assessment, covered: Mapping[str, Coverage]) -> Assessment:
    """The same, with less confidence for runs whose machines have other names in the telemetry."""
    flaws = {run: one.flaw for run, one in covered.items() if one.flaw is not None}
    if not flaws:
        return found
    incidents = tuple(
        msgspec.structs.replace(
            incident,
            quality=incident.quality * covered[incident.run].trust,
            confidence=incident.confidence * covered[incident.run].trust,
            flaws=(flaws[incident.run].text, *incident.flaws),
        )
        if incident.run in flaws
        else incident
        for incident in found.incidents
    )
    return msgspec.structs.replace(found, incidents=incidents, flaws=(*flaws.values(), *found.flaws))


@lru_cache(maxsize=2)
def _namer(cluster: Described) -> Namer:
    return Namer(cluster.hosts, frozenset(cluster.topology.names()))


Seats = tuple[tuple[str, tuple[tuple[str, MachineSeat], ...]], ...]


def _members(events: Iterable[ev.KnownEvent]) -> Seats:
    """The members of each run according to the record, with their seats."""
    found: dict[str, dict[str, MachineSeat]] = {}
    seated: dict[str, frozenset[str]] = {}
    for event in events:
        if isinstance(event, ev.MemberJoined) and (event.node or event.host):
            found.setdefault(event.run, {})[event.subject] = MachineSeat(event.node, event.host)
        elif isinstance(event, ev.MemberLost):
            found.get(event.run, {}).pop(event.subject, None)
        elif isinstance(event, ev.GenerationOpened) and event.members:
            seated[event.run] = frozenset(event.members)
    # Warm processes have joined as well, but are in no generation.
    return tuple(
        (run, seats)
        for run, members in found.items()
        if (seats := tuple(seat for seat in members.items() if seat[0] in seated.get(run, members)))
    )


def seats_of(events: Iterable[ev.KnownEvent], run: str) -> dict[str, str]:
    """The members in the run according to the record, with their machines."""
    seats = next((dict(seats) for name, seats in _members(events) if name == run), {})
    return {member: seat.host or seat.node for member, seat in seats.items()}


def at_machines(events: Sequence[ev.KnownEvent], cluster: Described) -> Sequence[ev.KnownEvent]:
    """The events with the nodes' names from the cluster: a run may call its nodes otherwise, and its next
    attempt may have other machines under the same names. events: of each run in order of time.
    """
    joined = [event for event in events if isinstance(event, ev.MemberJoined) and event.host]
    seats = {MachineSeat(event.node, event.host) for event in joined}
    machines = {seat: cluster.machine(seat) for seat in seats}
    if all(seat.node == machine for seat, machine in machines.items()):
        return events
    now: dict[tuple[str, str], str] = {}
    for first in reversed(joined):  # what was recorded before the first join on a node is of its machine, too
        now[first.run, first.node] = machines[MachineSeat(first.node, first.host)]
    renamed = []
    for event in events:
        if isinstance(event, ev.MemberJoined) and event.host:
            now[event.run, event.node] = machines[MachineSeat(event.node, event.host)]
        renamed.append(_at_machine(event, now.get((event.run, _node_of(event)), "")))
    return renamed


def _node_of(event: ev.KnownEvent) -> str:
    """The node that a member joined on, or on which something was done."""
    return event.node if isinstance(event, ev.MemberJoined) else event.subject


def _at_machine(event: ev.KnownEvent, machine: str) -> ev.KnownEvent:
    if machine and isinstance(event, ev.MemberJoined):
        return msgspec.structs.replace(event, node=machine)
    if machine and isinstance(event, ev.ActionTaken | ev.FaultObserved):
        return msgspec.structs.replace(event, subject=machine)
    return event


@lru_cache(maxsize=2)
def _grounded(cluster: Described, members: Seats) -> Described:
    """The cluster with the present members of its runs; rebuilt when a member joins or leaves."""
    return cluster.with_members({run: dict(seats) for run, seats in members}) if members else cluster


def _planned(windows: Iterable[Maintenance]) -> list[PlannedWork]:
    return [
        PlannedWork(subject=subject, from_ns=one.from_ns, to_ns=one.to_ns, reason=one.reason)
        for one in windows
        for subject in one.subjects
    ]


def _context(store: Store, run: str, at_ns: int) -> Iterable[ev.KnownEvent]:
    found = store.select(Selection(run=run, kinds=CONTEXT_KINDS, until_ns=at_ns + 1))
    return (event for event in found if not isinstance(event, ev.Unknown))


def _priced(prices: Prices, events: Iterable[ev.KnownEvent]) -> Prices:
    """The prices with the recorded price of a GPU-hour, if all runs agree on it; an assessment has one price.

    Without a recorded price, the rates of the moment count.
    """
    rates: dict[str, float] = {}
    chips: dict[str, str] = {}
    for event in events:
        if isinstance(event, ev.CostRate) and event.usd_per_gpu_hour is not None:
            rates[event.run] = event.usd_per_gpu_hour
        elif isinstance(event, ev.ReferenceDeclared) and event.chip is not None:
            chips[event.run] = event.chip
    rate, chip = {*rates.values()}, {*chips.values()}
    price = prices.planned(chip.pop() if len(chip) == 1 else None, rate.pop() if len(rate) == 1 else None)
    return msgspec.structs.replace(prices, usd_per_gpu_hour=price)
