"""The GPU memory allocators of a whole run: more retries than usual, and memory use that keeps growing.

A single member retries so rarely that it hardly ever shows retries in two scrapes in a row. The whole run has
enough of them to compare, and one member's retry makes the others wait. A steady run allocates all its memory
in its first steps.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from holdfast.detect import compare
from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.pace import Pace, margin_of, onset_of
from holdfast.detect.panel import PAST_S, Panel
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats

METRIC = "holdfast_member_alloc_retries_total"
USED = "DCGM_FI_DEV_FB_USED"
FILLED_SHARE = 0.02
"""As a share of the memory used before. With this much more in use, contiguous memory may be hard to find."""
JUMP_SHARE, MORE_ROWS = 0.5, 5
"""As a share of the growth so far. Growth by this much between two scrapes comes from a step with more work.
"""
MEANS = ((300.0, 4), (900.0, 2))
"""Averaging times in seconds, and the part of a short window that they may cover at most. A few long retries
exceed the past only over the longer time.
"""
PER_STEP_MIN = 0.05
"""Fewer retries cost too little to matter: each takes a second at most."""
SPREAD_PARTS, SPREAD_SHARE = 3, 0.5
"""The excess must reach this share of the threshold in each of this many parts of the averaging time: in an
evaluation all members retry at once, and then stop.
"""
TIMES_MIN = 1.5
"""Times the usual rate: some runs always have a few."""


def _retries(look: Look) -> Iterator[Finding]:
    scene, pace = look.scene, look.pace
    if scene is None or pace is None or pace.step_s is None:
        return
    members = look.panels.of_run(METRIC, scene.run, as_rate=True)
    if members is None:
        return
    every = _over_all(members, scene.run)
    past = _past(look, scene.run, pace, every)
    if len(past) < compare.PAST_KNOWN_MIN:
        return
    found: tuple[Finding, ...] = ()
    for mean_s, parts in MEANS:
        rows = min(compare.rows_in(every.times_ns, mean_s), max(1, len(every.times_ns) // parts))
        found = tuple(_more(every, past, pace.step_s, rows))
        if any(one.until_ns is None for one in found):
            break
    # Retries that have ended do not explain steps that are still slow.
    is_slow = onset_of(pace, look.panels.window_ns) is not None
    yield from (one for one in found if one.until_ns is None or not is_slow)


def _more(every: Panel, past: Floats, step_s: float, rows: int) -> Iterator[Finding]:
    """More retries than in the past, as a mean over `rows` rows."""
    row_s = float(np.median(np.diff(every.times_ns))) / 1e9
    usual = max(0.0, float(past.mean()))
    # Counts of random events scatter by the square root of the count. If there were none, assume one.
    once = 1 / (row_s * min(rows, len(past)))
    chance = float(np.sqrt(max(usual, once) / (row_s * rows)))
    noise = max(chance, float(past.std()) * float(np.sqrt(1 / rows + 1 / len(past))))
    least = max(PER_STEP_MIN / step_s, (TIMES_MIN - 1) * usual, compare.MEAN_SIGMAS * noise)
    means = msgspec.structs.replace(every, values=compare.rolling(every.values, rows), single=every.values)
    with np.errstate(invalid="ignore"):
        wrong = means.values - usual > least
        wrong &= _in_every_part(every.values, rows) - usual > SPREAD_SHARE * least
    rule = Rule(sign="alloc-retries", metric=METRIC, unit="/s", note=SIGNS["alloc-retries"])
    bridge_s = max(compare.BRIDGE_S, row_s * rows / SPREAD_PARTS)
    expected, enough = np.full(1, usual, np.float32), np.full(1, least, np.float32)
    yield from findings(rule, means, wrong, expected, enough, bridge_s)


def _in_every_part(values: Floats, rows: int) -> Floats:
    """By row: the smallest mean among the parts of the last `rows` rows; NaN if there are fewer rows."""
    length = max(1, rows // SPREAD_PARTS)
    least = means = compare.rolling(values, length)
    for part in range(1, min(rows, SPREAD_PARTS)):
        earlier = np.full_like(means, np.nan)
        earlier[part * length :] = means[: -part * length]
        least = np.minimum(least, earlier)
    return least


def _past(look: Look, run: str, pace: Pace, every: Panel) -> Floats:
    """The retry rates from before steps became longer. Steps slow down bit by bit, so the window may begin
    while retries are already increasing, although steps look normal then.
    """
    past = every.before
    if past is None and (onset_ns := onset_of(pace, look.panels.window_ns)) is not None:
        end_ns = onset_ns - round(margin_of(pace, onset_ns) * 1e9)
        early = look.panels.of_run(METRIC, run, (end_ns - round(PAST_S * 1e9), end_ns), as_rate=True)
        past = None if early is None else _sum(early.values)
    if past is None or np.isfinite(past).sum() < compare.PAST_KNOWN_MIN:
        past = every.values[compare.past_rows(every.values)]
    return past[np.isfinite(past)]


def _over_all(members: Panel, run: str) -> Panel:
    """One series: the sum over all members; members without a reading count as the mean of the others."""
    return msgspec.structs.replace(
        members,
        subjects=(run,),
        values=_sum(members.values),
        before=None if members.before is None else _sum(members.before),
        trust=members.trust.mean(keepdims=True),
    )


def _sum(rates: Floats) -> Floats:
    known = np.isfinite(rates)
    count = known.sum(axis=1, keepdims=True)
    mean = np.where(known, rates, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    return np.where(count > 0, mean * rates.shape[1], np.nan).astype(np.float32)


def _filling(look: Look) -> Iterator[Finding]:
    """Memory use on the run's GPUs that grows bit by bit."""
    panel = None if look.scene is None else look.panels.value(USED)
    if panel is None or look.scene is None:
        return
    columns = [n for n, gpu in enumerate(panel.subjects) if look.run_of(gpu) == look.scene.run]
    if not columns:
        return
    every = _over_all(panel.some(np.array(columns)), look.scene.run).scaled(1 / len(columns))
    values, usual = every.values[:, 0], float(every.usual[0])
    more = float(np.nanmedian(values[-MORE_ROWS:])) - usual if np.isfinite(values[-MORE_ROWS:]).any() else 0.0
    steps = np.diff(values)
    if every.gap is not None:
        steps[every.gap - 1] = np.nan  # This change happened in the time that was left out.
    with np.errstate(invalid="ignore"):
        if (steps > JUMP_SHARE * more).any():
            return
        least = max(FILLED_SHARE * usual, SIGMAS * every.scatter)
        wrong = every.values - usual > least
    rule = Rule(sign="filling-buffer", metric=USED, unit="MiB", note=SIGNS["filling-buffer"])
    yield from findings(rule, every, wrong, every.usual, np.full(1, least, np.float32))


ALLOCATORS = FunctionDetector((Sense("alloc-retries", (METRIC,)),), _retries)
BUFFERS = FunctionDetector((Sense("filling-buffer", (USED,)),), _filling)
