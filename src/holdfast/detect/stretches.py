"""Turn readings marked as wrong into findings: one for each stretch of a series that lasts."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import Rule
from holdfast.signals.frame import Floats

CONFIDENCE_MAX = 0.99
CHANGED_ROWS_MIN, CHANGED_T_MIN = 2, 5.0
ONSETS_MAX = 512
"""Up to this many findings at once get the exact scrape at which each left its baseline."""


def findings(
    rule: Rule,
    panel: Panel,
    wrong: NDArray[np.bool_],
    usual: Floats,
    least: Floats,
    bridge_s: float = compare.BRIDGE_S,
    clock_ns: NDArray[np.int64] | None = None,
) -> Iterator[Finding]:
    """One finding for each stretch that lasts. value: the mean of the series' wrong readings. clock_ns: the
    times by which a stretch lasts, if not all time counts.
    """
    values, times_ns = panel.values, panel.times_ns
    clock_ns = panel.clock_ns if clock_ns is None else clock_ns
    stretches = compare.lasting(wrong, np.isfinite(values), clock_ns, rule.scrapes, bridge_s)
    if not stretches:
        return
    columns = np.unique([stretch.series for stretch in stretches])
    own = wrong.take(columns, axis=1)
    counts = own.sum(axis=0)
    means = np.where(own, values.take(columns, axis=1), 0).sum(axis=0) / counts
    sure = _sure(np.abs(means - usual[columns]), least[columns], counts) * panel.trust[columns]
    told = zip(means.tolist(), usual[columns].tolist(), sure.tolist(), strict=True)
    told_of = dict(zip(columns.tolist(), told, strict=True))
    leasts, times = least.tolist(), times_ns.tolist()
    firsts = [one.first for one in stretches] if panel.single is None else _changed(panel.single, stretches)
    for stretch, first in zip(stretches, firsts, strict=True):
        series = stretch.series
        value, expected, confidence = told_of[series]
        if panel.single is None and len(stretches) <= ONSETS_MAX:
            away = (values[:, series] - expected) * np.sign(value - expected)
            first = compare.onset(away, leasts[series], first)
        yield Finding(
            sign=rule.sign,
            subject=panel.subjects[series],
            metric=rule.metric,
            method=rule.against,
            since_ns=times[first],
            until_ns=None if stretch.lasting else times[stretch.last],
            noticed_ns=times[stretch.noticed],
            confidence=confidence,
            value=value,
            usual=expected,
            unit=rule.unit,
            note=rule.note,
            grave=rule.grave,
        )


def _sure(differences: Floats, least: Floats, observations: NDArray[np.int64]) -> NDArray[np.float64]:
    """By series: the more often and the further beyond the threshold, the surer."""
    bounds = least.astype(np.float64)
    beyond = np.divide(differences, bounds, out=np.full(len(bounds), 2.0), where=bounds > 0)
    halvings = observations + np.maximum(beyond - 1.0, 0.0)
    return np.asarray(CONFIDENCE_MAX * (1.0 - 0.5**halvings), np.float64)


def _changed(single: Floats, stretches: Sequence[compare.FindingStretch]) -> list[int]:
    """The rows at which single readings changed the most, because means lag behind. If they did not change,
    the first known row: the state is older than the readings.
    """
    firsts = np.array([one.first for one in stretches])
    lasts = np.array([one.last for one in stretches])
    series = np.array([one.series for one in stretches])
    for last in np.unique(lasts).tolist():
        same = np.flatnonzero(lasts == last)
        readings = single[: last + 1, series[same]]
        rows, scores = compare.changes(readings, CHANGED_ROWS_MIN)
        known = np.argmax(np.isfinite(readings), axis=0)
        firsts[same] = np.where(scores > CHANGED_T_MIN, np.minimum(rows, firsts[same]), known)
    return list(map(int, firsts))
