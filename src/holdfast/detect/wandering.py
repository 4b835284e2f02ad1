"""Members that are late in turn: a different one each time, so no single machine can be the cause."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import SIGNS
from holdfast.signals.frame import Floats

METRIC = "holdfast_member_compute_seconds"
ROWS, LATE, WHO = 5, 4, 4
"""Of `ROWS` steps in a row at least `LATE` have a late member, and at least `WHO` members are late."""
SHARE = 0.25
"""Share of the members late at once; a cause beneath them would always hit the same ones."""
RECENT_S = 900.0
SPIKES_MIN, SPIKES_SHARE_MAX = 6, 0.4
"""Members were late at least this many times, and no member more often than this share of them."""
LATELY_SHARE = 1 / 3
MORE_SIGMAS = 3.5
"""For the mean lateness in turn; in addition it must be a different member each time."""
CHANGED_ROWS_MIN, CHANGED_T_MIN = 4, 5.0


def wandering(members: Panel, usual: Floats, least: float, run: str) -> Iterator[Finding]:
    """In nearly every step a different member is late; or members are late in turn, but in fewer steps."""
    away = members.values - usual
    rows = np.flatnonzero(np.isfinite(away).any(axis=1))
    if len(rows) < ROWS:
        return
    # The part by which a step is longer for all members makes none of them late.
    away[rows] -= np.maximum(np.nanmedian(away[rows], axis=1, keepdims=True), 0.0)
    away = np.nan_to_num(away, nan=-1.0)
    holds, is_late = _changing(away[rows] > least, away[rows])
    hits = np.flatnonzero(holds)
    is_over = not len(hits) or hits[-1] + ROWS - 1 < len(rows) - 2
    restless = tuple(_restless(members, usual, least, run))
    if not len(hits) or (is_over and restless):
        yield from restless
        return
    first = hits[0] + np.flatnonzero(is_late[hits[0] : hits[0] + ROWS])[0]
    last = hits[-1] + ROWS - 1
    seen = slice(first, last + 1)
    value = float(np.median(away[rows][seen].max(axis=1)[is_late[seen]]))
    yield _finding(
        run,
        value,
        max(min(0.99, float(is_late[seen].mean())), *(one.confidence for one in restless), 0.0),
        since_ns=int(members.times_ns[rows[first]]),
        noticed_ns=int(members.times_ns[rows[hits[0] + ROWS - 1]]),
        until_ns=int(members.times_ns[rows[last]]) if is_over else None,
    )


def _changing(late: NDArray[np.bool_], away: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each stretch of steps, whether the late member changes within it; and the steps with such a member.

    A member that is late in most steps of a stretch has a reason of its own, and does not count there.
    """
    few = max(2, round(SHARE * late.shape[1]))
    stretches = len(late) - ROWS + 1
    holds, is_late = np.zeros(stretches, np.bool_), np.zeros(len(late), np.bool_)
    for start in range(stretches):
        steps = late[start : start + ROWS]
        fleeting = steps & (steps.sum(axis=0) <= ROWS // 2)
        with_one = fleeting.any(axis=1) & (steps.sum(axis=1) <= few)
        who = np.where(fleeting, away[start : start + ROWS], -np.inf).argmax(axis=1)[with_one]
        if with_one.sum() >= LATE and len(set(who.tolist())) >= WHO:
            holds[start] = True
            is_late[start : start + ROWS] |= with_one
    return holds, is_late


def _restless(members: Panel, usual: Floats, least: float, run: str) -> Iterator[Finding]:
    """Members late in turn, not in every step or many at once, but more than before.

    What counts is a member's distance from its own usual time and from the other members: a member that is
    late all the time, and a step that is long for all, do not count.
    """
    if len(members.subjects) < WHO:
        return
    since_ns = members.times_ns[-1] - round(RECENT_S * 1e9)
    past = members.values[compare.past_rows(members.values)] if members.before is None else members.before
    now = members.values[members.times_ns >= since_ns]
    before, apart = _apart(past, usual), _apart(now, usual)
    if len(before) < ROWS or len(apart) < ROWS:
        return
    most, was = apart.max(axis=1), before.max(axis=1)
    noise = np.sqrt(most.var() / len(most) + was.var() / len(was))
    more = float(most.mean() - was.mean())
    spikes = Counter(apart.argmax(axis=1)[most > least].tolist())
    top = max(spikes.values(), default=0)
    if spikes.total() < SPIKES_MIN or top > SPIKES_SHARE_MAX * spikes.total() or len(spikes) < WHO:
        return
    lately = float(most[-max(ROWS, len(most) // 3) :].mean() - was.mean())
    if more < max(least / 2, MORE_SIGMAS * noise) or lately < LATELY_SHARE * more:
        return
    whole = np.flatnonzero(np.isfinite(members.values).any(axis=1))
    row, score = compare.change(_apart(members.values, usual).max(axis=1), CHANGED_ROWS_MIN)
    began = int(members.times_ns[whole[row if score > CHANGED_T_MIN else 0]])
    yield _finding(run, more, 0.9, since_ns=began, noticed_ns=max(began, int(since_ns)), until_ns=None)


def _apart(values: Floats, usual: Floats) -> NDArray[np.float64]:
    """By step and member: its distance from its usual time, less that of the other members in this step."""
    away = np.asarray(values - usual, np.float64)
    away = away[np.isfinite(away).any(axis=1)]
    if not len(away):
        return away
    away = np.where(np.isfinite(away), away, 0.0)
    away -= np.median(away, axis=1, keepdims=True)
    return np.asarray(away - np.median(away, axis=0), np.float64)


def _finding(
    run: str, value: float, sure: float, *, since_ns: int, noticed_ns: int, until_ns: int | None
) -> Finding:
    return Finding(
        sign="wandering",
        subject=run,
        metric=METRIC,
        method="peers",
        since_ns=since_ns,
        until_ns=until_ns,
        noticed_ns=noticed_ns,
        confidence=sure,
        value=value,
        unit="s",
        effect_s=value,
        note=SIGNS["wandering"],
    )
