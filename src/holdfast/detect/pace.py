"""The step times of a run over hours: what is usual, since when steps take longer, and whether steps still
come.

A run is one series, so its history costs nothing. The usual step time is the quickest plateau that the run
kept for a while in the last hours, not its pace some minutes ago. A plateau is a mean over steps, cut where
the mean changes.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.finding import Finding, Method
from holdfast.detect.panel import MARGIN_S, Panel, Panels
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.scene import Healthy, Scene
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats
from holdfast.signals.stepped import COUNTED

STEP, LANES = "holdfast_run_step_seconds", "holdfast_run_lanes"
HISTORY_S = 6 * 3_600.0
SLOWER_SHARE = 0.03
"""A step that is longer by less is not reported."""
SLOWER_SHARE_ESTIMATED = 0.1
"""The same if no step time was declared; the ledger's report leaves out smaller slowdowns, too."""
PAUSE_TIMES = 2.0
"""A lone step this many times as long as its neighbours contained an evaluation or a save."""
NEIGHBOURS = 15
PAUSE_ROW_MAX = 2
"""Up to this many long steps in a row are a pause; more of them are slow steps."""
CROWD_STEPS, CROWD_PAUSES, CROWD_TIMES, CROWD_RATE = 40, 4, 2.0, 0.04
"""Within `CROWD_STEPS` steps, at least `CROWD_PAUSES` long ones that make up `CROWD_RATE` of all steps,
`CROWD_TIMES` times as often as before, are slow steps and not pauses.
"""
CROWD_KNOWN_S, CROWD_EVEN_S = 1_800.0, 3_600.0
EVEN_SHARE = 0.2
MARGIN_S_MAX = 1_500.0
WIDE_TIMES = 1.2
"""Times the distance of one step in ten from most steps: such distances are usual."""
JUMP_FROM, JUMP_TO = 1 / 3, 0.6
"""Shares of the present slowdown: a rise from below the first to above the second at once is a jump."""
STARTING_S = 300.0
"""Steps are slow at first: caches are cold, kernels are being compiled, the data loader fills up."""
PLATEAU_T_MIN = 6.0
"""For a change of plateau, in standard errors: among thousands of steps no change is this large by chance."""
PLATEAU_STEPS_MIN = 3
PLATEAUS_MAX = 64
PART_STEPS_MIN, PART_T_MIN = 6, 8.0
"""Neighbouring parts of so many steps or more differ if their means are this many standard errors apart."""
KEPT_STEPS_MIN, KEPT_S_MIN = 12, 300.0
"""A plateau that was kept for this long gives the baseline."""
RECENT_S = 600.0
"""The present step time is the mean over this time."""
CREEPING_S_MIN, CREEPING_PLATEAUS_MIN = 900.0, 4
GONE_SCRAPES = 3
SURE_ERRORS = 4.0
"""For a mean against healthy steps: if single steps vary by 5 to 10 %, three long ones say little."""
ALIKE_MAX = 0.9
SETTLING_S, SETTLED_S = 90.0, 390.0
"""Steps become longer within the first of these times, and show by how much until the second."""
SEEN_S_MIN = 120.0
"""A run that was quick for a shorter time was slow from its beginning."""


class PacePlateau(NamedTuple):
    """Steps from row `first` to before row `end` that take the same time, apart from noise."""

    first: int
    end: int
    step_s: float


class Pace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The steps of a run.

    steps     each step once, without pauses, over the last hours; crowded: the rows with far more long steps
              than at other times, which are kept
    errors_s  by row, by how much the step may be too long: if it is counted between readings, it was made at
              an unknown moment before the reading that shows it
    step_s    the usual step time; None if there are too few steps. method: where it comes from
    shown_ns  when each new step was first seen, pauses included; held_ns: how long it was shown
    read_ns   when the run's step was last read at all, whichever step it was; every_ns: how often it is read
    """

    steps: Panel
    crowded: NDArray[np.bool_]
    errors_s: NDArray[np.float64]
    step_s: float | None
    method: Method
    plateaus: tuple[PacePlateau, ...]
    shown_ns: NDArray[np.int64]
    held_ns: NDArray[np.int64]
    read_ns: int
    every_ns: int

    def is_gone(self, now_ns: int) -> bool:
        """Whether the run stopped reporting: it ended, or its exporter did."""
        return now_ns - self.read_ns > GONE_SCRAPES * self.every_ns


def pace_of(panels: Panels, scene: Scene) -> Pace | None:
    """The run's pace; None if the signals have no step of the run in the window."""
    window_ns = panels.window_ns
    shown = panels.of_run(STEP, scene.run)
    if shown is None:
        return None
    since_ns = min(window_ns[0], window_ns[1] - round(HISTORY_S * 1e9))
    history = panels.of_run(STEP, scene.run, (since_ns, window_ns[1])) or shown
    new = new_steps(history)
    lanes, counted = (panels.of_run(name, scene.run, (since_ns, window_ns[1])) for name in (LANES, COUNTED))
    alike = _as_large(once(history, new), lanes)
    steps, crowded = without_pauses(_since_declared(alike, scene.healthy))
    plateaus = tuple(plateaus_of(steps.values[:, 0]))
    past_s = _kept(plateaus, steps.times_ns)
    if past_s is None:
        early = steps.values[compare.past_rows(steps.values), 0]
        early = early[np.isfinite(early)]
        past_s = float(early.mean()) if len(early) >= compare.PAST_KNOWN_MIN else None
    step_s, method = _usual_step(past_s, scene.healthy)
    if counted is not None:
        history, new = counted, new_steps(counted)  # step times are means over several steps
    read = history.times_ns[np.isfinite(history.values[:, 0])]
    last = np.searchsorted(read, np.append(new[1:], read[-1] + 1)) - 1 if len(new) else new
    return Pace(
        steps=steps,
        crowded=crowded,
        errors_s=_errors_s(steps, counted),
        step_s=step_s,
        method=method,
        plateaus=plateaus,
        shown_ns=new,
        held_ns=read[last] - new,
        read_ns=int(read[-1]) if len(read) else 0,
        every_ns=compare.step_ns(read if len(read) > 1 else history.times_ns),
    )


def new_steps(steps: Panel) -> NDArray[np.int64]:
    """When the run showed each new step for the first time."""
    shown = steps.values[:, 0]
    known = np.flatnonzero(np.isfinite(shown))
    is_new = np.concatenate(([True], np.diff(shown[known]) != 0)) if len(known) else np.empty(0, np.bool_)
    return steps.times_ns[known[is_new]]


def once(members: Panel, new_ns: NDArray[np.int64]) -> Panel:
    """Each step once: a scrape that shows the same step again is not another observation."""
    seen = np.searchsorted(new_ns, members.times_ns, side="right")
    again = np.concatenate(([False], np.diff(seen) == 0))
    return msgspec.structs.replace(members, values=np.where(again[:, None], np.nan, members.values))


def _errors_s(steps: Panel, counted: Panel | None) -> NDArray[np.float64]:
    """By row, by how much the step may be too long. It was made after the reading before, and the next step
    after its own.
    """
    errors_s = np.zeros(len(steps.times_ns))
    rows = np.flatnonzero(np.isfinite(steps.values[:, 0]))
    if counted is None or not len(rows):
        return errors_s
    read = np.flatnonzero(np.isfinite(counted.values[:, 0]))
    places = np.searchsorted(counted.times_ns[read], steps.times_ns[rows], side="right") - 1
    counts = counted.values[read[np.maximum(places, 0)], 0]
    many = np.maximum(1.0, np.diff(counts, prepend=counts[0] - 1.0))
    gaps_s = np.diff(counted.times_ns[read], prepend=0)[np.maximum(places, 0)] / 1e9
    errors_s[rows] = np.minimum(gaps_s, steps.values[rows, 0]) / many
    return errors_s


def _as_large(steps: Panel, lanes: Panel | None) -> Panel:
    """The steps as if all had as many lanes as the last one: a larger batch takes longer, and is not slow.

    The correction is at most the ratio of the lanes. A smaller batch need not be quicker.
    """
    known = np.empty(0, np.int64) if lanes is None else np.flatnonzero(lanes.values[:, 0] > 0)
    if lanes is None or not len(known):
        return steps
    many = lanes.values[known, 0].astype(np.float64)
    rows = np.searchsorted(lanes.times_ns[known], steps.times_ns, side="right") - 1
    of_step, values = many[np.maximum(rows, 0)], np.array(steps.values, np.float64)
    seen = np.isfinite(values[:, 0])
    now = values[seen & (of_step == many[-1]), 0]
    for fewer in np.unique(many[many < many[-1]]):
        before = values[seen & (of_step == fewer), 0]
        if len(before) and len(now):
            longer = float(np.median(now)) / float(np.median(before))
            values[of_step == fewer] *= min(max(longer, 1.0), many[-1] / fewer)
    return msgspec.structs.replace(steps, values=values)


def _since_declared(steps: Panel, healthy: Healthy | None) -> Panel:
    """Leave out the steps from before the reference was declared: their length differs."""
    if healthy is None or not healthy.since_ns:
        return steps
    early = steps.times_ns < healthy.since_ns
    if np.isfinite(steps.values[~early, 0]).sum() < KEPT_STEPS_MIN:
        return steps
    return msgspec.structs.replace(steps, values=np.where(early[:, None], np.nan, steps.values))


def without_pauses(steps: Panel) -> tuple[Panel, NDArray[np.bool_]]:
    """Leave out lone steps that are far longer than their neighbours: they contained other work.

    If such steps come far more often than at other times, they slow the run down: these are kept, and their
    rows returned.
    """
    values = np.array(steps.values, np.float64)
    crowded = np.zeros(len(values), np.bool_)
    known = np.flatnonzero(np.isfinite(values[:, 0]))
    if len(known) <= NEIGHBOURS:
        return steps, crowded
    taken = values[known, 0]
    # The last step's neighbours are those before it: padded with itself, a pause would be its own neighbour.
    padded = np.pad(taken, NEIGHBOURS // 2, mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS)
    long = taken > PAUSE_TIMES * np.median(around, axis=1)
    starts = np.flatnonzero(long & ~np.concatenate(([False], long[:-1])))
    ends = np.flatnonzero(long & ~np.concatenate((long[1:], [False])))
    alone = [(one, last) for one, last in zip(starts.tolist(), ends.tolist(), strict=True)]
    alone = [(one, last) for one, last in alone if last - one < PAUSE_ROW_MAX]
    dense = _dense(np.array([one for one, _ in alone], np.int64), steps.times_ns[known])
    for first, last in alone:
        if not dense[first]:
            values[known[first : last + 1], 0] = np.nan
    crowded[known[dense]] = True
    return msgspec.structs.replace(steps, values=values), crowded


def _dense(at: NDArray[np.int64], times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """By step: whether pauses come far more often there than they did for a long time before.

    at: the steps that are pauses. How often a young run evaluates or saves is not known yet, so until
    `CROWD_EVEN_S` have passed, pauses at even intervals count as planned.
    """
    is_pause = np.zeros(len(times_ns), np.float64)
    is_pause[at] = 1.0
    dense = np.zeros(len(times_ns), np.bool_)
    parts = tuple(plateaus_of(is_pause, CROWD_STEPS // 2))
    for place, part in enumerate(parts):
        before = [one for one in parts[:place] if not dense[one.first]]
        steps = sum(one.end - one.first for one in before)
        lasted_s = float(times_ns[part.first] - times_ns[0]) / 1e9
        rate = sum(one.step_s * (one.end - one.first) for one in before) / max(1, steps)
        count = part.step_s * (part.end - part.first)
        is_often = part.step_s >= max(CROWD_RATE, CROWD_TIMES * rate) and count >= CROWD_PAUSES
        own = at[(at >= part.first) & (at < part.end)]
        is_planned = lasted_s < CROWD_EVEN_S and _is_even(times_ns[own])
        if is_often and steps >= CROWD_STEPS and lasted_s >= CROWD_KNOWN_S and not is_planned:
            dense[part.first : part.end] = True
    return dense


def _is_even(times_ns: NDArray[np.int64]) -> bool:
    """Whether these moments are evenly spaced."""
    apart = np.diff(times_ns)
    return len(apart) > 1 and float(apart.std()) < EVEN_SHARE * float(apart.mean())


def plateaus_of(values: Floats, least: int = PLATEAU_STEPS_MIN) -> Iterator[PacePlateau]:
    """The stretches between changes of the mean, in order of time. least: the minimum of steps in each."""
    known = np.flatnonzero(np.isfinite(values))
    taken = values[known].astype(np.float64)
    cuts, work = {0, len(taken)}, [(0, len(taken))]
    while work and len(cuts) < PLATEAUS_MAX:
        begin, end = work.pop()
        if (cut := _cut(taken[begin:end], least)) is not None:
            cuts.add(begin + cut)
            work += [(begin, begin + cut), (begin + cut, end)]
    marks = sorted(cuts)
    for begin, end in itertools.pairwise(marks):
        if end > begin:
            after = int(known[end]) if end < len(known) else len(values)
            yield PacePlateau(int(known[begin]), after, float(taken[begin:end].mean()))


def _cut(taken: NDArray[np.float64], least: int) -> int | None:
    """Where the mean changes the most, if it changes. Slowdowns that came and went hide each other among all
    steps, so a change between neighbouring parts counts as well.
    """
    best, score = compare.change(taken, least)
    if score > PLATEAU_T_MIN:
        return best
    best, sure, length = 0, PART_T_MIN, max(least, PART_STEPS_MIN)
    while 2 * length <= len(taken):
        row, score = compare.change_near(taken, length)
        if score > sure:
            best, sure = row, score
        length = length * 3 // 2
    return best or None


def _kept(plateaus: tuple[PacePlateau, ...], times_ns: NDArray[np.int64]) -> float | None:
    """The step time of the quickest plateau that lasted for a while."""
    long = [
        one.step_s
        for one in plateaus
        if one.end - one.first >= KEPT_STEPS_MIN
        and times_ns[one.end - 1] - times_ns[one.first] >= KEPT_S_MIN * 1e9
    ]
    return min(long, default=None)


def _usual_step(past_s: float | None, healthy: Healthy | None) -> tuple[float | None, Method]:
    """The step time of the past; or of a healthy step, if the past was already slower than that."""
    if healthy is None or past_s is None:
        return (past_s, "past") if healthy is None else (healthy.step_s, "reference")
    more = SLOWER_SHARE if healthy.is_declared else SLOWER_SHARE_ESTIMATED
    return (past_s, "past") if past_s <= healthy.step_s * (1 + more) else (healthy.step_s, "reference")


def slow_steps(pace: Pace, window_ns: tuple[int, int]) -> Iterator[Finding]:
    """Stretches of slow steps that last, or that ended within the window."""
    if pace.step_s is None:
        return
    steps, usual_s = pace.steps, pace.step_s
    values = steps.values[:, 0]
    good = np.flatnonzero(_of_plateaus(pace, lambda step_s: step_s <= (1 + SLOWER_SHARE) * usual_s))
    around = float(np.nanmedian(values[good])) if np.isfinite(values[good]).any() else usual_s
    scatter_s = compare.spread(steps.values, np.full(1, around, np.float32), good)
    # Steps of two kinds, such as short and long sequences, scatter more than the median distance shows. So do
    # step times counted between scrapes, where two or three steps fall between two scrapes.
    known = values[good][np.isfinite(values[good])]
    noise = _noise_of(known)
    wide_s = float(np.diff(np.quantile(known, (0.1, 0.5, 0.9))).max()) if len(known) else 0.0
    least = max(SLOWER_SHARE * usual_s, SIGMAS * scatter_s, WIDE_TIMES * wide_s)
    with np.errstate(invalid="ignore"):
        wrong = values - usual_s > least
    slow = _of_plateaus(pace, lambda step_s: step_s > (1 + SLOWER_SHARE) * usual_s)
    wrong |= (slow | pace.crowded) & np.isfinite(values)
    rule = Rule(
        sign="slow-step", metric=STEP, unit="s", note=SIGNS["slow-step"], against=pace.method, scrapes=3
    )
    usual = np.full(1, usual_s, np.float32)
    enough = np.full(1, SLOWER_SHARE * usual_s, np.float32)
    first_ns = int(steps.times_ns[np.isfinite(values)][0]) if np.isfinite(values).any() else 0
    for finding in findings(rule, steps, wrong[:, None], usual, enough, _bridge_s(steps)):
        until_ns = None if _is_last_known(pace, finding, window_ns[1]) else finding.until_ns
        is_over = until_ns is not None
        if until_ns is not None and until_ns < window_ns[0]:
            continue
        if is_over and pace.method == "past" and finding.since_ns - first_ns < STARTING_S * 1e9:
            continue
        seen = _sure(pace, _from_jump(pace, finding, usual_s), noise, rule.scrapes)
        if seen is None:
            continue
        value = _recent(steps, seen)
        yield msgspec.structs.replace(seen, value=value, effect_s=value - usual_s, until_ns=until_ns)


def _bridge_s(steps: Panel) -> float:
    """How long steps that are not slow may interrupt slow ones: for some steps at least, however long."""
    times_ns = steps.times_ns[np.isfinite(steps.values[:, 0])][-NEIGHBOURS:]
    return max(compare.BRIDGE_S, compare.BRIDGE_ROWS * compare.step_ns(times_ns) / 1e9)


class _Noise(NamedTuple):
    """For healthy steps: the deviation of one, as it counts in a mean over many, and the number of steps."""

    step_s: float
    steps: int


def _noise_of(known: Floats) -> _Noise:
    """The noise of healthy steps. Similar neighbours count as fewer: a busy machine slows several."""
    if len(known) < KEPT_STEPS_MIN:
        return _Noise(0.0, 1)
    away = known.astype(np.float64) - float(known.mean())
    deviation = float(away.std())
    alike = float((away[1:] * away[:-1]).mean()) / deviation**2 if deviation > 0 else 0.0
    alike = min(max(alike, 0.0), ALIKE_MAX)
    return _Noise(deviation * float(np.sqrt((1 + alike) / (1 - alike))), len(known))


def _sure(pace: Pace, finding: Finding, noise: _Noise, least: int) -> Finding | None:
    """The finding from where the mean changed, noticed when the mean was `SURE_ERRORS` standard errors off,
    and by more than its last step may be too long; None until then. A single long step just before it is left
    out.
    """
    steps = pace.steps
    until_ns = steps.times_ns[-1] if finding.until_ns is None else finding.until_ns
    is_of_it = (steps.times_ns >= finding.since_ns) & (steps.times_ns <= until_ns)
    rows = np.flatnonzero(is_of_it & np.isfinite(steps.values[:, 0]))
    if not len(rows):
        return finding
    taken, times_ns = steps.values[rows, 0].astype(np.float64), steps.times_ns[rows]
    first = _settled(taken, (times_ns - times_ns[0]) / 1e9, finding.usual)
    first = first if len(taken) - first >= least else 0
    counts = np.arange(1, len(taken) - first + 1)
    more = np.cumsum(taken[first:]) / counts - finding.usual
    enough = SURE_ERRORS * noise.step_s * np.sqrt(1 / counts + 1 / noise.steps)
    # What one step has too much the next one lacks, so only the last one's error is in the sum.
    enough += pace.errors_s[rows[first:]] * (1 / counts + 1 / noise.steps)
    sure = np.flatnonzero((more > enough) & (counts >= least))
    if not len(sure):
        return None
    return msgspec.structs.replace(
        finding, since_ns=int(times_ns[first]), noticed_ns=int(times_ns[first + sure[0]])
    )


def _settled(taken: NDArray[np.float64], since_s: NDArray[np.float64], usual_s: float) -> int:
    """The step from which on steps are as long as they are soon after, by least squares."""
    later = taken[(since_s >= SETTLING_S) & (since_s <= SETTLED_S)]
    level_s = float((later if len(later) else taken).mean())
    as_usual = np.cumsum((usual_s + level_s) / 2 - taken[since_s < SETTLING_S])
    return int(np.argmax(as_usual)) + 1 if as_usual.max() > 0 else 0


def _is_last_known(pace: Pace, finding: Finding, now_ns: int) -> bool:
    """Whether no step has come since: a run without steps has not become quick again."""
    if finding.until_ns is None or pace.is_gone(now_ns):
        return False
    later = pace.steps.times_ns > finding.until_ns
    return not np.isfinite(pace.steps.values[later, 0]).any()


def _from_jump(pace: Pace, finding: Finding, usual_s: float) -> Finding:
    """The finding from where the steps became as long as they are now: a run that drifts a little for hours
    and then jumps is slow since the jump.
    """
    times_ns = pace.steps.times_ns
    within = [
        (int(times_ns[one.first]), one.step_s - usual_s)
        for one in pace.plateaus
        if times_ns[one.end - 1] > finding.since_ns
        and (finding.until_ns is None or times_ns[one.first] <= finding.until_ns)
    ]
    if finding.until_ns is not None or len(within) < 2:
        return finding
    most = within[-1][1]
    for (_, before), (at_ns, after) in reversed(tuple(itertools.pairwise(within))):
        if before <= JUMP_FROM * most and after >= JUMP_TO * most:
            return msgspec.structs.replace(
                finding, since_ns=max(finding.since_ns, at_ns), noticed_ns=max(finding.noticed_ns, at_ns)
            )
    return finding


def _of_plateaus(pace: Pace, holds: Callable[[float], bool]) -> NDArray[np.bool_]:
    rows = np.zeros(len(pace.steps.times_ns), np.bool_)
    for plateau in pace.plateaus:
        if holds(plateau.step_s):
            rows[plateau.first : plateau.end] = True
    return rows


def _recent(steps: Panel, finding: Finding) -> float:
    """The mean of its last minutes: a slowly growing slowdown counts at its present size."""
    until_ns = steps.times_ns[-1] if finding.until_ns is None else finding.until_ns
    since_ns = max(finding.since_ns, int(until_ns) - round(RECENT_S * 1e9))
    rows = (steps.times_ns >= since_ns) & (steps.times_ns <= until_ns) & np.isfinite(steps.values[:, 0])
    return float(np.mean(steps.values[rows, 0])) if rows.any() else finding.value


def creeping(pace: Pace, slow: Iterable[Finding]) -> Iterator[Finding]:
    """Steps that became longer bit by bit and not at once: each plateau is above the one before."""
    for finding in slow:
        rising = [one.step_s for one in pace.plateaus if pace.steps.times_ns[one.end - 1] > finding.since_ns]
        is_long = pace.steps.times_ns[-1] - finding.since_ns >= CREEPING_S_MIN * 1e9
        is_up = all(before < after for before, after in itertools.pairwise(rising))
        if finding.until_ns is None and is_long and is_up and len(rising) >= CREEPING_PLATEAUS_MIN:
            yield msgspec.structs.replace(finding, sign="creeping", note=SIGNS["creeping"])


def onset_of(pace: Pace, window_ns: tuple[int, int]) -> int | None:
    """Since when the steps have been slower; None if they are not, or if no quick steps were seen before."""
    lasting = [one.since_ns for one in slow_steps(pace, window_ns) if one.until_ns is None]
    first_ns = int(pace.steps.times_ns[np.isfinite(pace.steps.values[:, 0])][0]) if lasting else 0
    return next((since_ns for since_ns in lasting if since_ns - first_ns >= SEEN_S_MIN * 1e9), None)


def margin_of(pace: Pace, onset_ns: int | None) -> float:
    """How long before the onset the run was certainly healthy: a slow or intermittent problem begins earlier
    than steps show. At most half of the time in which quick steps were seen.
    """
    seen = pace.steps.times_ns[np.isfinite(pace.steps.values[:, 0])]
    if onset_ns is None or not len(seen):
        return MARGIN_S
    return min(MARGIN_S_MAX, max(MARGIN_S, (onset_ns - int(seen[0])) / 2e9))


def stands_since(pace: Pace, window_ns: tuple[int, int]) -> int | None:
    """When the last step was made, if the run still reports and has shown the same step ever since."""
    if not len(pace.shown_ns) or pace.is_gone(window_ns[1]) or pace.held_ns[-1] < SEEN_S_MIN * 1e9:
        return None
    return int(pace.shown_ns[-1])
