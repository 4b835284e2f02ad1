"""Problems of a run that its own times show: slow steps, late members, and members that are late in turn."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from holdfast.detect import compare
from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.pace import LANES, STEP, creeping, once, slow_steps
from holdfast.detect.panel import Panel, Panels
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.scene import Scene
from holdfast.detect.signs import Sign
from holdfast.detect.stages import INFO, late_stage
from holdfast.detect.stretches import findings
from holdfast.detect.wandering import wandering
from holdfast.signals.frame import Floats

COLLECTOR = "holdfast_member_gc_seconds_total"
MEMBER_LANES = "holdfast_member_lanes"
Part = Literal["compute", "exchange", "data"]
LATE: dict[Part, Sign] = {"compute": "late-compute", "exchange": "late-exchange", "data": "late-data"}
LATE_SHARE = 0.02
"""Share of a step: a member that is late by less does not hold it up noticeably."""
PEERS_SHARE = 0.05
"""A member usually slower than the others by more than this share of a step was late before the window."""
LATE_MEAN_S, LATE_MEAN_PARTS, LATE_MEAN_STEPS_MIN = 300.0, 4, 6
"""A mean over this many seconds, at most a quarter of a short window, and at least this many steps."""
LATE_MEAN_SHARE = 0.5
ALL_LATE_SHARE = 0.5
"""Share of a member's lateness: if most others are late by more, the member is not late on its own."""
LATE_LAST_STEPS, MOSTLY = 12, 0.5
EARLIER_NS = 60 * 10**9
"""A member whose mean has been late for this much longer than its single steps is reported by its mean."""
WANDERING_CHANCE = 0.01
"""The chance that in one step any member is this late by accident."""
COLLECTING_MEAN_S, COLLECTING_PARTS = 300.0, 4
"""A mean over this many seconds, at most a quarter of a short window: a longer one would show nothing."""
COLLECTING_LEAST = 0.01
"""Share of a member's time above the usual: a tenth of a second between scrapes ten seconds apart."""


def _symptoms(look: Look) -> Iterator[Finding]:
    """All findings from the run's own times."""
    scene, panels, pace = look.scene, look.panels, look.pace
    if scene is None:
        return
    step_s = None if scene.healthy is None else scene.healthy.step_s
    if pace is not None and pace.step_s is not None:
        slow = tuple(slow_steps(pace, panels.window_ns))
        yield from slow
        yield from creeping(pace, slow)
        # Being a little late in a long step does not hold it up.
        step_s = max((one.value for one in slow if pace.method == "reference"), default=pace.step_s)
    for part in LATE:
        members = panels.of_run(f"holdfast_member_{part}_seconds", scene.run)
        if members is not None and step_s:
            if part == "compute":
                members = _as_even(members, panels.of_run(MEMBER_LANES, scene.run))
            if pace is not None:
                members = once(members, pace.shown_ns)
            late = tuple(_late(part, members, step_s, scene.run))
            yield from late
            if part == "compute":
                yield from late_stage((one for one in late if one.sign != "wandering"), panels, scene.run)
    yield from _collecting(panels, scene)


def _as_even(members: Panel, lanes: Panel | None) -> Panel:
    """The time that each member would take for an even share of the lanes. A run moves lanes off a slow
    member: that member is as slow as before, and those that take over its lanes are not slow.
    """
    if lanes is None:
        return members
    rows = np.maximum(np.searchsorted(lanes.times_ns, members.times_ns, side="right") - 1, 0)
    place = {name: column for column, name in enumerate(lanes.subjects)}
    own = np.full(members.values.shape, np.nan)
    for column, name in enumerate(members.subjects):
        if name in place:
            own[:, column] = lanes.values[rows, place[name]]
    has_some = own > 0
    even = np.where(has_some, own, 0.0).sum(axis=1) / np.maximum(has_some.sum(axis=1), 1)
    factor = np.where(has_some, even[:, None] / np.where(has_some, own, 1.0), 1.0)
    return msgspec.structs.replace(members, values=(members.values * factor).astype(np.float32))


def _late(part: Part, members: Panel, step_s: float, run: str) -> Iterator[Finding]:
    metric = f"holdfast_member_{part}_seconds"
    past = members.usual
    # A member that joined later has no past, and the past of one that was always late is no baseline: its
    # peers have one. Of two members the quicker one is the peer.
    known = np.sort(past[np.isfinite(past)])
    middle = float(known[(len(known) - 1) // 2]) if len(known) else 0.0
    usual = np.fmin(past, middle + PEERS_SHARE * step_s).astype(np.float32)
    least = max(LATE_SHARE * step_s, SIGMAS * members.scatter)
    single = tuple(_found(LATE[part], metric, members, usual, least))
    on_average = tuple(_late_on_average(part, members, usual, step_s))
    since_ns = {one.subject: one.since_ns - EARLIER_NS for one in single if one.until_ns is None}
    besides = {
        one.subject: one for one in on_average if one.since_ns < since_ns.get(one.subject, one.since_ns + 1)
    }
    late = (*(one for one in single if one.subject not in besides), *besides.values())
    yield from _apart(late, members, usual) if part == "compute" else late
    if part == "compute":
        chance = float(np.sqrt(2 * np.log(len(members.subjects) / WANDERING_CHANCE)))
        enough = max(LATE_SHARE * step_s, chance * members.scatter)
        # A member that is late all the time, within noise, is not late in turn.
        always = {*besides, *_always_late(single, members)}
        others = np.array([n for n, name in enumerate(members.subjects) if name not in always], np.int64)
        yield from wandering(members.some(others), usual[others], enough, run)


def _apart(late: Sequence[Finding], members: Panel, usual: Floats) -> Iterator[Finding]:
    """Leave out members that are late by hardly more than all others. If steps become longer for all, some
    member is the first to stand out from noise and another the last; that does not locate the cause. If most
    stand out at once, all of them count.
    """
    place = {name: column for column, name in enumerate(members.subjects)}
    away = members.values - usual
    rows = np.flatnonzero(np.isfinite(away).any(axis=1))
    # Of two members the quicker one is the peer.
    middle = (np.isfinite(away[rows]).sum(axis=1) - 1) // 2
    times_ns, most = members.times_ns[rows], np.sort(away[rows], axis=1)[np.arange(len(rows)), middle]
    lasting = [one for one in late if one.until_ns is None]
    over = [one for one in late if one.until_ns is not None]
    for group in (lasting, over):
        are_most = len({one.subject for one in group}) > LATE_MEAN_SHARE * len(place)
        for one in group:
            first = int(np.searchsorted(times_ns, one.since_ns))
            end = len(rows) if one.until_ns is None else int(np.searchsorted(times_ns, one.until_ns, "right"))
            own = away[rows[first:end], place[one.subject]]
            own = own[np.isfinite(own)]
            is_like_all = len(own) and np.median(most[first:end]) > ALL_LATE_SHARE * np.median(own)
            if are_most or not is_like_all:
                yield one


def _always_late(single: Iterable[Finding], members: Panel) -> set[str]:
    """Members that are late in most steps, by amounts that may scatter; empty if most members are."""
    lasting = [one for one in single if one.until_ns is None]
    always = {one.subject for one in _mostly_late(lasting, members)}
    return always if len(always) <= LATE_MEAN_SHARE * len(members.subjects) else set()


def _late_on_average(part: Part, members: Panel, usual: Floats, step_s: float) -> Iterator[Finding]:
    """Members whose mean over minutes is late, and still is, while single steps do not stand out from noise.

    They are late in most steps, not by far in a few. If most members are late, this does not locate the
    cause.
    """
    rows = min(compare.rows_in(members.times_ns, LATE_MEAN_S), len(members.times_ns) // LATE_MEAN_PARTS)
    known = int(np.isfinite(members.values).sum(axis=0).max(initial=0))
    steps = rows * known / max(1, len(members.times_ns))
    if steps < LATE_MEAN_STEPS_MIN:
        return
    past = members.values[compare.past_rows(members.values)] if members.before is None else members.before
    seen = np.isfinite(past).sum(axis=0)
    mean = np.nansum(past, axis=0) / np.maximum(seen, 1)
    usual = np.where(seen >= LATE_MEAN_STEPS_MIN, np.fmin(mean, usual + members.scatter), np.nan)
    noise = members.scatter * float(np.sqrt(2 / steps))
    least = max(LATE_SHARE * step_s, compare.MEAN_SIGMAS * noise)
    means = msgspec.structs.replace(
        members, values=compare.rolling(members.values, rows), single=members.values
    )
    metric = f"holdfast_member_{part}_seconds"
    found = _found(LATE[part], metric, means, usual.astype(np.float32), least)
    lasting = _mostly_late([one for one in found if one.until_ns is None], members)
    if len(lasting) <= LATE_MEAN_SHARE * len(members.subjects):
        yield from lasting


def _mostly_late(found: Sequence[Finding], members: Panel) -> list[Finding]:
    """The findings whose member was late by about its mean in most steps since, including the last ones: a
    mean lags behind when the problem ends.
    """
    place = {name: column for column, name in enumerate(members.subjects)}
    own = members.values[:, [place[one.subject] for one in found]]
    since = members.times_ns[:, None] >= np.array([one.since_ns for one in found], np.int64)
    own = np.where(since, own, np.nan)
    later = np.cumsum(np.isfinite(own)[::-1], axis=0)[::-1]
    last = np.where(later <= LATE_LAST_STEPS, own, np.nan)
    means = np.nansum(last, axis=0) / np.clip(later[:1].sum(axis=0), 1, LATE_LAST_STEPS)
    least = np.minimum(compare.middle(own), means)
    enough = [one.usual + MOSTLY * (one.value - one.usual) for one in found]
    return [one for one, is_late in zip(found, least > np.array(enough), strict=True) if is_late]


def _found(sign: Sign, metric: str, members: Panel, usual: Floats, least: float) -> Iterator[Finding]:
    rule = Rule(sign=sign, metric=metric, unit="s", note=SIGNS[sign])
    with np.errstate(invalid="ignore"):
        wrong = members.values - usual > least
    enough = np.full(len(usual), least, np.float32)
    for finding in findings(rule, members, wrong, usual, enough):
        yield _with_effect(finding)


def _with_effect(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, effect_s=finding.value - finding.usual)


def _collecting(panels: Panels, scene: Scene) -> Iterator[Finding]:
    """Time in the garbage collector of the member that spends the most at a time: all others wait for it.

    Taken as a mean over minutes: with few members, no member collects during most scrapes.
    """
    members = panels.of_run(COLLECTOR, scene.run, as_rate=True)
    if members is None:
        return
    longest = msgspec.structs.replace(
        members,
        subjects=(scene.run,),
        values=_most(members.values, members.usual),
        before=None if members.before is None else _most(members.before, members.usual),
        trust=members.trust.min(keepdims=True),
    )
    past = longest.values[compare.past_rows(longest.values)] if longest.before is None else longest.before
    past = past[np.isfinite(past)]
    if len(past) < compare.PAST_KNOWN_MIN:
        return
    rows = compare.rows_in(members.times_ns, COLLECTING_MEAN_S)
    rows = min(rows, max(1, len(members.times_ns) // COLLECTING_PARTS))
    noise = float(past.std()) * float(np.sqrt(1 / rows + 1 / len(past)))
    usual = np.full(1, max(0.0, float(past.mean())), np.float32)
    least = max(COLLECTING_LEAST, compare.MEAN_SIGMAS * noise)
    means = msgspec.structs.replace(
        longest, values=compare.rolling(longest.values, rows), single=longest.values
    )
    for finding in _found("collecting", COLLECTOR, means, usual, least):
        rows_of_it = members.times_ns >= finding.since_ns
        if finding.until_ns is not None:
            rows_of_it &= members.times_ns <= finding.until_ns
        value = float(np.nanmean(longest.values[rows_of_it]))
        yield _with_effect(msgspec.structs.replace(finding, value=value))


def _most(rates: Floats, usual: Floats) -> Floats:
    return np.asarray(np.fmax.reduce(rates - usual, axis=1, keepdims=True), np.float32)


SYMPTOMS = FunctionDetector(
    (
        Sense("slow-step", (STEP,)),
        Sense("slow-step", (STEP, LANES)),
        Sense("creeping", (STEP,)),
        *(Sense(sign, (f"holdfast_member_{part}_seconds",)) for part, sign in LATE.items()),
        Sense("late-compute", ("holdfast_member_compute_seconds", MEMBER_LANES)),
        Sense("wandering", ("holdfast_member_compute_seconds",)),
        Sense("late-stage", ("holdfast_member_compute_seconds",)),
        Sense("late-stage", ("holdfast_member_compute_seconds", INFO)),
        Sense("collecting", (COLLECTOR,)),
    ),
    _symptoms,
)
