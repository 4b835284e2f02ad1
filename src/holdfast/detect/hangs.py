"""A run that makes no steps: no new one for longer than is usual for it, and who stopped first.

How long the same step is shown is counted in readings, so that a scrape that is missed is no pause. Pauses
that the run had before (evaluations, saves) are usual. Where the GPUs are seen, they tell a pause in which
they work from a hang in which they wait.
"""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.devices import XID_DETECTOR
from holdfast.detect.finding import Finding
from holdfast.detect.pace import STEP, Pace, slow_steps
from holdfast.detect.panel import Panel
from holdfast.detect.rules import SIGNS
from holdfast.detect.scene import Scene

STEPS_MIN = 6
SHORTEST_S = 20.0
STEP_TIMES = 2.5
"""So many steps' time without one, and at least the shortest, is worth a word."""
USUAL_TIMES = 1.5
"""Of the longest pause that the run had before."""
PAUSE_S_MAX = 600.0
"""A longer one was no pause but an outage, and makes the next one no more usual."""
KNOWN_S = 3_600.0
YOUNG_S = 180.0
"""A run of which less than the former is known may do for the first time what it does every hour. How long
that may take becomes less with every minute that it has not done it.
"""
WORKING_S = 900.0
"""GPUs that work as usual evaluate something; for longer than this nobody does."""
SAVING_TIMES, SAVING_S = 3.0, 300.0
PAUSES = frozenset({"launch", "init", "load", "eval", "check", "stop"})
"""Phases, by the record, in which a run makes no steps."""
BROKEN_S = 60.0
WORKING_SHARE = 0.6
"""Of what is usual: tensor cores of a hung run stand still, and its power is less than half."""
ACTIVITY = {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.1, "DCGM_FI_DEV_POWER_USAGE": WORKING_SHARE}
"""With the share of what is usual below which a GPU stands still."""
ALL_SHARE, IDLE_ROWS_MIN = 0.95, 2
MEMBER_STEPS, MEMBER_COMPUTE = "holdfast_member_steps_total", "holdfast_member_compute_seconds"
MEMBER_WAITING, MEMBER_IN_STEP = "holdfast_member_waiting", "holdfast_member_in_step"
HOLDS_UP = "the others wait, and it does not"
FIRST_SHARE_MAX = 0.5
FIRST_PAUSE_S = 60.0
"""GPUs that stand for no longer may do so for a save, where none was seen before."""
CONFIRMED, LIKELY = 0.97, 0.6


def _hung(look: Look) -> Iterator[Finding]:
    scene, pace = look.scene, look.pace
    if scene is None or pace is None or pace.step_s is None or len(pace.shown_ns) < STEPS_MIN:
        return
    now_ns = look.panels.window_ns[1]
    last_ns = int(pace.shown_ns[-1])
    held_s, elapsed_s = (pace.read_ns - last_ns) / 1e9, (now_ns - last_ns) / 1e9
    if held_s <= 0 or pace.is_gone(now_ns):
        return
    first = tuple(_stopped_first(look, scene.run, last_ns))
    # Nobody evaluates or saves while some members have yet to finish the step. That others wait shows it only
    # inside a step: they wait for an evaluation of rank 0, too.
    is_broken = (
        any(one.metric != MEMBER_WAITING for one in first)
        or _is_broken(look, scene.run, last_ns)
        or _stands_in_step(look, scene.run)
    )
    working = 0.0 if is_broken else _working_share(look, scene.run, last_ns)
    least_s = _patience_s(pace, scene, working, look.panels.window_ns)
    is_usual = held_s <= USUAL_TIMES * _longest_pause_s(pace) or _is_repeated(held_s, pace)
    if elapsed_s < least_s or is_usual:
        if working is None or working >= WORKING_SHARE or not _stands_still(look, pace, scene):
            return
        least_s = elapsed_s
    noticed_ns = min(now_ns - 1, last_ns + round(least_s * 1e9))
    yield Finding(
        sign="no-step",
        subject=scene.run,
        metric=STEP,
        method="past",
        since_ns=last_ns,
        noticed_ns=noticed_ns,
        confidence=CONFIRMED if working is not None else LIKELY,
        value=elapsed_s,
        usual=pace.step_s,
        unit="s",
        effect_s=elapsed_s,
        note=SIGNS["no-step"],
        grave=working is not None,
    )
    yield from (msgspec.structs.replace(one, noticed_ns=noticed_ns) for one in first)


def _patience_s(pace: Pace, scene: Scene, working: float | None, window_ns: tuple[int, int]) -> float:
    """For how long no step is no news."""
    least_s = max(SHORTEST_S, STEP_TIMES * (pace.step_s or 0.0))
    if scene.checkpoints and scene.checkpoints[-1].stall_s is None:
        stalls = [one.stall_s for one in scene.checkpoints if one.stall_s is not None]
        return max(SAVING_S, SAVING_TIMES * max(stalls, default=0.0))
    if scene.phase in PAUSES and working != 0.0:
        return max(WORKING_S, least_s)
    if working is not None and working >= WORKING_SHARE:
        return max(WORKING_S, least_s)
    known_s = (int(pace.shown_ns[-1]) - int(pace.shown_ns[0])) / 1e9
    if working == 0.0 or any(one.until_ns is None for one in slow_steps(pace, window_ns)):
        return least_s  # what was wrong already has become worse
    return max(least_s, YOUNG_S * (1.0 - known_s / KNOWN_S))


def _stands_still(look: Look, pace: Pace, scene: Scene) -> bool:
    """Whether nearly all GPUs of the run went idle at once, for longer than they ever did and the run ever
    paused: in a step of minutes that is seen long before the step is late.
    """
    known_s = (int(pace.shown_ns[-1]) - int(pace.shown_ns[0])) / 1e9
    is_saving = bool(scene.checkpoints) and scene.checkpoints[-1].stall_s is None
    is_pause = is_saving or scene.phase in PAUSES or _is_repeated(PAUSE_S_MAX, pace)
    if known_s < KNOWN_S or is_pause or pace.step_s is None:
        return False
    pause_s = USUAL_TIMES * max(0.0, _longest_pause_s(pace) - pace.step_s)
    if pause_s < SHORTEST_S:
        pause_s = FIRST_PAUSE_S  # it may save for the first time
    for metric, idle_share in ACTIVITY.items():
        if (share := _shares(look, metric, scene.run)) is not None:
            times_ns, shares = share
            known = np.isfinite(shares).sum(axis=1)
            with np.errstate(invalid="ignore"):
                idle = (shares < idle_share).sum(axis=1) >= ALL_SHARE * np.maximum(known, 1)
            idle, times_ns = idle[known > 0], times_ns[known > 0]
            busy = np.flatnonzero(~idle)
            if not len(busy):
                return False
            lasted, before = len(idle) - 1 - int(busy[-1]), int(np.diff(busy).max(initial=1)) - 1
            idle_s = (look.panels.window_ns[1] - int(times_ns[busy[-1]])) / 1e9
            return (
                lasted >= IDLE_ROWS_MIN
                and lasted > USUAL_TIMES * before
                and idle_s >= max(SHORTEST_S, pause_s)
            )
    return False


def _shares(look: Look, metric: str, run: str) -> tuple[NDArray[np.int64], NDArray[np.floating]] | None:
    """By reading and GPU of the run: how much of its usual work it does."""
    panel = look.panels.value(metric)
    columns = (
        [] if panel is None else [n for n, name in enumerate(panel.subjects) if look.run_of(name) == run]
    )
    if panel is None or not columns:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        return panel.times_ns, panel.values.take(columns, axis=1) / panel.usual[columns]


def _held_s(pace: Pace) -> NDArray[np.float64]:
    """Of each step but the last: for how long it was shown again and again."""
    return np.asarray(pace.held_ns[:-1] / 1e9, np.float64)


def _longest_pause_s(pace: Pace) -> float:
    held_s = _held_s(pace)
    return float(max(held_s[held_s <= PAUSE_S_MAX], default=0.0))


def _is_repeated(held_s: float, pace: Pace) -> bool:
    """Outages that come again and again are usual as well, though nobody should have them."""
    longer = np.sort(_held_s(pace))[-2:]
    return len(longer) == 2 and held_s <= float(longer[0])


def _is_broken(look: Look, run: str, since_ns: int) -> bool:
    """Whether hardware of the run broke when it stopped."""
    return any(
        one.grave and look.run_of(one.subject) == run and one.since_ns >= since_ns - round(BROKEN_S * 1e9)
        for one in XID_DETECTOR.find(look)
    )


def _stands_in_step(look: Look, run: str) -> bool:
    """Whether members wait for one that is in the middle of a step. Between steps it might evaluate."""
    waiting, in_step = (look.panels.of_run(metric, run) for metric in (MEMBER_WAITING, MEMBER_IN_STEP))
    if waiting is None or in_step is None or waiting.subjects != in_step.subjects:
        return False
    waits, steps = _last_known(waiting.values) > 0, _last_known(in_step.values) > 0
    return bool((waits & steps).any() and (~waits & steps).any())


def _working_share(look: Look, run: str, since_ns: int) -> float | None:
    """How much of their usual work the run's GPUs do at the last readings; None where nobody knows. since_ns:
    what they did before the last step says nothing of what they do now.
    """
    for metric in ACTIVITY:
        if (share := _shares(look, metric, run)) is not None:
            times_ns, shares = share
            last = _last_known(shares[times_ns > since_ns]) if (times_ns > since_ns).any() else shares[:0]
            if np.isfinite(last).any():
                return float(np.nanmedian(last))
    return None


def _last_known(values: NDArray[np.floating]) -> NDArray[np.floating]:
    known = np.isfinite(values)
    last = len(values) - 1 - np.argmax(known[::-1], axis=0)
    return np.where(known.any(axis=0), values[last, np.arange(values.shape[1])], np.nan)


def _stopped_first(look: Look, run: str, since_ns: int) -> Iterator[Finding]:
    """Members that others wait for; else those that made fewer steps, or showed their last one earlier."""
    for metric, figure in _PROGRESS:
        panel = look.panels.of_run(metric, run)
        made = None if panel is None else figure(panel)
        if made is not None and np.fmin.reduce(made) < np.fmax.reduce(made):
            break
    else:
        return
    assert panel is not None
    most = float(np.fmax.reduce(made))
    with np.errstate(invalid="ignore"):
        first = np.flatnonzero(made < most)
    if not 0 < len(first) <= FIRST_SHARE_MAX * len(panel.subjects):
        return
    for column in first.tolist():
        yield Finding(
            sign="stopped-first",
            subject=panel.subjects[column],
            metric=panel.metric,
            method="peers",
            since_ns=since_ns,
            noticed_ns=since_ns,
            confidence=CONFIRMED * float(panel.trust[column]),
            value=float(made[column]),
            usual=most,
            note=HOLDS_UP if metric == MEMBER_WAITING else SIGNS["stopped-first"],
        )


def _last_shown(panel: Panel) -> NDArray[np.floating]:
    return _last_known(panel.values)


def _last_changed_ns(panel: Panel) -> NDArray[np.floating]:
    changed = np.diff(panel.values, axis=0, prepend=np.nan)
    moved = np.isfinite(changed) & (changed != 0)
    last = len(moved) - 1 - np.argmax(moved[::-1], axis=0)
    return np.asarray(np.where(moved.any(axis=0), panel.times_ns[last], panel.times_ns[0]), np.float64)


_PROGRESS: tuple[tuple[str, Callable[[Panel], NDArray[np.floating]]], ...] = (
    (MEMBER_WAITING, _last_shown),
    (MEMBER_STEPS, _last_shown),
    (MEMBER_COMPUTE, _last_changed_ns),
)
"""What tells how far each member got: the less, the earlier it stopped."""

HANGS = FunctionDetector(
    (
        Sense("no-step", (STEP,)),
        Sense("no-step", (STEP, MEMBER_WAITING, MEMBER_IN_STEP)),
        Sense("stopped-first", (MEMBER_WAITING,)),
        Sense("stopped-first", (MEMBER_STEPS,)),
        Sense("stopped-first", (MEMBER_COMPUTE,)),
    ),
    _hung,
)
