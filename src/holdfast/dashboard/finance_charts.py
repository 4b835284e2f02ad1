"""The charts of the finance page, as inline SVG; `charts` explains the method.

Horizontal positions are percentages and text has a fixed size, so a chart fills the width; only areas and
lines are stretched. Every word goes through `Markup.format`, which escapes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import ceil, floor, log10

import msgspec
from markupsafe import Markup

from holdfast import wording
from holdfast.dashboard.template import (
    SECOND,
    across,
    beside,
    column,
    joined,
    number,
    side_by_side,
    upright,
    visible,
)
from holdfast.economics.finance.ownership import OwnOrRent
from holdfast.economics.finance.trend import SpendStretch, Trend
from holdfast.wording.units import HOUR_NS

PLOT_WIDTH = 1_000
MONEY_HEIGHT = 220
HOURLY_HEIGHT = 110
CHOICE_HEIGHT = 260
TOP_ROOM = 24
AXIS_HEIGHT = 26
LEVELS = 5
TICKS_MAX = 5
COSTLY_MAX = 2.0
"""A stretch whose useful hours cost more than this many times the mean is drawn at this height."""
ROUND_STEPS = (1, 2, 2.5, 5, 10)
CHOICE_ROOM = 2.5
"""The chart of own or rent ends at this many times the cost of renting: the useful hours of an idle cluster
have no upper limit.
"""


class PlotArea(msgspec.Struct, frozen=True, kw_only=True):
    """A field of values over positions in percent: `value_max` is its upper edge."""

    height: int
    value_max: float

    def y(self, value: float) -> float:
        return TOP_ROOM + self.height * (1 - min(value, self.value_max) / self.value_max)

    def drawn(self, inside: Markup, over: Markup, labels: Iterable[Markup], label: str) -> Markup:
        """What is stretched inside the field, what lies over it, and the axes."""
        return Markup(
            '<svg class="plot" height="{whole}" role="img" aria-label="{label}">'
            '<svg y="{top}" width="100%" height="{height}" viewBox="0 0 {width} {height}" '
            'preserveAspectRatio="none">{inside}</svg>{over}{labels}</svg>'
        ).format(
            whole=self.height + TOP_ROOM + AXIS_HEIGHT,
            label=label,
            top=TOP_ROOM,
            height=self.height,
            width=PLOT_WIDTH,
            inside=inside,
            over=over,
            labels=joined(labels),
        )

    def scale(self, unit: str, levels: Mapping[float, float]) -> Markup:
        """The vertical axis, in a column of its own. levels: positions and labels."""
        texts = joined(beside(self.y(level), _level(shown)) for level, shown in levels.items())
        return Markup(
            '<svg class="y-axis" height="{}" aria-hidden="true">{}'
            '<text x="100%" dx="-8" y="10" text-anchor="end">{}</text></svg>'
        ).format(self.height + TOP_ROOM + AXIS_HEIGHT, texts, unit)

    def grid(self, levels: Sequence[float]) -> Markup:
        return joined(across("rule", self.y(level)) for level in levels)


def strip(parts: Iterable[tuple[str, float]]) -> Markup:
    """Shares of one whole, side by side, each with its classes."""
    return side_by_side("whole", ((css, 100 * share, "") for css, share in parts))


def bar(css: str, share: float, line: float | None = None) -> Markup:
    """A share as a bar on a rail, with a line across it at the target."""
    return Markup(
        '<svg class="share" aria-hidden="true"><rect class="rail" y="20%" width="100%" height="60%"/>'
        '<rect class="mark {}" y="20%" width="{:.2f}%" height="60%"/>{}</svg>'
    ).format(css, visible(100 * share), "" if line is None else upright("reference", 100 * line))


# -- spend against progress ------------------------------------------------------------------------------


def money(trend: Trend) -> Markup:
    """The spend up to each moment, the known part of it, and the useful part."""
    stretches = trend.stretches
    spent = list(accumulate((one.spend_usd for one in stretches), initial=0.0))
    known = list(accumulate((one.told_usd for one in stretches), initial=0.0))
    useful = list(accumulate((one.useful_usd for one in stretches), initial=0.0))
    levels = _money_levels(spent[-1])
    plot = PlotArea(height=MONEY_HEIGHT, value_max=max(levels[-1], spent[-1]))
    edges = _edges(stretches)
    layers = {"c-unattributed": spent, "c-spent": known, "c-useful": useful}
    areas = joined(
        Markup('<path class="mark {}" d="{}"/>').format(css, _area(plot, edges, values))
        for css, values in layers.items()
        if css != "c-unattributed" or has_unknown(trend)
    )
    titles = [
        f"Until {wording.moment(one.to_ns)}: {wording.usd(total)} spent, {wording.usd(part)} of it useful"
        + (f", {wording.usd(total - told)} not known" if has_unknown(trend) else "")
        for one, total, told, part in zip(stretches, spent[1:], known[1:], useful[1:], strict=True)
    ]
    inside = areas + _columns(plot, edges, titles)
    label = "Spend and useful spend up to each moment"
    drawn = plot.drawn(inside, plot.grid(levels), _moments(plot, stretches), label)
    return _with_scale(_money_scale(plot, levels), drawn)


def has_unknown(trend: Trend) -> bool:
    """Whether it is not known, or not yet, what some of the spend brought."""
    return any(one.unknown_gpu_ns or one.accrued_usd for one in trend.stretches)


def hourly(trend: Trend) -> Markup:
    """The cost of a useful GPU-hour in each stretch, with the best part's cost as a line across."""
    stretches = trend.stretches
    costs = [one.told_usd / _useful_hours([one]) if one.useful_gpu_ns else None for one in stretches]
    known = [cost for cost in costs if cost is not None]
    top = COSTLY_MAX * sum(one.told_usd for one in stretches) / _useful_hours(stretches)
    levels = _money_levels(min(top, max(known, default=top)))
    plot = PlotArea(height=HOURLY_HEIGHT, value_max=levels[-1])
    edges = _edges(stretches)
    bars = [
        ((plot.value_max, "c-nothing") if cost is None else (cost, "c-useful")) if one.told_usd > 0 else None
        for one, cost in zip(stretches, costs, strict=True)
    ]
    titles = [_hourly_title(one, cost) for one, cost in zip(stretches, costs, strict=True)]
    inside = _bars(plot, edges, bars) + _columns(plot, edges, titles)
    best = trend.rise.best.usd_per_useful_gpu_hour if trend.rise.best else None
    over = plot.grid(levels) + (across("level", plot.y(best)) if best else Markup(""))
    drawn = plot.drawn(inside, over, _moments(plot, stretches), "What a useful GPU-hour cost over time")
    return _with_scale(_money_scale(plot, levels), drawn)


def goodput(trend: Trend, target: float | None) -> Markup:
    """The useful share of the known GPU-time in each stretch, with the target as a line across."""
    stretches = trend.stretches
    plot = PlotArea(height=HOURLY_HEIGHT, value_max=100.0)
    edges = _edges(stretches)
    shares = [100 * one.useful_gpu_ns / one.known_gpu_ns if one.known_gpu_ns else None for one in stretches]
    bars = [
        None
        if share is None
        else (share, "c-useful" if target is None or share >= 100 * target else "c-spent")
        for share in shares
    ]
    titles = [
        f"{wording.span(one.from_ns, one.to_ns)}: "
        + ("nothing is known" if share is None else f"{share:.1f} % useful")
        for one, share in zip(stretches, shares, strict=True)
    ]
    inside = _bars(plot, edges, bars) + _columns(plot, edges, titles)
    levels = [0.0, 25.0, 50.0, 75.0, 100.0]
    over = plot.grid(levels) + (Markup("") if target is None else across("level", plot.y(100 * target)))
    drawn = plot.drawn(inside, over, _moments(plot, stretches), "Goodput over time against its target")
    return _with_scale(plot.scale("%", {level: level for level in levels}), drawn)


def _hourly_title(stretch: SpendStretch, cost: float | None) -> str:
    when = wording.span(stretch.from_ns, stretch.to_ns)
    if cost is None and not stretch.known_gpu_ns and (stretch.accrued_usd or stretch.unknown_usd):
        return f"{when}: {wording.usd(stretch.spend_usd)} spent, not known what it brought"
    if cost is None:
        return f"{when}: {wording.usd(stretch.spend_usd)} spent, nothing useful"
    return f"{when}: {wording.usd(cost)} for a useful GPU-hour"


def _useful_hours(stretches: Iterable[SpendStretch]) -> float:
    return sum(one.useful_gpu_ns for one in stretches) / HOUR_NS or 1.0


def _edges(stretches: Sequence[SpendStretch]) -> list[float]:
    """The beginnings of the stretches, and the end of the last one, in the plot's units."""
    first_ns, last_ns = stretches[0].from_ns, stretches[-1].to_ns
    span_ns = max(1, last_ns - first_ns)
    moments = [first_ns, *(one.to_ns for one in stretches)]
    return [PLOT_WIDTH * (moment - first_ns) / span_ns for moment in moments]


def _area(plot: PlotArea, edges: Sequence[float], values: Sequence[float]) -> str:
    points = "".join(
        f"L{number(x)} {plot.y(value) - TOP_ROOM:.1f}" for x, value in zip(edges, values, strict=True)
    )
    return f"M0 {plot.height}{points}V{plot.height}Z"


def _bars(plot: PlotArea, edges: Sequence[float], bars: Sequence[tuple[float, str] | None]) -> Markup:
    """A bar for each stretch that has a value and a class."""
    return joined(
        Markup('<rect class="mark {}" x="{}" y="{:.1f}" width="{}" height="{:.1f}"/>').format(
            bar[1],
            number(left),
            plot.y(bar[0]) - TOP_ROOM,
            number(max(0.0, right - left - 1)),
            TOP_ROOM + plot.height - plot.y(bar[0]),
        )
        for bar, left, right in zip(bars, edges, edges[1:], strict=False)
        if bar is not None
    )


def _columns(plot: PlotArea, edges: Sequence[float], titles: Sequence[str]) -> Markup:
    places = zip(edges, edges[1:], titles, strict=False)
    return joined(column(left, right, plot.height, title) for left, right, title in places)


def _moments(plot: PlotArea, stretches: Sequence[SpendStretch]) -> list[Markup]:
    """Labels at a few of the moments where stretches begin."""
    first_ns, last_ns = stretches[0].from_ns, stretches[-1].to_ns
    every = max(1, ceil((len(stretches) - 1) / TICKS_MAX))
    chosen = [one.from_ns for one in stretches[1::every]] or [first_ns]
    step_ns = chosen[1] - chosen[0] if len(chosen) > 1 else last_ns - first_ns
    return [
        _below(
            plot,
            100 * (at_ns - first_ns) / max(1, last_ns - first_ns),
            wording.tick(at_ns, step_ns),
            is_second=index % 2 == 1,
        )
        for index, at_ns in enumerate(chosen)
    ]


def _below(plot: PlotArea, at_percent: float, text: str, *, is_second: bool = False) -> Markup:
    anchor = "start" if at_percent < 5 else "end" if at_percent > 95 else "middle"
    base = TOP_ROOM + plot.height
    label = Markup('<text{} x="{:.2f}%" y="{}" text-anchor="{}">{}</text>').format(
        SECOND if is_second else "", at_percent, base + 19, anchor, text
    )
    return upright("notch", at_percent, base, base + 5) + label


def _at_end(plot: PlotArea, value: float, text: str, *, below: bool) -> Markup:
    """A name over, or under, the right end of a line that ends at this amount of USD."""
    return Markup('<text class="named" x="100%" y="{:.1f}" text-anchor="end">{} {:,.2f}</text>').format(
        plot.y(value) + (16 if below else -6), text, wording.converted(value)
    )


# -- own or rent -----------------------------------------------------------------------------------------


def choice(found: OwnOrRent) -> Markup:
    """The cost of a useful GPU-hour by utilisation, owned and rented, and where the two meet."""
    rent = found.rent_usd_per_useful_gpu_hour
    lowest = min(cost for _, cost in found.curve)
    levels = _money_levels(CHOICE_ROOM * max(rent, lowest))
    plot = PlotArea(height=CHOICE_HEIGHT, value_max=levels[-1])
    visible = [(share, cost) for share, cost in found.curve if cost <= plot.value_max]
    points = "L".join(
        f"{number(PLOT_WIDTH * share)} {plot.y(cost) - TOP_ROOM:.1f}" for share, cost in visible
    )
    inside = Markup('<path class="line own" d="M{}"/>').format(points)
    over = plot.grid(levels) + across("level", plot.y(rent)) + _utilisation(plot, found)
    over += _at_end(plot, rent, "rented", below=rent < lowest)
    over += _at_end(plot, lowest, "owned", below=lowest <= rent)
    labels = [_below(plot, percent, f"{percent} %") for percent in range(0, 101, 20)]
    label = "What a useful GPU-hour costs by utilisation, owned and rented"
    return _with_scale(_money_scale(plot, levels), plot.drawn(inside, over, labels, label))


def _utilisation(plot: PlotArea, found: OwnOrRent) -> Markup:
    """Lines at the break-even point and at the given utilisation."""
    marks = [(found.terms.utilisation.value, "these terms", "here")]
    if found.break_even_utilisation <= 1:
        marks.insert(0, (found.break_even_utilisation, "break-even", "even"))
    # One name is lower than the other, so that they do not overlap.
    return joined(_upright(plot, *mark, y=TOP_ROOM + 12 + 18 * row) for row, mark in enumerate(marks))


def _upright(plot: PlotArea, share: float, text: str, css: str, *, y: int) -> Markup:
    """A line at this utilisation, with its name on the side where there is room."""
    at = 100 * share
    anchor, shift = ("end", -6) if at > 50 else ("start", 6)
    line = upright(f"level {css}", at, TOP_ROOM, TOP_ROOM + plot.height)
    name = Markup('<text class="named" x="{:.2f}%" dx="{}" y="{}" text-anchor="{}">{} {:.0f} %</text>')
    return line + name.format(at, shift, y, anchor, text, at)


# -- scales ----------------------------------------------------------------------------------------------


def round_levels(value_max: float) -> list[float]:
    """A scale from 0 to at least this value, in at most this many steps of a round size."""
    if value_max <= 0:
        return [0.0, 1.0]
    rough = value_max / LEVELS
    magnitude = 10.0 ** floor(log10(rough))
    step = next(size for size in ROUND_STEPS if size * magnitude >= rough * (1 - 1e-9)) * magnitude
    return [step * number for number in range(ceil(value_max / step - 1e-9) + 1)]


def _money_levels(usd_max: float) -> list[float]:
    """The same for USD, round in the currency of the report."""
    return [wording.from_report(level) for level in round_levels(wording.converted(usd_max))]


def _money_scale(plot: PlotArea, levels: Sequence[float]) -> Markup:
    shown = {level: round(wording.converted(level), ndigits=9) for level in levels}
    return plot.scale(wording.currency(), shown)


def _level(value: float) -> str:
    for size, unit in ((1e9, "bn"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{wording.number(value / size)}{unit}"
    return wording.number(value) if value >= 10 or value == int(value) else f"{value:,.2f}"


def _with_scale(scale: Markup, plot: Markup) -> Markup:
    return Markup('<div class="course">{}{}</div>').format(scale, plot)
