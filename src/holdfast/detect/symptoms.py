"""What is wrong with a run itself, by its own times: slow steps, late members, and who is late changing."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.detector import RunDetector, Sense
from holdfast.detect.finding import Finding, Method
from holdfast.detect.machines import findings
from holdfast.detect.panel import Panel, Panels
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.scene import Healthy, Scene
from holdfast.signals.frame import Floats
from holdfast.topology.names import member_name

STEP = "holdfast_run_step_seconds"
COLLECTOR = "holdfast_member_gc_seconds_total"
Part = Literal["compute", "exchange", "data"]
PARTS: tuple[Part, ...] = ("compute", "exchange", "data")
SLOWER_SHARE = 0.03
"""A step that is longer by less is not worth anybody's time."""
SLOWER_SHARE_ESTIMATED = 0.1
"""The same where nobody declared what a step takes; the ledger's report has no line for less, either."""
LATE_SHARE = 0.02
"""Of a step: who is late by less does not hold it up noticeably."""
PEERS_SHARE = 0.05
"""Who is usually slower than the others by more was late before the looking began."""
WANDERING_ROWS, WANDERING_LATE, WANDERING_WHO = 5, 4, 4
"""Of so many steps in a row so many have somebody late, and so many of those are different members."""
WANDERING_SHARE = 0.05
"""Of the members at once; a cause beneath them would hold on to the same ones."""
COLLECTING_LEAST = 0.01
"""Of a member's time, more than usual: a tenth of a second between scrapes ten seconds apart."""


def _symptoms(panels: Panels, scene: Scene) -> Iterator[Finding]:
    """Everything that the run's own times show."""
    healthy, steps = scene.healthy, _of_run(panels.value(STEP), scene.run)
    step_s = None if healthy is None else healthy.step_s
    if steps is not None:
        steps = _once(steps, _new_steps(steps))
        usual_s = float(compare.usual(steps.values)[0])
        step_s = _usual_step(usual_s, healthy)
        yield from _slow_steps(steps, usual_s, step_s)
        step_s = float(np.fmax(usual_s, step_s))  # who is late by little in a long step does not hold it up
    for part in PARTS:
        members = _of_run(panels.value(f"holdfast_member_{part}_seconds"), scene.run)
        if members is not None and step_s:
            if steps is not None:
                members = _once(members, _new_steps(steps))
            yield from _late(part, members, step_s, scene.run)
    yield from _collecting(panels, scene)


def _of_run(panel: Panel | None, run: str) -> Panel | None:
    """The run's series of a metric, one for each member; None where there is none."""
    if panel is None or len(panel.times_ns) < 2:
        return None
    columns: dict[str, list[int]] = {}
    for column, labels in enumerate(panel.labels):
        if labels.get("run") == run:
            subject = member_name(run, labels["member"]) if "member" in labels else run
            columns.setdefault(subject, []).append(column)
    if not columns:
        return None
    return msgspec.structs.replace(
        panel,
        subjects=tuple(columns),
        labels=(),
        values=_together(panel.values, columns.values()),
        before=None if panel.before is None else _together(panel.before, columns.values()),
        trust=np.array([panel.trust[own].min() for own in columns.values()], np.float32),
        words=(),
    )


def _together(values: Floats, groups: Iterable[list[int]]) -> Floats:
    """Whoever shows it may have moved, and then there are several series of one."""
    known = np.where(np.isfinite(values), values, np.nan)
    return np.stack([np.fmax.reduce(known[:, own], axis=1) for own in groups], axis=1)


def _new_steps(steps: Panel) -> NDArray[np.int64]:
    """When the run showed a step that it had not shown before."""
    shown = steps.values[:, 0]
    known = np.flatnonzero(np.isfinite(shown))
    is_new = np.concatenate(([True], np.diff(shown[known]) != 0)) if len(known) else np.empty(0, np.bool_)
    return steps.times_ns[known[is_new]]


def _once(members: Panel, new_ns: NDArray[np.int64]) -> Panel:
    """Each step once: a scrape that shows the same step again is no further observation."""
    seen = np.searchsorted(new_ns, members.times_ns, side="right")
    again = np.concatenate(([False], np.diff(seen) == 0))
    return msgspec.structs.replace(members, values=np.where(again[:, None], np.nan, members.values))


def _usual_step(usual_s: float, healthy: Healthy | None) -> float:
    """What a step took before; what a healthy one takes, where it was slower than that already."""
    if healthy is None:
        return usual_s
    more = SLOWER_SHARE if healthy.is_declared else SLOWER_SHARE_ESTIMATED
    return usual_s if usual_s <= healthy.step_s * (1 + more) else healthy.step_s


def _slow_steps(steps: Panel, past_s: float, usual_s: float) -> Iterator[Finding]:
    """past_s: the middle of what it took, around which it scatters; usual_s: what it is held against."""
    scatter_s = SIGMAS * compare.spread(steps.values, np.full(1, past_s, np.float32))
    method: Method = "past" if usual_s == past_s else "reference"
    usual = np.full(1, usual_s, np.float32)
    yield from _found("slow-step", STEP, method, steps, usual, max(SLOWER_SHARE * usual_s, scatter_s))


def _late(part: Part, members: Panel, step_s: float, run: str) -> Iterator[Finding]:
    metric = f"holdfast_member_{part}_seconds"
    past = compare.usual(members.values)
    # A member that came later has no past, and one that was always late no good one: its peers have. Of two
    # members the quicker one is the peer.
    known = np.sort(past[np.isfinite(past)])
    middle = float(known[(len(known) - 1) // 2]) if len(known) else 0.0
    usual = np.fmin(past, middle + PEERS_SHARE * step_s).astype(np.float32)
    least = max(LATE_SHARE * step_s, SIGMAS * compare.spread(members.values, past))
    yield from _found(f"late-{part}", metric, "past", members, usual, least)
    if part == "compute":
        yield from _wandering(members, usual, least, run)


def _found(
    sign: str, metric: str, method: Method, members: Panel, usual: Floats, least: float, scrapes: int = 3
) -> Iterator[Finding]:
    rule = Rule(sign=sign, metric=metric, unit="s", note=SIGNS[sign], against=method, scrapes=scrapes)
    with np.errstate(invalid="ignore"):
        wrong = members.values - usual > least
    enough = np.full(len(usual), least, np.float32)
    for finding in findings(rule, members, wrong, usual, enough):
        yield _with_effect(finding)


def _with_effect(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, effect_s=finding.value - finding.usual)


def _wandering(members: Panel, usual: Floats, least: float, run: str) -> Iterator[Finding]:
    """Somebody is late in nearly every step, and nearly every time somebody else."""
    away = np.nan_to_num(members.values - usual, nan=-1.0)
    rows = np.flatnonzero(np.isfinite(members.values).any(axis=1))
    if len(rows) < WANDERING_ROWS:
        return
    late = away[rows] > least
    holds, is_late = _changing(late, away[rows])
    hits = np.flatnonzero(holds)
    if not len(hits):
        return
    first = hits[0] + np.flatnonzero(is_late[hits[0] : hits[0] + WANDERING_ROWS])[0]
    last = hits[-1] + WANDERING_ROWS - 1
    seen = slice(first, last + 1)
    value = float(np.median(away[rows][seen].max(axis=1)[is_late[seen]]))
    yield Finding(
        sign="wandering",
        subject=run,
        metric="holdfast_member_compute_seconds",
        method="peers",
        since_ns=int(members.times_ns[rows[first]]),
        until_ns=None if last >= len(rows) - 2 else int(members.times_ns[rows[last]]),
        noticed_ns=int(members.times_ns[rows[hits[0] + WANDERING_ROWS - 1]]),
        confidence=min(0.99, float(is_late[seen].mean())),
        value=value,
        usual=0.0,
        unit="s",
        effect_s=value,
        note=SIGNS["wandering"],
    )


def _changing(late: NDArray[np.bool_], away: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each stretch of steps whether who is late changes in it; and the steps with such a one.

    Whoever is late in most steps of a stretch is late for a reason of its own, and does not count there.
    """
    few = max(2, round(WANDERING_SHARE * late.shape[1]))
    stretches = len(late) - WANDERING_ROWS + 1
    holds, is_late = np.zeros(stretches, np.bool_), np.zeros(len(late), np.bool_)
    for start in range(stretches):
        steps = late[start : start + WANDERING_ROWS]
        fleeting = steps & (steps.sum(axis=0) <= WANDERING_ROWS // 2)
        with_one = fleeting.any(axis=1) & (steps.sum(axis=1) <= few)
        who = np.where(fleeting, away[start : start + WANDERING_ROWS], -np.inf).argmax(axis=1)[with_one]
        if with_one.sum() >= WANDERING_LATE and len(set(who.tolist())) >= WANDERING_WHO:
            holds[start] = True
            is_late[start : start + WANDERING_ROWS] |= with_one
    return holds, is_late


def _collecting(panels: Panels, scene: Scene) -> Iterator[Finding]:
    """Time in the garbage collector, of whoever spends the most at a time: all others wait for it."""
    members = _of_run(panels.rate(COLLECTOR), scene.run)
    if members is None:
        return
    more = members.values - compare.usual(members.values)
    most = np.fmax.reduce(more, axis=1, keepdims=True)
    longest = msgspec.structs.replace(
        members, subjects=(scene.run,), values=most, before=None, trust=members.trust.min(keepdims=True)
    )
    usual = np.zeros(1, np.float32)
    least = max(COLLECTING_LEAST, SIGMAS * compare.spread(most, usual))
    yield from _found("collecting", COLLECTOR, "past", longest, usual, least)


SYMPTOMS = RunDetector(
    (
        Sense("slow-step", (STEP,)),
        *(Sense(f"late-{part}", (f"holdfast_member_{part}_seconds",)) for part in PARTS),
        Sense("wandering", ("holdfast_member_compute_seconds",)),
        Sense("collecting", (COLLECTOR,)),
    ),
    _symptoms,
)
