"""Which parts of a cluster the telemetry shows and which not: for `holdfast doctor`. The source does all I/O.

The detectors say which signs need which metrics, and the mechanisms which causes show by which signs, so this
module cannot miss any.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from holdfast.detect.detecting import METRICS, senses
from holdfast.detect.rules import SIGNS
from holdfast.detect.signs import Sign
from holdfast.diagnose.findable import FindableCause, Missing, NextStep, causes, next_step, verdict
from holdfast.diagnose.mechanisms import MECHANISMS
from holdfast.signals.catalogue import describe
from holdfast.signals.exporters import AMD, ENGINES, EXPORTERS, Exporter, exporter_of, switching_on
from holdfast.signals.named import HOSTED, NamedSource, Namer
from holdfast.signals.source import Source
from holdfast.signals.stepped import STEP, without_steps
from holdfast.signals.translated import TRANSLATIONS, TranslatedSource
from holdfast.topology.check import doubts
from holdfast.topology.file import Described
from holdfast.topology.graph import in_order
from holdfast.topology.names import host_names_of
from holdfast.topology.survey import Doubt

WITHIN_NS = 600 * 10**9
"""How far it looks back: longer than any usual scrape interval."""
LOGGED = "its step log"
SAMPLED_MAX = 3
"""Metrics that are read per exporter, to see which hosts it covers and how often."""


class SeenExporter(msgspec.Struct, frozen=True, kw_only=True):
    """An exporter with data. hosts: those it covers; dark: nodes that it should cover and does not."""

    exporter: str
    metrics: int
    hosts: int
    every_s: float | None
    dark: tuple[str, ...]


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """A host that an exporter names differently than the topology does. node: None if unknown."""

    exporter: str
    name: str
    node: str | None


class RunSeen(msgspec.Struct, frozen=True, kw_only=True):
    """has_steps: recently. last_ns: if not, when the last step in its step log was made, if there is one."""

    run: str
    nodes: int
    source: str
    has_steps: bool
    last_ns: int | None = None


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    seen: tuple[SeenExporter, ...]
    missing: tuple[Missing, ...]
    spellings: tuple[Spelling, ...]
    runs: tuple[RunSeen, ...]
    doubts: tuple[Doubt, ...]
    causes: tuple[FindableCause, ...]
    next_step: NextStep | None
    verdict: str

    @property
    def is_well(self) -> bool:
        """Whether the existing telemetry is consistent. Missing telemetry is not a fault."""
        unknown = any(spelling.node is None for spelling in self.spellings)
        return bool(self.seen) and not unknown and not any(seen.dark for seen in self.seen)


def check_up(
    source: Source,
    cluster: Described,
    steps: Iterable[str],
    at_ns: int,
    logged: Mapping[str, int | None],
) -> Checkup:
    """steps: runs with recent steps in the signals. logged: runs with a step log, and its last step."""
    translated = TranslatedSource(without_steps(source))
    there = frozenset(translated.metrics())
    window_ns = (at_ns - WITHIN_NS, at_ns + 1)
    named = NamedSource(translated, Namer(cluster.hosts, frozenset(cluster.topology.names())))
    with_steps = frozenset(steps)
    found = [
        _seen(named, cluster, exporter, shown, window_ns)
        for exporter in EXPORTERS
        if (shown := [metric for metric in sorted(there) if exporter_of(metric) is exporter])
    ]
    told, kinds = there | ({STEP} if with_steps else set()), frozenset(cluster.survey.kinds.values())
    missing = _missing(there, told, has_pools="pool" in kinds)
    known = causes(told, partial(_exporter, there=there), kinds)
    step = next_step(told, missing, kinds)
    return Checkup(
        seen=tuple(seen for seen, _ in found),
        missing=tuple(missing),
        spellings=tuple(spelling for _, spellings in found for spelling in spellings),
        runs=tuple(
            RunSeen(
                run=run,
                nodes=len({*cluster.survey.members.get(run, {}).values()}),
                source=_known_by(cluster, run, there, is_logged=run in logged),
                has_steps=run in with_steps,
                last_ns=None if run in with_steps else logged.get(run),
            )
            for run in in_order({*cluster.survey.members, *with_steps, *logged})
        ),
        # If runs are known by their steps, it says nothing that no run has machines.
        doubts=tuple(
            one for one in doubts(cluster) if one.subjects or one.kind != "unused" or not with_steps
        ),
        causes=known,
        next_step=step,
        verdict=verdict(known, step),
    )


def _known_by(cluster: Described, run: str, there: frozenset[str], *, is_logged: bool) -> str:
    if run in cluster.survey.members:
        return cluster.survey.source_of(run, "members")
    if is_logged:
        return LOGGED
    return "its metrics" if STEP in there else "its steps"


def _seen(
    source: NamedSource,
    cluster: Described,
    exporter: Exporter,
    shown: Sequence[str],
    window_ns: tuple[int, int],
) -> tuple[SeenExporter, list[Spelling]]:
    # Metrics that are read anyway come first; a metric of few hosts, such as one of a job, says little.
    wanted = sorted(shown, key=lambda metric: (metric not in METRICS, describe(metric).scope not in HOSTED))
    hosts: set[str] = set()
    spelled: dict[str, str | None] = {}
    intervals_s: list[float] = []
    for metric in wanted[:SAMPLED_MAX]:
        frame = source.frame(metric, window_ns)
        if frame is None:
            continue
        if describe(metric).scope in HOSTED:
            for labels in frame.labels:
                name, node = next(iter(host_names_of(labels)), ""), cluster.hosts.of(labels)
                hosts.add(node)
                if name != node or cluster.hosts.node(node) is None:
                    spelled[name] = cluster.hosts.node(node)
        if len(frame.times_ns) > 1:
            intervals_s.append(float(np.median(np.diff(frame.times_ns))) / 1e9)
    nodes = {name for name, kind in cluster.survey.kinds.items() if kind == "node"}
    dark = nodes - hosts if hosts & nodes and exporter.name in ("dcgm-exporter", "node_exporter") else set()
    return (
        SeenExporter(
            exporter=exporter.name,
            metrics=len(shown),
            hosts=len(hosts),
            every_s=min(intervals_s, default=None),
            dark=tuple(in_order(dark)),
        ),
        [Spelling(exporter=exporter.name, name=name, node=spelled[name]) for name in in_order(spelled)],
    )


def _missing(there: frozenset[str], told: frozenset[str], *, has_pools: bool) -> list[Missing]:
    """By exporter, the signs that no present metric can show; for several ways to read one, the first.

    there: the metrics of exporters; told: the same, and the step metric if steps come from any source.
    """
    known = senses()
    measured = {sense.sign for sense in known if told.issuperset(sense.metrics)}
    wanted: dict[Sign, tuple[str, ...]] = {}
    for sense in known:
        if sense.sign not in measured:
            wanted.setdefault(sense.sign, sense.metrics)
    by_exporter: dict[str, list[Sign]] = {}
    for sign, metrics in wanted.items():
        by_exporter.setdefault(_exporter(metrics[0], there).name, []).append(sign)
    found = []
    for exporter in EXPORTERS:
        signs = by_exporter.get(exporter.name, ())
        if not signs or (exporter is ENGINES and not has_pools):
            continue
        metrics = tuple(dict.fromkeys(one for sign in signs for one in wanted[sign] if one not in told))
        is_there = any(exporter_of(metric) is exporter for metric in there)
        found.append(
            Missing(
                exporter=exporter.name,
                is_there=is_there,
                metrics=metrics,
                signs=tuple(SIGNS[sign] for sign in signs),
                causes=_helped(signs),
                how=switching_on(exporter, metrics, is_there=is_there),
            )
        )
    # The steps of runs come first: without them nothing is seen to be slow.
    return sorted(found, key=lambda one: (STEP not in one.metrics, -len(one.causes)))


def _exporter(metric: str, there: frozenset[str]) -> Exporter:
    """The exporter that would show the metric; for AMD GPUs their own, if it has a counterpart."""
    has_counterpart = any(one.to == metric for one in TRANSLATIONS)
    has_amd = any(one.name in there for one in TRANSLATIONS)
    return AMD if has_counterpart and has_amd else exporter_of(metric)


def _helped(signs: Iterable[str]) -> tuple[str, ...]:
    """The mechanisms that one of these signs would show."""
    wanted = set(signs)
    return tuple(
        one.name for one in MECHANISMS if wanted & {*one.shows, *one.follows, *one.needs, *one.slows}
    )
