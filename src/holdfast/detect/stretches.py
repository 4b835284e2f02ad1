"""From what is wrong, row by row, to findings: one for each stretch of a series that lasts."""

from collections.abc import Iterator

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
"""Of so many at once it is worth knowing to the scrape when each of them left what is usual."""


def findings(
    rule: Rule,
    panel: Panel,
    wrong: NDArray[np.bool_],
    usual: Floats,
    least: Floats,
    bridge_s: float = compare.BRIDGE_S,
) -> Iterator[Finding]:
    """One for each stretch that lasts. value: the mean of what was wrong in the series."""
    values, times_ns = panel.values, panel.times_ns
    stretches = compare.lasting(wrong, np.isfinite(values), panel.clock_ns, rule.scrapes, bridge_s)
    if not stretches:
        return
    columns = np.unique([stretch.series for stretch in stretches])
    counts = wrong[:, columns].sum(axis=0)
    means = np.where(wrong[:, columns], values[:, columns], 0).sum(axis=0) / counts
    mean_of = dict(zip(columns.tolist(), zip(means.tolist(), counts.tolist(), strict=True), strict=True))
    usuals, leasts, trusts, times = usual.tolist(), least.tolist(), panel.trust.tolist(), times_ns.tolist()
    for stretch in stretches:
        series, first = stretch.series, stretch.first
        (value, observations), expected = mean_of[series], usuals[series]
        if panel.single is not None:
            first = _changed(panel.single[:, series], stretch)
        elif len(stretches) <= ONSETS_MAX:
            away = (values[:, series] - expected) * np.sign(value - expected)
            first = compare.onset(away, leasts[series], first)
        sure = _sure(abs(value - expected), leasts[series], observations)
        yield Finding(
            sign=rule.sign,
            subject=panel.subjects[series],
            metric=rule.metric,
            method=rule.against,
            since_ns=times[first],
            until_ns=None if stretch.lasting else times[stretch.last],
            noticed_ns=times[stretch.noticed],
            confidence=sure * trusts[series],
            value=value,
            usual=expected,
            unit=rule.unit,
            note=rule.note,
            grave=rule.grave,
        )


def _sure(difference: float, least: float, observations: int) -> float:
    """The more often and the further beyond what matters, the surer."""
    beyond = difference / least if least > 0 else 2.0
    halvings = observations + max(beyond - 1.0, 0.0)
    return CONFIDENCE_MAX * (1.0 - float(0.5**halvings))


def _changed(single: Floats, stretch: compare.Stretch) -> int:
    """The row at which single readings changed the most: their means are late. The first where they did not:
    it was so before anybody looked.
    """
    end = stretch.last + 1
    known = np.flatnonzero(np.isfinite(single[:end]))
    row, score = compare.change(single[known].astype(np.float64), CHANGED_ROWS_MIN)
    return min(int(known[row]), stretch.first) if score > CHANGED_T_MIN else 0
