"""Findings in machine readings: each rule applied to its metric, one frame in memory at a time."""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect.detector import Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import RULES, SIGMAS, Rule
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats, Labels


class RuleDetector(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one metric."""

    metric: str
    rules: tuple[Rule, ...]

    @property
    def senses(self) -> tuple[Sense, ...]:
        return tuple(Sense(rule.sign, (self.metric,)) for rule in self.rules)

    def find(self, look: Look) -> Iterator[Finding]:
        panels = look.panels
        for rule in self.rules:
            if rule.view == "value":
                panel = panels.value(self.metric)
            else:
                is_growth = rule.against == "limit" and rule.limit >= 0
                panel = panels.grown(self.metric) if is_growth else panels.rate(self.metric)
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
    """The series that the rule covers; for a limit, only those that ever exceed it."""
    chosen = np.ones(len(panel.subjects), np.bool_)
    if rule.named:
        chosen &= np.array([_is_named(rule.named, labels) for labels in panel.labels], np.bool_)
    if rule.against == "limit":
        with np.errstate(invalid="ignore"):
            chosen &= (panel.values * np.float32(rule.scale) > rule.limit).any(axis=0)
    return np.flatnonzero(chosen)


def _is_named(words: tuple[str, ...], labels: Labels) -> bool:
    told = " ".join(labels.values()).casefold()
    return any(word in told for word in words)


def _expected(rule: Rule, panel: Panel) -> tuple[Floats, Floats]:
    """By series: the usual value, and the difference from which on a deviation matters."""
    series = panel.values.shape[1]
    if rule.against == "limit":
        return np.full(series, rule.limit, np.float32), np.zeros(series, np.float32)
    least = np.maximum(max(rule.least, SIGMAS * panel.scatter), rule.least_share * np.abs(panel.usual))
    return panel.usual, least.astype(np.float32)
