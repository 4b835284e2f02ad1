"""Findings in the readings of machines: each rule over its metric, one frame in memory at a time."""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.detector import Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import RULES, SIGMAS, Rule
from holdfast.signals.frame import Floats

CONFIDENCE_MAX = 0.99
ONSETS_MAX = 512
"""Of so many at once it is worth knowing to the scrape when each of them left what is usual."""


class RuleDetector(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one metric."""

    metric: str
    rules: tuple[Rule, ...]

    @property
    def senses(self) -> tuple[Sense, ...]:
        return tuple(Sense(rule.sign, (self.metric,)) for rule in self.rules)

    def find(self, look: Look) -> Iterator[Finding]:
        for rule in self.rules:
            panels = look.panels
            panel = panels.value(self.metric) if rule.view == "value" else panels.rate(self.metric)
            if panel is not None:
                yield from _apply(rule, panel)


RULE_DETECTORS: tuple[RuleDetector, ...] = tuple(
    RuleDetector(metric=metric, rules=tuple(rule for rule in RULES if rule.metric == metric))
    for metric in dict.fromkeys(rule.metric for rule in RULES)
)


def _apply(rule: Rule, whole: Panel) -> Iterator[Finding]:
    columns = _columns(rule, whole)
    if not len(columns):
        return
    panel = whole.some(columns).scaled(rule.scale)
    usual, least = _expected(rule, panel)
    with np.errstate(invalid="ignore"):
        away = usual - panel.values if rule.falls else panel.values - usual
        wrong = away > least
    yield from findings(rule, panel, wrong, usual, least)


def _columns(rule: Rule, panel: Panel) -> NDArray[np.int64]:
    """The series that the rule is about; of counters that nearly always stand still, those that moved."""
    if rule.only is not None:
        label, wanted = rule.only
        chosen = np.array([labels.get(label) in wanted for labels in panel.labels], np.bool_)
    else:
        chosen = np.ones(len(panel.subjects), np.bool_)
    if rule.against == "limit":
        with np.errstate(invalid="ignore"):
            chosen &= (panel.values * np.float32(rule.scale) > rule.limit).any(axis=0)
    return np.flatnonzero(chosen)


def _expected(rule: Rule, panel: Panel) -> tuple[Floats, Floats]:
    """By series: what is usual, and from which difference on it matters."""
    series = panel.values.shape[1]
    if rule.against == "limit":
        return np.full(series, rule.limit, np.float32), np.zeros(series, np.float32)
    least = np.maximum(max(rule.least, SIGMAS * panel.scatter), rule.least_share * np.abs(panel.usual))
    return panel.usual, least.astype(np.float32)


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
    stretches = compare.lasting(wrong, np.isfinite(values), times_ns, rule.scrapes, bridge_s)
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
        if len(stretches) <= ONSETS_MAX:
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
        )


def _sure(difference: float, least: float, observations: int) -> float:
    """The more often and the further beyond what matters, the surer."""
    beyond = difference / least if least > 0 else 2.0
    halvings = observations + max(beyond - 1.0, 0.0)
    return CONFIDENCE_MAX * (1.0 - float(0.5**halvings))
