"""Findings in the readings of machines: each rule over its metric, one frame in memory at a time."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.finding import Finding
from holdfast.detect.rules import RULES, SIGMAS, Rule
from holdfast.signals.frame import Floats, Frame
from holdfast.signals.quality import Inspected
from holdfast.signals.rates import per_second

CONFIDENCE_MAX = 0.99
ONSETS_MAX = 512
"""Of so many at once it is worth knowing to the scrape when each of them left what is usual."""


def find(inspected: Inspected) -> Iterator[Finding]:
    """What the rules for this metric find in its readings."""
    rules = [rule for rule in RULES if rule.metric == inspected.frame.metric]
    for view in {rule.view for rule in rules}:
        frame = inspected.frame if view == "value" else per_second(inspected.frame)
        for rule in rules:
            if rule.view == view:
                yield from _apply(rule, frame, inspected.trust)


def _apply(rule: Rule, frame: Frame, trust: Floats) -> Iterator[Finding]:
    columns = _columns(rule, frame)
    if not len(columns):
        return
    values = frame.values if len(columns) == frame.values.shape[1] else frame.values[:, columns]
    if rule.scale != 1.0:
        values = values * np.float32(rule.scale)
    usual, least = _expected(rule, values)
    with np.errstate(invalid="ignore"):
        away = usual - values if rule.falls else values - usual
        wrong = away > least
    yield from findings(
        rule,
        tuple(frame.subjects[column] for column in columns)
        if len(columns) < len(frame.subjects)
        else frame.subjects,
        values,
        wrong,
        usual,
        frame.times_ns,
        trust[columns],
        least,
    )


def _columns(rule: Rule, frame: Frame) -> NDArray[np.int64]:
    """The series that the rule is about; of counters that nearly always stand still, those that moved."""
    if rule.only is not None:
        label, wanted = rule.only
        chosen = np.array([labels.get(label) in wanted for labels in frame.labels], np.bool_)
    else:
        chosen = np.ones(len(frame.subjects), np.bool_)
    if rule.against == "limit":
        with np.errstate(invalid="ignore"):
            chosen &= (frame.values * np.float32(rule.scale) > rule.limit).any(axis=0)
    return np.flatnonzero(chosen)


def _expected(rule: Rule, values: Floats) -> tuple[Floats, Floats]:
    """By series: what is usual, and from which difference on it matters."""
    series = values.shape[1]
    if rule.against == "limit":
        return np.full(series, rule.limit, np.float32), np.zeros(series, np.float32)
    usual = compare.usual(values)
    scatter = SIGMAS * compare.spread(values, usual)
    least = np.maximum(max(rule.least, scatter), rule.least_share * np.abs(usual))
    return usual, least.astype(np.float32)


def findings(
    rule: Rule,
    subjects: tuple[str, ...],
    values: Floats,
    wrong: NDArray[np.bool_],
    usual: Floats,
    times_ns: NDArray[np.int64],
    trust: Floats,
    least: Floats,
    bridge_s: float = compare.BRIDGE_S,
) -> Iterator[Finding]:
    """One for each stretch that lasts. value: the mean of what was wrong in the series."""
    stretches = compare.lasting(wrong, np.isfinite(values), times_ns, rule.scrapes, bridge_s)
    if not stretches:
        return
    columns = np.unique([stretch.series for stretch in stretches])
    counts = wrong[:, columns].sum(axis=0)
    means = np.where(wrong[:, columns], values[:, columns], 0).sum(axis=0) / counts
    mean_of = dict(zip(columns.tolist(), zip(means.tolist(), counts.tolist(), strict=True), strict=True))
    usuals, leasts, trusts, times = usual.tolist(), least.tolist(), trust.tolist(), times_ns.tolist()
    for stretch in stretches:
        series, first = stretch.series, stretch.first
        (value, observations), expected = mean_of[series], usuals[series]
        if len(stretches) <= ONSETS_MAX:
            away = (values[:, series] - expected) * np.sign(value - expected)
            first = compare.onset(away, leasts[series], first)
        sure = _sure(abs(value - expected), leasts[series], observations)
        yield Finding(
            sign=rule.sign,
            subject=subjects[series],
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
        )


def _sure(difference: float, least: float, observations: int) -> float:
    """The more often and the further beyond what matters, the surer."""
    beyond = difference / least if least > 0 else 2.0
    halvings = observations + max(beyond - 1.0, 0.0)
    return CONFIDENCE_MAX * (1.0 - float(0.5**halvings))
