"""The charts of the simulation page, as inline SVG; `charts` explains the method.

Horizontal positions are percentages and text has a fixed size, so a chart fills the width. A median is a dot
and not the end of a bar, so an axis of shares need not begin at 0.
"""

from collections.abc import Iterable

import msgspec
from markupsafe import Markup

from holdfast import wording
from holdfast.dashboard.finance_charts import round_levels
from holdfast.dashboard.template import joined, upright
from holdfast.twin.sweep import Spread

COUNTS_ROOM = 1.02
"""An axis of counts ends at least this much beyond its largest value."""
SHARES_REACH_MIN = 0.001
"""An axis of shares covers at least this much: smaller differences should look small."""
NEAR_EDGE_PERCENT = 6
"""A label nearer to an end of its axis than this would be cut off if it were centred."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """A range of values, and the round ones in it with their labels."""

    low: float
    high: float
    labels: tuple[tuple[float, str], ...]

    def percent(self, value: float) -> float:
        return 100 * (value - self.low) / (self.high - self.low)


def axis_of_shares(spreads: Iterable[Spread]) -> Axis:
    """An axis from the least of these values up to 100 %."""
    lost = round_levels(max(SHARES_REACH_MIN, 1 - min(spread.p10 for spread in spreads)))
    labels = tuple((1 - level, f"{wording.number(100 * (1 - level))} %") for level in reversed(lost))
    return Axis(low=1 - lost[-1], high=1.0, labels=labels)


def axis_of_counts(spreads: Iterable[Spread]) -> Axis:
    """An axis from 0 to beyond the largest of these values."""
    levels = round_levels(max(1.0, COUNTS_ROOM * max(spread.p90 for spread in spreads)))
    return Axis(low=0.0, high=levels[-1], labels=tuple((level, wording.number(level)) for level in levels))


def whisker(axis: Axis, spread: Spread, css: str, expected: Spread | None = None) -> Markup:
    """The median as a dot, P10 to P90 as a line through it, and the expected range behind them."""
    parts = [upright("rule", axis.percent(value)) for value, _ in axis.labels]
    if expected is not None:
        parts.append(_expected(axis, expected))
    if spread.p10 < spread.p90:
        parts.append(_reach(axis, spread, css))
    parts.append(
        Markup('<circle class="mark {}" cx="{:.2f}%" cy="50%" r="5"/>').format(css, axis.percent(spread.p50))
    )
    return Markup('<svg class="whisker" aria-hidden="true">{}</svg>').format(joined(parts))


def scale(axis: Axis) -> Markup:
    """The labels of an axis, for the top of its rows."""
    return Markup('<svg class="scale" aria-hidden="true">{}</svg>').format(
        joined(_label(axis.percent(value), text) for value, text in axis.labels)
    )


def _expected(axis: Axis, expected: Spread) -> Markup:
    left, middle, right = (axis.percent(value) for value in (expected.p10, expected.p50, expected.p90))
    rect = Markup('<rect class="expected" x="{:.2f}%" width="{:.2f}%" height="100%"/>')
    return rect.format(left, right - left) + upright("reference", middle)


def _reach(axis: Axis, spread: Spread, css: str) -> Markup:
    """The line from P10 to P90, with a cap on either end."""
    left, right = axis.percent(spread.p10), axis.percent(spread.p90)
    lines = (
        Markup('<line x1="{:.2f}%" x2="{:.2f}%" y1="{}%" y2="{}%"/>').format(*ends)
        for ends in ((left, right, 50, 50), (left, left, 30, 70), (right, right, 30, 70))
    )
    return Markup('<g class="reach {}">{}</g>').format(css, joined(lines))


def _label(at_percent: float, text: str) -> Markup:
    anchor = "middle"
    if at_percent < NEAR_EDGE_PERCENT:
        anchor = "start"
    elif at_percent > 100 - NEAR_EDGE_PERCENT:
        anchor = "end"
    return Markup('<text x="{:.2f}%" y="12" text-anchor="{}">{}</text>').format(at_percent, anchor, text)
