"""Runs that make no steps: no new step for longer than usual, and which member stopped first.

The time for which a step is shown is counted in readings, so a missed scrape is not a pause. Pauses that the
run had before (evaluations, saves) are usual. If GPU readings exist, they tell a pause in which GPUs work
from a hang in which they wait.
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
"""A run without a new step for this many step times, and at least `SHORTEST_S`, is reported."""
SHOWN_TIMES = 2.0
"""Readings must show the last step for this many step times: a scrape that is missed shows nothing."""
USUAL_TIMES = 1.5
"""Times the longest pause that the run had before."""
PAUSE_S_MAX = 600.0
"""A longer pause was an outage, and does not make the next one more usual."""
KNOWN_S = 3_600.0
YOUNG_S = 180.0
"""A run known for less than `KNOWN_S` may do something for the first time that it does every hour. The time
allowed for that shrinks with every minute in which it did not happen.
"""
WORKING_S = 900.0
"""GPUs that work as usual run an evaluation. No evaluation takes longer than this."""
SAVING_TIMES, SAVING_S = 3.0, 300.0
PAUSES = frozenset({"launch", "init", "load", "eval", "check", "stop"})
"""Recorded phases in which a run makes no steps."""
BROKEN_S = 60.0
WORKING_SHARE = 0.6
"""Share of the usual activity: in a hung run the tensor cores stand still, and power is below half."""
ACTIVITY = {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.1, "DCGM_FI_DEV_POWER_USAGE": WORKING_SHARE}
"""Metrics of activity, with the share of the usual value below which a GPU stands still."""
ALL_SHARE, IDLE_ROWS_MIN = 0.95, 2
MEMBER_STEPS, MEMBER_COMPUTE = "holdfast_member_steps_total", "holdfast_member_compute_seconds"
MEMBER_WAITING, MEMBER_IN_STEP = "holdfast_member_waiting", "holdfast_member_in_step"
HOLDS_UP = "the others wait, and it does not"
FIRST_SHARE_MAX = 0.5
FIRST_PAUSE_S = 60.0
"""GPUs that stand still for no longer may be saving, in a run without earlier pauses."""
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
    # No run evaluates or saves while some members have yet to finish the step. Waiting members prove this
    # only inside a step: they also wait for an evaluation on rank 0.
    is_broken = (
        any(one.metric != MEMBER_WAITING for one in first)
        or _is_broken(look, scene.run, last_ns)
        or _stands_in_step(look, scene.run)
    )
    working = 0.0 if is_broken else _working_share(look, scene.run, last_ns)
    if _is_its_end(scene, last_ns, working):
        return
    least_s = _patience_s(pace, scene, working, look.panels.window_ns)
    is_usual = held_s < SHOWN_TIMES * pace.step_s
    is_usual |= held_s <= USUAL_TIMES * _longest_pause_s(pace) or _is_repeated(held_s, pace)
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


def _is_its_end(scene: Scene, last_ns: int, working: float | None) -> bool:
    """Whether the time after the last step belongs to the run's end, as it does in the ledger.

    A run that failed stood still until it failed. One that was stopped is known to have stood only if its
    GPUs did, for longer than it takes to save and to shut down.
    """
    ended = scene.ended
    if ended is None or ended.occurred_ns < last_ns or ended.outcome == "failed":
        return False
    is_idle = working is not None and working < WORKING_SHARE
    return ended.outcome == "completed" or not (is_idle and ended.occurred_ns - last_ns >= WORKING_S * 1e9)


def _patience_s(pace: Pace, scene: Scene, working: float | None, window_ns: tuple[int, int]) -> float:
    """How long the run may go without a step before that is reported."""
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
        return least_s  # The run was already slow, and has become worse.
    return max(least_s, YOUNG_S * (1.0 - known_s / KNOWN_S))


def _stands_still(look: Look, pace: Pace, scene: Scene) -> bool:
    """Whether nearly all GPUs of the run went idle at once, for longer than ever before and longer than any
    earlier pause. If steps take minutes, this shows long before the step is late.
    """
    known_s = (int(pace.shown_ns[-1]) - int(pace.shown_ns[0])) / 1e9
    is_saving = bool(scene.checkpoints) and scene.checkpoints[-1].stall_s is None
    is_pause = is_saving or scene.phase in PAUSES or _is_repeated(PAUSE_S_MAX, pace)
    if known_s < KNOWN_S or is_pause or pace.step_s is None:
        return False
    pause_s = USUAL_TIMES * max(0.0, _longest_pause_s(pace) - pace.step_s)
    if pause_s < SHORTEST_S:
        pause_s = FIRST_PAUSE_S  # The run may be saving for the first time.
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
    """By reading and GPU of the run: its activity as a share of the usual."""
    panel = look.panels.value(metric)
    columns = (
        [] if panel is None else [n for n, name in enumerate(panel.subjects) if look.run_of(name) == run]
    )
    if panel is None or not columns:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        return panel.times_ns, panel.values.take(columns, axis=1) / panel.usual[columns]


def _held_s(pace: Pace) -> NDArray[np.float64]:
    """For each step but the last: how long it was shown."""
    return np.asarray(pace.held_ns[:-1] / 1e9, np.float64)


def _longest_pause_s(pace: Pace) -> float:
    held_s = _held_s(pace)
    return float(max(held_s[held_s <= PAUSE_S_MAX], default=0.0))


def _is_repeated(held_s: float, pace: Pace) -> bool:
    """Whether the run has had two pauses at least this long: even outages that keep recurring are usual."""
    longer = np.sort(_held_s(pace))[-2:]
    return len(longer) == 2 and held_s <= float(longer[0])


def _is_broken(look: Look, run: str, since_ns: int) -> bool:
    """Whether hardware of the run failed when it stopped."""
    return any(
        one.grave and look.run_of(one.subject) == run and one.since_ns >= since_ns - round(BROKEN_S * 1e9)
        for one in XID_DETECTOR.find(look)
    )


def _stands_in_step(look: Look, run: str) -> bool:
    """Whether members wait for one that is inside a step. Between steps it could be evaluating."""
    waiting, in_step = (look.panels.of_run(metric, run) for metric in (MEMBER_WAITING, MEMBER_IN_STEP))
    if waiting is None or in_step is None or waiting.subjects != in_step.subjects:
        return False
    waits, steps = _last_known(waiting.values) > 0, _last_known(in_step.values) > 0
    return bool((waits & steps).any() and (~waits & steps).any())


def _working_share(look: Look, run: str, since_ns: int) -> float | None:
    """The run's GPU activity at the last readings as a share of the usual; None if unknown. since_ns:
    readings from before the last step say nothing about now.
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
    """Members that others wait for; else those with fewer steps, or whose last change came earlier."""
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
"""Metrics that tell how far each member got: the lower the figure, the earlier it stopped."""

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
