"""Retries of the GPUs' memory allocators, over all members of a run: a retry of one makes the others wait.

A member has one now and then, so that hardly any shows two scrapes in a row with some; of the run there are
enough.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from holdfast.detect import compare
from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.pace import Pace, margin_of, onset_of
from holdfast.detect.panel import PAST_S, Panel
from holdfast.detect.rules import SIGNS, Rule
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats

METRIC = "holdfast_member_alloc_retries_total"
MEAN_S, MEAN_PARTS = 300.0, 4
"""A mean over so long, but over no more than a quarter of a short window."""
PER_STEP_MIN = 0.05
"""Fewer retries cost too little to matter: each takes a second at most."""
TIMES_MIN = 1.5
"""Of what is usual: some runs always have a few."""


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
    rows = compare.rows_in(every.times_ns, MEAN_S)
    rows = min(rows, max(1, len(every.times_ns) // MEAN_PARTS))
    lasts_s = rows * MEAN_S / compare.rows_in(every.times_ns, MEAN_S)
    usual = max(0.0, float(past.mean()))
    # What comes by chance scatters by the root of its number; of none at all, as if there had been one.
    chance = float(np.sqrt(max(usual, 1 / lasts_s) / lasts_s))
    noise = max(chance, float(past.std()) * float(np.sqrt(1 / rows + 1 / len(past))))
    least = max(PER_STEP_MIN / pace.step_s, (TIMES_MIN - 1) * usual, compare.MEAN_SIGMAS * noise)
    means = msgspec.structs.replace(every, values=compare.rolling(every.values, rows), single=every.values)
    with np.errstate(invalid="ignore"):
        wrong = means.values - usual > least
    rule = Rule(sign="alloc-retries", metric=METRIC, unit="/s", note=SIGNS["alloc-retries"])
    yield from findings(rule, means, wrong, np.full(1, usual, np.float32), np.full(1, least, np.float32))


def _past(look: Look, run: str, pace: Pace, every: Panel) -> Floats:
    """What there was before steps became longer. They do bit by bit, so the window may begin in the middle of
    that though it begins before it shows in the steps.
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
    """One series: the sum of all members', as far as they are known."""
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


ALLOCATORS = FunctionDetector((Sense("alloc-retries", (METRIC,)),), _retries)
