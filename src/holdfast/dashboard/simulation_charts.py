"""The charts of the simulation page, as inline SVG; see `charts` for how such are drawn.

Horizontal positions are percentages and text has its own size, so a chart is as wide as there is room for.
A middle is a dot and not the end of a bar, so an axis of shares need not begin at nothing.
"""

from collections.abc import Iterable

import msgspec
from markupsafe import Markup

from holdfast.dashboard.finance_charts import round_levels
from holdfast.dashboard.template import joined, upright
from holdfast.twin.sweep import Spread

COUNTS_ROOM = 1.02
"""An axis of counts ends at least this much beyond what it shows."""
SHARES_REACH_MIN = 0.001
"""An axis of shares goes down by this much at least: what differs by less is alike."""
NEAR_EDGE_PERCENT = 6
"""A label as near to an end of its axis as this would be cut off if it stood in the middle of its place."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of values, and the round ones in it, with what they are called."""

    low: float
    high: float
    labels: tuple[tuple[float, str], ...]

    def percent(self, value: float) -> float:
        return 100 * (value - self.low) / (self.high - self.low)


def axis_of_shares(spreads: Iterable[Spread]) -> Axis:
    """Up to 100 %, and down to the least of these."""
    lost = round_levels(max(SHARES_REACH_MIN, 1 - min(spread.p10 for spread in spreads)))
    labels = tuple((1 - level, f"{100 * (1 - level):.6g} %") for level in reversed(lost))
    return Axis(low=1 - lost[-1], high=1.0, labels=labels)


def axis_of_counts(spreads: Iterable[Spread]) -> Axis:
    """From nothing to beyond the largest of these."""
    levels = round_levels(max(1.0, COUNTS_ROOM * max(spread.p90 for spread in spreads)))
    return Axis(low=0.0, high=levels[-1], labels=tuple((level, f"{level:,g}") for level in levels))


def whisker(axis: Axis, spread: Spread, css: str, expected: Spread | None = None) -> Markup:
    """The middle as a dot, P10 to P90 as a line through it; behind them what was to be expected."""
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
    """The labels of an axis, to stand over the rows that are drawn on it."""
    return Markup('<svg class="scale" aria-hidden="true">{}</svg>').format(
        joined(_label(axis.percent(value), text) for value, text in axis.labels)
    )


def _expected(axis: Axis, expected: Spread) -> Markup:
    left, middle, right = (axis.percent(value) for value in (expected.p10, expected.p50, expected.p90))
    rect = Markup('<rect class="expected" x="{:.2f}%" width="{:.2f}%" height="100%"/>')
    return rect.format(left, right - left) + upright("reference", middle)


def _reach(axis: Axis, spread: Spread, css: str) -> Markup:
    """The line from P10 to P90, with an end on either side."""
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
