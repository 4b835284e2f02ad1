"""`detect`: all findings in one window, for machines and for runs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, filterfalse

import msgspec

from holdfast.detect import (
    allocators,
    changes,
    checkpoints,
    compare,
    devices,
    hangs,
    hosts,
    mounts,
    physics,
    symptoms,
    throttling,
    trends,
)
from holdfast.detect.detector import Detector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.machines import RULE_DETECTORS
from holdfast.detect.pace import Pace, margin_of, onset_of, pace_of, stands_since
from holdfast.detect.panel import MARGIN_S, Panels
from holdfast.detect.scene import Healthy, PlannedWork, Scene
from holdfast.detect.signs import Sign
from holdfast.detect.xids import NO_OVERRIDES, Overrides
from holdfast.signals.quality import Flaw
from holdfast.signals.source import Source
from holdfast.topology.graph import Topology

MACHINES: tuple[Detector, ...] = (
    *RULE_DETECTORS,
    throttling.THROTTLING,
    trends.HEATING,
    physics.BELOW_RATED,
    physics.SLOW_LINKS,
    mounts.MOUNTS,
    devices.NARROW_BUSES,
    devices.SLOW_BUSES,
    hosts.DISKS,
    hosts.EXHAUSTED,
    hosts.NAME_SERVERS,
    hosts.LUSTRE,
    hosts.SEGMENTS,
    hosts.CLOCK_OFFSETS,
    throttling.NVLINK,
    devices.XID_DETECTOR,
)
"""The detectors for machines, whatever runs on them. The rules of one metric stand together."""
RUNS: tuple[Detector, ...] = (
    hangs.HANGS,
    symptoms.SYMPTOMS,
    allocators.ALLOCATORS,
    allocators.BUFFERS,
    changes.CHANGES,
    checkpoints.CHECKPOINTS,
)
"""The detectors for each run."""
METRICS: tuple[str, ...] = tuple(
    dict.fromkeys(metric for one in (*MACHINES, *RUNS) for sense in one.senses for metric in sense.metrics)
)
"""All metrics that a look reads, except those that only the heat balance needs (`physics.BALANCE`)."""
ABSURD_TIMES = 1.5
WITHIN = frozenset({"rack", "node", "gpu", "port", "member", "engine"})
"""Kinds of subjects that planned work takes out of use together with their parent. A run on them goes on, and
its problems count.
"""


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """machines: findings in the cluster, whatever runs on it; runs: findings by run; flaws: in the telemetry.

    measured: the signs that the available metrics can show. usual_s: by run, the step time that its steps are
    compared with. from_ns: the first moment in the panels; a state that held then began earlier.
    """

    machines: tuple[Finding, ...]
    runs: dict[str, tuple[Finding, ...]]
    flaws: tuple[Flaw, ...]
    measured: frozenset[str]
    usual_s: dict[str, float]
    from_ns: int = 0


def detect(
    source: Source,
    topology: Topology,
    scenes: Sequence[Scene],
    *,
    window_ns: tuple[int, int],
    since_ns: int | None = None,
    xids: Overrides = NO_OVERRIDES,
) -> Detected:
    """Pure: the same readings and the same record give the same findings. xids: a site's own policy.

    since_ns: when a known problem began. The baseline of machines is what they showed before that, or before
    the steps of a run became slower; if both are unknown, the first third of the window.
    """
    first = Panels(source, window_ns)
    paces = {scene.run: pace for scene in scenes if (pace := pace_of(first, scene)) is not None}
    onset_ns = _onset_ns(paces, window_ns, since_ns)
    margin_s = max((margin_of(pace, onset_ns) for pace in paces.values()), default=MARGIN_S)
    panels = Panels(source, window_ns, onset_ns, margin_s)
    contradictions = tuple(physics.unbalanced(panels))
    suspect = {flaw.subject for flaw in contradictions}
    is_out = _out(topology, [one for scene in scenes for one in scene.out], window_ns[1])

    hosts, mounts = _hosts(topology, scenes), frozenset(topology.names("mount"))
    kept: dict[str, tuple[Finding, ...]] = {}

    def found(detectors: Iterable[Detector], scene: Scene | None) -> tuple[Finding, ...]:
        pace = None if scene is None else paces.get(scene.run)
        look = Look(panels=panels, scene=scene, pace=pace, xids=xids, hosts=hosts, mounts=mounts, kept=kept)
        every: Iterator[Finding] = chain.from_iterable(one.find(look) for one in detectors)
        if is_out is not None:
            every = filterfalse(is_out, every)
        return tuple(_doubted(finding, suspect) for finding in every) if suspect else tuple(every)

    machines = found(MACHINES, None)
    runs = {scene.run: found(RUNS, _believed(scene, paces.get(scene.run))) for scene in scenes}
    return Detected(
        machines=machines,
        runs=runs,
        flaws=(*contradictions, *(flaw for flaws in panels.flaws.values() for flaw in flaws)),
        measured=measured(panels.metrics),
        usual_s={run: pace.step_s for run, pace in paces.items() if pace.step_s is not None},
        from_ns=panels.from_ns,
    )


def _onset_ns(paces: Mapping[str, Pace], window_ns: tuple[int, int], since_ns: int | None) -> int | None:
    """When the problem began, if the window's first third cannot serve as the baseline. A problem that slows
    steps only now may have begun earlier.
    """
    known_ns = window_ns[0] + round(compare.PAST_SHARE * (window_ns[1] - window_ns[0]))
    onsets = [] if since_ns is None or since_ns >= known_ns else [since_ns]
    for pace in paces.values():
        begun = (onset_of(pace, window_ns), stands_since(pace, window_ns))
        onsets += [one for one in begun if one is not None and one - margin_of(pace, one) * 1e9 < known_ns]
    return min(onsets, default=None)


def _believed(scene: Scene, pace: Pace | None) -> Scene:
    """Drop an estimate of a healthy step that exceeds the actual steps: its record began in mid-run."""
    known = scene.healthy
    if known is None or known.is_declared or pace is None or pace.step_s is None:
        return scene
    if known.step_s <= ABSURD_TIMES * pace.step_s:
        return scene
    return msgspec.structs.replace(scene, healthy=Healthy(step_s=pace.step_s, is_declared=False))


def _hosts(topology: Topology, scenes: Iterable[Scene]) -> dict[str, str]:
    """The nodes of each run, with the run."""
    return {
        node: scene.run
        for scene in scenes
        if scene.run in topology
        for node in topology.causes(scene.run, "node")
    }


def senses() -> tuple[Sense, ...]:
    """Every sign that is read from metrics, with each way to read it."""
    return tuple(sense for one in (*MACHINES, *RUNS) for sense in one.senses if sense.metrics)


def recorded() -> frozenset[Sign]:
    """The signs that are read from the record alone."""
    return frozenset(sense.sign for one in (*MACHINES, *RUNS) for sense in one.senses if not sense.metrics)


def measured(metrics: frozenset[str]) -> frozenset[Sign]:
    """The signs that these metrics can show."""
    return frozenset(sense.sign for sense in senses() if metrics.issuperset(sense.metrics))


def hosts_by_sign(shown: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """The hosts at which each sign can be seen, for signs that hosts show. shown: hosts by metric."""
    found: dict[str, frozenset[str]] = {}
    for sense in senses():
        if own := [frozenset(shown[metric]) for metric in sense.metrics if metric in shown]:
            found[sense.sign] = found.get(sense.sign, frozenset()) | frozenset.intersection(*own)
    return found


def _doubted(finding: Finding, suspect: set[str]) -> Finding:
    """The finding with less confidence if the subject's sensors contradict each other."""
    if finding.subject not in suspect:
        return finding
    return msgspec.structs.replace(finding, confidence=finding.confidence * physics.SUSPECT_TRUST)


def _out(topology: Topology, planned: Iterable[PlannedWork], now_ns: int) -> Callable[[Finding], bool] | None:
    """A test for findings that began while their subject was out of use, and did not outlast that.

    None if nothing is out of use, which avoids asking for each of tens of thousands of findings.
    """
    of: dict[str, list[PlannedWork]] = {}
    for one in planned:
        inside = topology.blast_radius(one.subject) if one.subject in topology else ()
        for subject in (one.subject, *(name for name in inside if topology.kind(name) in WITHIN)):
            of.setdefault(subject, []).append(one)

    def is_out(finding: Finding) -> bool:
        is_over = finding.until_ns is not None
        return any(
            one.covers(finding.since_ns) and (is_over or one.covers(now_ns))
            for one in of.get(finding.subject, ())
        )

    return is_out if of else None
