"""What was changed: versions that exporters and runs show in their labels, and what the record says was done.

Where everything is slower at one moment, and nothing beneath is wrong, what changed at that moment is asked
for first.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel

VERSIONS: dict[str, tuple[str, ...]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("DCGM_FI_DRIVER_VERSION",),
    "node_uname_info": ("release", "version"),
    "holdfast_run_info": ("image", "nccl", "driver", "torch", "config", "version"),
    "kube_pod_container_info": ("image",),
}
"""Metrics whose labels say what runs, and which of their labels."""
ROLLOUTS = frozenset(
    {"rollout", "deploy", "upgrade", "update", "update-image", "update-driver", "set-config", "configure"}
)
"""Actions in the record after which other software runs."""
CHANGED_SHARE = 0.5
"""Of the series at once: one machine that was set up anew is no rollout."""
CONFIDENCE = 0.95
RECORD = "record"


def _changed(look: Look) -> Iterator[Finding]:
    scene = look.scene
    if scene is None:
        return
    for metric, labels in VERSIONS.items():
        panel = look.panels.value(metric)
        if panel is not None and len(panel.times_ns) > 1:
            for label in labels:
                found = tuple(_relabelled(panel, label, look, scene.run))
                yield from found or _replaced(panel, label, look, scene.run)
    for decided in scene.decisions:
        if (
            decided.action in ROLLOUTS
            and look.panels.window_ns[0] <= decided.at_ns < look.panels.window_ns[1]
        ):
            note = f"{decided.action} was done: {decided.reason or decided.subject}"
            yield _finding(scene.run, RECORD, decided.at_ns, note)


def _relabelled(panel: Panel, label: str, look: Look, run: str) -> Iterator[Finding]:
    """A version that most series of the run gave up for another one at one moment."""
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
    )  # scrapes are not all at once: what is there by then was before
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
    """The same, where it was long ago: what most showed before it went wrong, and what they show now."""
    was, now = (
        Counter(
            labels[label]
            for subject, labels in series
            if label in labels and labels.get("run", run) == run and _is_of(look, subject, run)
        )
        for series in (panel.earlier, zip(panel.subjects, panel.labels, strict=True))
    )
    if not was or not now or look.panels.onset_ns is None:
        return
    (old, _), (new, _) = was.most_common(1)[0], now.most_common(1)[0]
    if old != new and was[new] < CHANGED_SHARE * was.total():
        yield _finding(run, panel.metric, look.panels.onset_ns, f"{label} changed from {old} to {new}")


def _is_of(look: Look, subject: str, run: str) -> bool:
    host = subject if subject in look.hosts else subject.rpartition(".")[0]
    return subject == run or not look.hosts or look.hosts.get(host) == run


def _finding(run: str, metric: str, at_ns: int, note: str) -> Finding:
    return Finding(
        sign="changed",
        subject=run,
        metric=metric,
        method="event",
        since_ns=at_ns,
        until_ns=None,
        noticed_ns=at_ns,
        confidence=CONFIDENCE,
        value=1.0,
        usual=0.0,
        unit="",
        note=note,
    )


CHANGES = FunctionDetector(
    (Sense("changed"), *(Sense("changed", (metric,)) for metric in VERSIONS)), _changed
)
