"""`detect`: everything that is not as it should be, in one window, at machines and in runs."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.detect.checkpoints import checkpoint_findings
from holdfast.detect.devices import WIDTH, WIDTH_MAX, narrow_buses, xid_findings
from holdfast.detect.finding import Finding
from holdfast.detect.machines import find
from holdfast.detect.mounts import REQUESTS, RESPONSE, SIGN_OF, mount_findings
from holdfast.detect.physics import SUSPECT_TRUST, below_rated, slow_links, unbalanced
from holdfast.detect.rules import RULES
from holdfast.detect.scene import Planned, Scene
from holdfast.detect.symptoms import symptoms
from holdfast.detect.trends import TEMPERATURE, heating
from holdfast.detect.xids import NO_OVERRIDES, Overrides
from holdfast.signals.quality import Flaw, inspect
from holdfast.signals.source import Source
from holdfast.topology.graph import Topology

METRICS: tuple[str, ...] = tuple(dict.fromkeys(rule.metric for rule in RULES))
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
    flaws = [*unbalanced(source, window_ns)]
    suspect = {flaw.subject for flaw in flaws}
    is_out = _out(topology, [one for scene in scenes for one in scene.out], window_ns[1])
    found = [
        _doubted(finding, suspect)
        for finding in _machines(source, window_ns, flaws, xids)
        if not is_out(finding)
    ]
    runs = {
        scene.run: tuple(
            finding
            for finding in (*symptoms(source, scene, window_ns), *checkpoint_findings(scene, window_ns))
            if not is_out(finding)
        )
        for scene in scenes
    }
    measured = _measured(frozenset(source.metrics()))
    return Detected(machines=tuple(found), runs=runs, flaws=tuple(flaws), measured=measured)


def _measured(metrics: frozenset[str]) -> frozenset[str]:
    signs = {rule.sign for rule in RULES if rule.metric in metrics}
    if {REQUESTS, RESPONSE} <= metrics:
        signs |= set(SIGN_OF.values())
    if {WIDTH, WIDTH_MAX} <= metrics:
        signs.add("narrow-bus")
    return frozenset(signs)


def _doubted(finding: Finding, suspect: set[str]) -> Finding:
    """Less sure, where the subject's sensors contradict each other."""
    if finding.subject not in suspect:
        return finding
    return msgspec.structs.replace(finding, confidence=finding.confidence * SUSPECT_TRUST)


def _machines(
    source: Source, window_ns: tuple[int, int], flaws: list[Flaw], xids: Overrides
) -> Iterator[Finding]:
    there = set(source.metrics())
    for metric in METRICS:
        frame = source.frame(metric, window_ns) if metric in there else None
        if frame is not None and len(frame.times_ns):
            inspected = inspect(frame, now_ns=window_ns[1])
            flaws += inspected.flaws
            yield from find(inspected)
            if metric == TEMPERATURE:
                yield from heating(inspected)
    yield from below_rated(source, window_ns)
    yield from slow_links(source, window_ns)
    yield from mount_findings(source, window_ns)
    yield from narrow_buses(source, window_ns)
    yield from xid_findings(source, window_ns, xids)


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
