"""`detect`: everything that is not as it should be, in one window, at machines and in runs."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.detect import checkpoints, devices, mounts, physics, symptoms, trends
from holdfast.detect.detector import Detector, Look
from holdfast.detect.finding import Finding
from holdfast.detect.machines import RULE_DETECTORS
from holdfast.detect.panel import Panels
from holdfast.detect.scene import Planned, Scene
from holdfast.detect.xids import NO_OVERRIDES, Overrides
from holdfast.signals.quality import Flaw
from holdfast.signals.source import Source
from holdfast.topology.graph import Topology

MACHINES: tuple[Detector, ...] = (
    *RULE_DETECTORS,
    trends.HEATING,
    physics.BELOW_RATED,
    physics.SLOW_LINKS,
    mounts.MOUNTS,
    devices.NARROW_BUSES,
    devices.XID_DETECTOR,
)
"""What is looked for in machines, whatever runs on them. A metric's rules stand together."""
RUNS: tuple[Detector, ...] = (symptoms.SYMPTOMS, checkpoints.CHECKPOINTS)
"""What is looked for in each run."""
METRICS: tuple[str, ...] = tuple(
    dict.fromkeys(metric for one in (*MACHINES, *RUNS) for sense in one.senses for metric in sense.metrics)
)
"""All that a look reads, but for what only a heat balance needs (`physics.BALANCE`)."""
WITHIN = frozenset({"rack", "node", "gpu", "port", "member", "engine"})
"""What planned work on a subject takes with it. A run on it goes on, and what is wrong there is wrong."""


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """machines: in the cluster, whatever runs on it; runs: by run; flaws: of the telemetry.

    measured: the signs that would have been found if they had been there.
    """

    machines: tuple[Finding, ...]
    runs: dict[str, tuple[Finding, ...]]
    flaws: tuple[Flaw, ...]
    measured: frozenset[str]


def detect(
    source: Source,
    topology: Topology,
    scenes: Sequence[Scene],
    *,
    window_ns: tuple[int, int],
    xids: Overrides = NO_OVERRIDES,
) -> Detected:
    """Purely: the same readings and the same record give the same findings. xids: a site's own policy."""
    panels = Panels(source, window_ns)
    contradictions = tuple(physics.unbalanced(panels))
    suspect = {flaw.subject for flaw in contradictions}
    is_out = _out(topology, [one for scene in scenes for one in scene.out], window_ns[1])

    def found(detectors: Iterable[Detector], scene: Scene | None) -> tuple[Finding, ...]:
        look = Look(panels=panels, scene=scene, xids=xids)
        return tuple(
            _doubted(finding, suspect)
            for one in detectors
            for finding in one.find(look)
            if not is_out(finding)
        )

    machines = found(MACHINES, None)
    runs = {scene.run: found(RUNS, scene) for scene in scenes}
    return Detected(
        machines=machines,
        runs=runs,
        flaws=(*contradictions, *(flaw for flaws in panels.flaws.values() for flaw in flaws)),
        measured=measured(panels.metrics),
    )


def measured(metrics: frozenset[str]) -> frozenset[str]:
    """The signs that would be found if they were there, where these metrics are."""
    return frozenset(
        sense.sign
        for one in (*MACHINES, *RUNS)
        for sense in one.senses
        if sense.metrics and metrics.issuperset(sense.metrics)
    )


def _doubted(finding: Finding, suspect: set[str]) -> Finding:
    """Less sure, where the subject's sensors contradict each other."""
    if finding.subject not in suspect:
        return finding
    return msgspec.structs.replace(finding, confidence=finding.confidence * physics.SUSPECT_TRUST)


def _out(topology: Topology, planned: Iterable[Planned], now_ns: int) -> Callable[[Finding], bool]:
    """Whether a finding began while its subject was out of use, and has not outlasted that."""
    of: dict[str, list[Planned]] = {}
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

    return is_out
