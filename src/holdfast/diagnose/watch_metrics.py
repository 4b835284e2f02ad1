"""The metrics of `holdfast watch` about itself and its findings.

Names, units and types follow Prometheus' conventions: base units, `_total` for counters. A series is a run
and one way to be slow: neither members nor incident names are labels, so there are few series, and they end
with the incident.
"""

from collections import Counter as Counting
from collections.abc import Container, Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast import __version__
from holdfast.diagnose.alerts import severity
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.signals.quality import Flaw
from holdfast.wording.units import HOUR_S

INCIDENT_LABELS = ("run", "mechanism", "domain", "owner", "seam", "severity")
EVALUATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class WatchMetrics:
    """The metrics of one watcher, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._board = _Board()
        self.registry.register(self._board)
        registry = self.registry
        Info("holdfast_watch", "The watcher.", registry=registry).info({"version": __version__})
        self._took = Histogram(
            "holdfast_watch_evaluation_seconds",
            "Time that one evaluation of all runs took.",
            buckets=EVALUATION_BUCKETS_S,
            registry=registry,
        )
        self._failures = Counter(
            "holdfast_watch_evaluation_failures", "Evaluations that failed.", registry=registry
        )
        self._succeeded = Gauge(
            "holdfast_watch_last_success_timestamp_seconds",
            "When the last successful evaluation was made.",
            registry=registry,
        )
        self._runs = Gauge("holdfast_watch_runs", "Runs that are watched.", registry=registry)
        self._unseen = Gauge("holdfast_watch_unseen_runs", "Watched runs without signals.", registry=registry)
        self._incidents = Counter(
            "holdfast_incidents",
            "Incidents that were opened.",
            ("run", "mechanism", "domain", "owner", "seam"),
            registry=registry,
        )

    def evaluated(self, seen: "SeenEvaluation") -> None:
        """After an evaluation that succeeded."""
        self._took.observe(seen.took_s)
        self._succeeded.set(seen.at_s)
        self._runs.set(len(seen.runs))
        self._unseen.set(len(seen.unseen))
        for change in seen.changes:
            if change.before is None:
                one = change.incident
                self._incidents.labels(one.run, one.cause.mechanism, one.domain, one.owner, one.seam).inc()
        self._board.show(seen)

    def failed(self) -> None:
        self._failures.inc()


class SeenEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What metrics show of an evaluation. incidents: the open ones; worthy: those that are worth an alert."""

    at_s: float
    took_s: float
    runs: tuple[str, ...]
    unseen: tuple[str, ...]
    incidents: tuple[Incident, ...]
    worthy: tuple[Incident, ...]
    changes: tuple[IncidentChange, ...]
    flaws: tuple[Flaw, ...]


class _Board(Collector):
    """Gauges built at each scrape from the last evaluation, so ended incidents leave no series."""

    def __init__(self) -> None:
        self._seen: SeenEvaluation | None = None

    def show(self, seen: SeenEvaluation) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        # Read once, so that the evaluation is consistent.
        seen = self._seen
        if seen is None:
            yield from _of_incidents((), ())
        else:
            yield from _of_incidents(seen.incidents, {one.name for one in seen.worthy})
        flaws = GaugeMetricFamily(
            "holdfast_signal_flaws", "Series with a flaw, by its kind.", labels=("kind",)
        )
        for kind, count in sorted(Counting(flaw.kind for flaw in (seen.flaws if seen else ())).items()):
            flaws.add_metric([kind], count)
        yield flaws


def _of_incidents(incidents: Iterable[Incident], worthy: Container[str]) -> Iterator[Metric]:
    """Incidents with the same labels are added up; for ratios, the worst counts. worthy: by name."""
    groups: dict[tuple[str, ...], list[Incident]] = {}
    for one in incidents:
        key = (one.run, one.cause.mechanism, one.domain, one.owner, one.seam, severity(one))
        groups.setdefault(key, []).append(one)
    opened, alerting, slower, sure, usd, rate, lost, trust = (
        GaugeMetricFamily(f"holdfast_{name}", meaning, labels=INCIDENT_LABELS)
        for name, meaning in (
            ("incident_open", "Open incidents."),
            ("incident_worthy", "Open incidents that are worth an alert."),
            ("incident_slowdown_ratio", "Time per step over that of a healthy run."),
            ("incident_confidence_ratio", "Confidence in the named cause."),
            ("incident_cost_usd", "What open incidents have cost so far."),
            ("incident_cost_usd_per_second", "What open incidents cost a second."),
            ("incident_lost_gpu_seconds", "GPU-time lost to open incidents."),
            ("signal_quality_ratio", "Trust in the telemetry behind incidents."),
        )
    )
    for labels, group in groups.items():
        costs = [one.cost for one in group if one.cost is not None]
        opened.add_metric(labels, len(group))
        alerting.add_metric(labels, sum(one.name in worthy for one in group))
        if paces := [one.slowdown for one in group if one.knows_pace]:
            slower.add_metric(labels, max(paces))
        sure.add_metric(labels, min(one.confidence for one in group))
        trust.add_metric(labels, min(one.quality for one in group))
        lost.add_metric(labels, sum(cost.lost_gpu_hours for cost in costs if not cost.on_cpu) * HOUR_S)
        if costs and all(cost.usd is not None for cost in costs):
            usd.add_metric(labels, sum(cost.usd or 0.0 for cost in costs))
            rate.add_metric(labels, sum(cost.usd_per_hour or 0.0 for cost in costs) / HOUR_S)
    yield from (opened, alerting, slower, sure, usd, rate, lost, trust)
