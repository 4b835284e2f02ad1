"""Changes: versions that exporters and runs show in their labels, and actions in the record.

If everything slows down at one moment and nothing beneath is wrong, a change at that moment is the first
suspect.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel, Panels
from holdfast.signals.frame import Labels

VERSIONS: dict[str, tuple[str, ...]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_CUDA_DRIVER_VERSION"),
    "node_uname_info": ("release", "version"),
    "node_infiniband_info": ("firmware_version",),
    "holdfast_run_info": (),
    "kube_pod_container_info": ("image", "image_id"),
}
"""Metrics whose labels name versions, and those labels; for a run's own metric, all labels but `NAMES`."""
NAMES = frozenset({"run", "member", "node", "instance", "job", "pod", "namespace", "container", "hostname"})
"""Labels that say where something runs; they change with every restart."""
ROLLOUT = re.compile(
    "roll-?out|deploy|upgrade|downgrade|update|image|driver|nccl|cuda|torch|firmware|kernel|config|version"
    "|patch|install|flag"
)
"""Matches actions in the record after which other software runs, or the same software differently."""
CHANGED_SHARE = 0.5
"""Share of the series that must change at once: reinstalling one machine is not a rollout."""
CONFIDENCE = 0.95
RECORD = "record"
RECORD_NS = 6 * 3_600 * 10**9
"""A change this long ago may still explain a problem that has lasted ever since."""


def _changed(look: Look) -> Iterator[Finding]:
    scene = look.scene
    if scene is None:
        return
    for metric, wanted in VERSIONS.items():
        panel = look.panels.value(metric)
        if panel is not None and len(panel.times_ns) > 1:
            for label in wanted or _own_labels(panel):
                found = tuple(_relabelled(panel, label, look, scene.run))
                yield from found or _replaced(panel, label, look, scene.run)
    since_ns = min(_before(look.panels), look.panels.window_ns[1] - RECORD_NS)
    for decided in scene.decisions:
        if since_ns <= decided.at_ns < look.panels.window_ns[1] and _is_rollout(decided.action):
            note = f"{decided.action} was done: {decided.reason or decided.subject}"
            yield _finding(scene.run, RECORD, decided.at_ns, note)


def _is_rollout(action: str) -> bool:
    return ROLLOUT.search(action.casefold().replace("_", "-")) is not None


def _before(panels: Panels) -> int:
    return panels.window_ns[0] if panels.onset_ns is None else min(panels.window_ns[0], panels.onset_ns)


def _own_labels(panel: Panel) -> list[str]:
    series: Iterable[Labels] = (*panel.labels, *(labels for _, labels in panel.earlier))
    return sorted({label for labels in series for label in labels} - NAMES)


def _relabelled(panel: Panel, label: str, look: Look, run: str) -> Iterator[Finding]:
    """A version that most series of the run replaced by another one at one moment."""
    mine = [
        column
        for column, (subject, labels) in enumerate(zip(panel.subjects, panel.labels, strict=True))
        if label in labels and (labels.get("run", run) == run) and _is_of(look, subject, run)
    ]
    if len({panel.labels[column][label] for column in mine}) < 2:
        return
    known = np.isfinite(panel.values[:, mine])
    versions = np.array([panel.labels[column][label] for column in mine])
    first, last = known.argmax(axis=0), len(known) - 1 - known[::-1].argmax(axis=0)
    begun = (
        int(known.any(axis=1).argmax()) + 1
    )  # Targets are not all scraped at once: a series that shows by this row was there before.
    came = first[(first > begun) & known.any(axis=0)]
    if not len(came):
        return
    (row, count), *_ = Counter(came.tolist()).most_common(1)
    new = versions[(np.abs(first - row) <= 2) & (first > begun)]
    old = versions[last < row + 2]
    stays = versions[(first <= begun) & (last >= len(known) - 2)]
    if not len(old) or count < CHANGED_SHARE * (count + len(stays)) or set(new) <= set(old):
        return
    was, now = (Counter(some.tolist()).most_common(1)[0][0] for some in (old, new))
    note = f"{label} changed from {was} to {now}"
    yield _finding(run, panel.metric, int(panel.times_ns[row]), note)


def _replaced(panel: Panel, label: str, look: Look, run: str) -> Iterator[Finding]:
    """The same for a change long ago: compare what most showed before the onset with what they show now."""
    was, now = (
        Counter(
            labels[label]
            for subject, labels in series
            if label in labels and labels.get("run", run) == run and _is_of(look, subject, run)
        )
        for series in (panel.earlier, _alive(panel))
    )
    if not was or not now or look.panels.onset_ns is None:
        return
    (old, _), (new, _) = was.most_common(1)[0], now.most_common(1)[0]
    if old != new and was[new] < CHANGED_SHARE * was.total():
        yield _finding(run, panel.metric, look.panels.onset_ns, f"{label} changed from {old} to {new}")


def _alive(panel: Panel) -> Iterator[tuple[str, Labels]]:
    """The series that still have readings at the end of the window."""
    recent = np.isfinite(panel.values[-max(1, len(panel.values) // 4) :]).any(axis=0)
    return ((panel.subjects[column], panel.labels[column]) for column in np.flatnonzero(recent).tolist())


def _is_of(look: Look, subject: str, run: str) -> bool:
    host = subject if subject in look.hosts else subject.rpartition("/" if "/" in subject else ".")[0]
    return subject == run or not look.hosts or look.hosts.get(host) == run


def _finding(run: str, metric: str, at_ns: int, note: str) -> Finding:
    return Finding(
        sign="changed",
        subject=run,
        metric=metric,
        method="event",
        since_ns=at_ns,
        noticed_ns=at_ns,
        confidence=CONFIDENCE,
        value=1.0,
        note=note,
    )


CHANGES = FunctionDetector(
    (Sense("changed"), *(Sense("changed", (metric,)) for metric in VERSIONS)), _changed
)
