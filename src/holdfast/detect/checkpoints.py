"""Checkpoints that take more of the run's time than they used to, according to the record.

Either the same bytes take longer, and something beneath is slow; or the run saves more often, or more bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from statistics import median

import msgspec
import numpy as np

from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.rules import SIGNS
from holdfast.detect.scene import Healthy, SavedCheckpoint, Scene
from holdfast.detect.signs import Sign

METRIC = "holdfast_run_checkpoint_seconds"
SLOWER = 1.4
"""Times as long, for the same bytes."""
SOONER = 0.6
LARGER = 1.25
STALL_S_MIN = 0.5
"""Shorter stalls are not reported."""
HISTORY_NS = 6 * 3_600 * 10**9
USUAL_SHARE = 1 / 3
"""The first third of `HISTORY_NS`, or of the time since the run began, gives the baseline."""
CONFIDENCE = 0.95


class _Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint: time since the one before (0 if unknown), its stall and its size (1 if unknown)."""

    from_ns: int
    gap_s: float
    stall_s: float
    size_bytes: int

    @property
    def pace(self) -> float:
        return self.stall_s / self.size_bytes


def _checkpoint_findings(look: Look) -> Iterator[Finding]:
    """Findings that last, or that ended within the window."""
    if look.scene is None:
        return iter(())
    window_ns, scene = look.panels.window_ns, look.scene
    if not scene.checkpoints:
        scene = msgspec.structs.replace(scene, checkpoints=_shown(look, scene.run))
    if scene.healthy is None and look.pace is not None and look.pace.step_s is not None:
        scene = msgspec.structs.replace(scene, healthy=Healthy(step_s=look.pace.step_s, is_declared=False))
    found = _findings(scene, window_ns[1] - 1)
    return (one for one in found if one.until_ns is None or one.until_ns >= window_ns[0])


def _shown(look: Look, run: str) -> tuple[SavedCheckpoint, ...]:
    """Checkpoints by the run's metric, one for each new value, if the record has none."""
    end_ns = look.panels.window_ns[1]
    panel = look.panels.of_run(METRIC, run, (end_ns - HISTORY_NS, end_ns))
    if panel is None:
        return ()
    values = panel.values[:, 0]
    known = np.flatnonzero(np.isfinite(values))
    new = known[1:][np.diff(values[known]) != 0]
    return tuple(
        SavedCheckpoint(
            from_ns=int(panel.times_ns[row]) - round(float(values[row]) * 1e9),
            stall_s=float(values[row]),
            size_bytes=None,
        )
        for row in new.tolist()
    )


def _findings(scene: Scene, now_ns: int) -> Iterator[Finding]:
    stalls = _stalls(scene, now_ns)
    if len(stalls) < 2:
        return
    known = _known(stalls, now_ns)
    pace, gap_s = _usual(known, lambda one: one.pace), _usual(known, lambda one: one.gap_s)
    size = _usual(known, lambda one: one.size_bytes)
    slow, over_ns = _last(stalls, [one.pace > SLOWER * pace and one.stall_s >= STALL_S_MIN for one in stalls])
    if slow:
        usual_s = pace * slow[0].size_bytes
        stall_s = median(one.stall_s for one in slow)
        yield _finding(
            scene,
            "slow-checkpoint",
            since_ns=slow[0].from_ns,
            until_ns=over_ns,
            noticed_ns=slow[0].from_ns + round(min(slow[0].stall_s, SLOWER * usual_s) * 1e9),
            value=stall_s,
            usual=usual_s,
            effect_s=_per_step(scene, stall_s - usual_s, median(one.gap_s for one in slow)),
        )
    wrong = [_is_soon(one, gap_s) or one.size_bytes > LARGER * size for one in stalls]
    more, over_ns = _last(stalls, wrong)
    if more:
        now_s, stall_s = (
            median(figure) for figure in zip(*((one.gap_s, one.stall_s) for one in more), strict=True)
        )
        yield _finding(
            scene,
            "frequent-checkpoints",
            since_ns=more[0].from_ns,
            until_ns=over_ns,
            noticed_ns=more[0].from_ns + (0 if _is_soon(more[0], gap_s) else round(more[0].stall_s * 1e9)),
            value=now_s,
            usual=gap_s,
            effect_s=_per_step(scene, stall_s - pace * size * (now_s / gap_s if gap_s else 1.0), now_s),
        )


def _is_soon(one: _Stall, gap_s: float) -> bool:
    return 0 < one.gap_s < SOONER * gap_s


def _stalls(scene: Scene, now_ns: int) -> list[_Stall]:
    """All stalls. An unfinished one counts with its time so far, once that exceeds the last one's."""
    stalls: list[_Stall] = []
    # The time it took to start is not an interval between checkpoints.
    before_ns = scene.stepping_ns or scene.began_ns
    for saved in scene.checkpoints:
        last = stalls[-1] if stalls else None
        size = saved.size_bytes or (last.size_bytes if last else 1)
        stall_s = (now_ns - saved.from_ns) / 1e9 if saved.stall_s is None else saved.stall_s
        if saved.stall_s is not None or (last is not None and stall_s > last.stall_s):
            gap_s = max(0.0, (saved.from_ns - before_ns) / 1e9)
            stalls.append(_Stall(from_ns=saved.from_ns, gap_s=gap_s, stall_s=stall_s, size_bytes=size))
            before_ns = saved.from_ns
    return stalls


def _known(stalls: Sequence[_Stall], now_ns: int) -> Sequence[_Stall]:
    """The stalls that give the baseline: at least the first."""
    recent = [one for one in stalls if one.from_ns >= now_ns - HISTORY_NS] or stalls[-1:]
    first_ns = recent[0].from_ns - round(recent[0].gap_s * 1e9)
    until_ns = first_ns + USUAL_SHARE * (now_ns - first_ns)
    return [one for one in recent if one.from_ns <= until_ns] or recent[:1]


def _usual(known: Sequence[_Stall], figure: Callable[[_Stall], float]) -> float:
    """The median by time: a quarter of an hour with one checkpoint counts as much as one with thirty."""
    ordered = sorted(known, key=figure)
    half_s, passed_s = sum(one.gap_s for one in ordered) / 2, 0.0
    for one in ordered:
        passed_s += one.gap_s
        if passed_s >= half_s:
            break
    return figure(one)


def _last(stalls: Sequence[_Stall], wrong: Sequence[bool]) -> tuple[Sequence[_Stall], int | None]:
    """The last consecutive stalls that are wrong, and when the next good one began, if there was one."""
    end = max((number + 1 for number, flag in enumerate(wrong) if flag), default=0)
    count = sum(1 for _ in takewhile(bool, reversed(wrong[:end])))
    return stalls[end - count : end], stalls[end].from_ns if end < len(stalls) else None


def _per_step(scene: Scene, lost_s: float, gap_s: float) -> float | None:
    """The extra time per step of a healthy run, which makes fewer steps in that time."""
    healthy_s = gap_s - lost_s
    return None if scene.healthy is None or healthy_s <= 0 else lost_s * scene.healthy.step_s / healthy_s


def _finding(
    scene: Scene,
    sign: Sign,
    *,
    since_ns: int,
    until_ns: int | None,
    noticed_ns: int,
    value: float,
    usual: float,
    effect_s: float | None,
) -> Finding:
    return Finding(
        sign=sign,
        subject=scene.run,
        metric=METRIC,
        method="past",
        since_ns=since_ns,
        until_ns=until_ns,
        noticed_ns=noticed_ns,
        confidence=CONFIDENCE,
        value=value,
        usual=usual,
        unit="s",
        effect_s=effect_s,
        note=SIGNS[sign],
    )


CHECKPOINTS = FunctionDetector(
    (Sense("slow-checkpoint"), Sense("frequent-checkpoints")), _checkpoint_findings
)
