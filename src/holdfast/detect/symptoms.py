"""What is wrong with a run itself, by its own times: slow steps, late members, and who is late changing."""

from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding, Method
from holdfast.detect.pace import STEP, creeping, once, slow_steps
from holdfast.detect.panel import Panel, Panels
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.scene import Scene
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats

COLLECTOR = "holdfast_member_gc_seconds_total"
Part = Literal["compute", "exchange", "data"]
PARTS: tuple[Part, ...] = ("compute", "exchange", "data")
LATE_SHARE = 0.02
"""Of a step: who is late by less does not hold it up noticeably."""
PEERS_SHARE = 0.05
"""Who is usually slower than the others by more was late before the looking began."""
WANDERING_ROWS, WANDERING_LATE, WANDERING_WHO = 5, 4, 4
"""Of so many steps in a row so many have somebody late, and so many of those are different members."""
WANDERING_SHARE = 0.25
"""Of the members at once; a cause beneath them would hold on to the same ones."""
WANDERING_CHANCE = 0.01
"""That in one step any member is so late by chance."""
COLLECTING_LEAST = 0.01
"""Of a member's time, more than usual: a tenth of a second between scrapes ten seconds apart."""


def _symptoms(look: Look) -> Iterator[Finding]:
    """Everything that the run's own times show."""
    scene, panels, pace = look.scene, look.panels, look.pace
    if scene is None:
        return
    step_s = None if scene.healthy is None else scene.healthy.step_s
    if pace is not None and pace.step_s is not None:
        slow = tuple(slow_steps(pace, panels.window_ns))
        yield from slow
        yield from creeping(pace, slow)
        # Who is late by little in a long step does not hold it up.
        step_s = max((one.value for one in slow if pace.method == "reference"), default=pace.step_s)
    for part in PARTS:
        members = panels.of_run(f"holdfast_member_{part}_seconds", scene.run)
        if members is not None and step_s:
            if pace is not None:
                members = once(members, pace.shown_ns)
            yield from _late(part, members, step_s, scene.run)
    yield from _collecting(panels, scene)


def _late(part: Part, members: Panel, step_s: float, run: str) -> Iterator[Finding]:
    metric = f"holdfast_member_{part}_seconds"
    past = members.usual
    # A member that came later has no past, and one that was always late no good one: its peers have. Of two
    # members the quicker one is the peer.
    known = np.sort(past[np.isfinite(past)])
    middle = float(known[(len(known) - 1) // 2]) if len(known) else 0.0
    usual = np.fmin(past, middle + PEERS_SHARE * step_s).astype(np.float32)
    least = max(LATE_SHARE * step_s, SIGMAS * members.scatter)
    yield from _found(f"late-{part}", metric, "past", members, usual, least)
    if part == "compute":
        chance = float(np.sqrt(2 * np.log(len(members.subjects) / WANDERING_CHANCE)))
        enough = max(LATE_SHARE * step_s, chance * members.scatter)
        yield from _wandering(members, usual, enough, run)


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
    members = panels.of_run(COLLECTOR, scene.run, as_rate=True)
    if members is None:
        return
    more = members.values - members.usual
    most = np.fmax.reduce(more, axis=1, keepdims=True)
    longest = msgspec.structs.replace(
        members, subjects=(scene.run,), values=most, before=None, trust=members.trust.min(keepdims=True)
    )
    usual = np.zeros(1, np.float32)
    least = max(COLLECTING_LEAST, SIGMAS * compare.spread(most, usual))
    yield from _found("collecting", COLLECTOR, "past", longest, usual, least)


SYMPTOMS = FunctionDetector(
    (
        Sense("slow-step", (STEP,)),
        Sense("creeping", (STEP,)),
        *(Sense(f"late-{part}", (f"holdfast_member_{part}_seconds",)) for part in PARTS),
        Sense("wandering", ("holdfast_member_compute_seconds",)),
        Sense("collecting", (COLLECTOR,)),
    ),
    _symptoms,
)
