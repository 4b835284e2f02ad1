"""The charts of the page, as inline SVG.

Horizontal positions are percentages and text has a fixed size, so a chart fills the width and its letters
stay legible on a phone. Only the areas of the course are stretched. Colours are the page's: a mark has its
category's class. Every word goes through `Markup.format`, which escapes it.
"""

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from math import ceil

import msgspec
from markupsafe import Markup

from holdfast import wording
from holdfast.dashboard.template import (
    BAR_PERCENT_MIN,
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
from holdfast.economics.pricing.layers import LAYER_TITLES, LayerKey
from holdfast.ledger.categories import Category
from holdfast.ledger.report import Course, IncidentReport, MeasuredFigure, Report
from holdfast.wording.units import DAY_S

STACK = (
    Category.USEFUL,
    *(category for category in Category if Category.USEFUL < category < Category.UNATTRIBUTED),
    *(category for category in Category if category < Category.USEFUL),
    Category.UNATTRIBUTED,
)
"""The order of the stack: useful at the bottom, where it is easiest to read; unattributed on top."""

GAUGE_ROOM = 1.15
"""A gauge ends this much beyond its largest value."""

PLOT_WIDTH = 1_000
PLOT_HEIGHT = 220
LANE_HEIGHT = 21
LANES_MAX = 4
LANE_PERCENT_PER_CHAR = 2.0
"""The width of a digit on a phone."""
TICKS_HEIGHT = 10
AXIS_HEIGHT = 40
COLUMNS_MAX = 128
"""The most columns that a finger can tell apart."""
COLUMN_CATEGORIES_MAX = 4
TICKS_MAX = 6

_TICK_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
    *(DAY_S * days for days in (1, 2, 4, 7, 14, 31, 93, 366, 5 * 366, 25 * 366)),
)
"""The last one divides all the time that an event can name, 2**62 ns, into no more than TICKS_MAX parts."""


def mark(category: Category) -> str:
    """The classes that colour a mark of this category."""
    return f"mark {css_class(category)}"


def css_class(category: Category) -> str:
    return f"c-{category.key}"


def fall(css: str, left_percent: float, width_percent: float, *, first: bool, last: bool) -> Markup:
    """One row of the waterfall: its bar, and its halves of the lines from the row above and to the one below.

    The first row is the whole and leads on from its right end; a loss leads on from its left end, where what
    remains ends.
    """
    right_percent = left_percent + width_percent
    return Markup('<svg class="fall" aria-hidden="true">{}{}{}</svg>').format(
        Markup("") if first else upright("lead", right_percent, bottom="50%"),
        Markup("") if last else upright("lead", right_percent if first else left_percent, "50%"),
        Markup('<rect class="{}" x="{:.2f}%" y="18%" width="{:.2f}%" height="64%"/>').format(
            css, left_percent, visible(width_percent)
        ),
    )


def strip(parts: dict[str, int], whole_gpu_ns: int) -> Markup:
    """A thin bar of these parts side by side; its length is their share of the whole."""
    found = ((category, parts.get(category.key, 0)) for category in Category)
    whole = max(1, whole_gpu_ns)
    return side_by_side("strip", ((css_class(one), 100 * part / whole, "") for one, part in found if part))


def stack(usd: Mapping[LayerKey, float | None], whole_usd: float) -> Markup:
    """The layers of a cost side by side; the length is their share of the whole. Each has a tooltip."""
    return side_by_side(
        "stack",
        (
            (f"l-{key}", 100 * amount / whole_usd, f"{LAYER_TITLES[key]}: {wording.usd(amount)}")
            for key, amount in usd.items()
            if amount
        ),
    )


def gauge(figure: MeasuredFigure) -> Markup:
    """A measured number as a bar, its reference as a line across."""
    measured, reference = figure.measured, figure.reference
    end = GAUGE_ROOM * max(measured, reference or 0.0) or 1.0
    line = "" if reference is None else upright("reference", 100 * reference / end)
    return Markup(
        '<svg class="gauge" aria-hidden="true"><rect class="rail" y="25%" width="100%" height="50%"/>'
        '<rect class="mark c-useful" y="25%" width="{:.2f}%" height="50%"/>{}</svg>'
    ).format(100 * measured / end, line)


def course(report: Report, incidents: Sequence[IncidentReport]) -> Markup:
    """The partition over time, with these incidents, the worst first, in lanes above it by their names."""
    return _CourseChart(report, incidents).drawn()


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a numbered incident: lane 0 is nearest to the areas."""

    lane: int
    left_percent: float
    right_percent: float
    incident: IncidentReport

    @property
    def room_percent(self) -> float:
        """The right end of the room that it needs in its lane: a short bar is narrower than its number."""
        return max(self.right_percent, self.left_percent + _name_percent(self.incident))

    def collides(self, other: "_Place") -> bool:
        return (
            self.lane == other.lane
            and self.left_percent < other.room_percent
            and other.left_percent < self.room_percent
        )


class _CourseChart:
    """The values that the parts of the chart are drawn from, computed once."""

    def __init__(self, report: Report, incidents: Sequence[IncidentReport]) -> None:
        self.report = report
        self.start_ns = report.course.start_ns
        self.span_ns = max(1, report.last_ns - report.course.start_ns)
        self.edges_ns = _edges_ns(report.course, self.start_ns + self.span_ns)
        self.gpus = [
            {key: gpu_ns / (to_ns - from_ns) for key, gpu_ns in bucket.items()}
            for bucket, (from_ns, to_ns) in zip(report.course.buckets, pairwise(self.edges_ns), strict=True)
        ]
        self.peak = max(1, report.gpus, *(ceil(sum(bucket.values())) for bucket in self.gpus))
        self.levels = sorted({0, self.peak // 2, self.peak})
        self.places = self._places(incidents)
        lanes = 1 + max((place.lane for place in self.places), default=-1)
        self.plot_top = LANE_HEIGHT * lanes + TICKS_HEIGHT
        self.height = self.plot_top + PLOT_HEIGHT + AXIS_HEIGHT

    def drawn(self) -> Markup:
        return Markup(
            '<div class="course">{y_axis}<svg class="plot" height="{height}">{incidents}{ticks}'
            '<svg y="{top}" width="100%" height="{plot_height}" viewBox="0 0 {width} {plot_height}" '
            'preserveAspectRatio="none" role="img" aria-label="GPUs over time, by what they did">'
            "{areas}{columns}</svg>{grid}{x_axis}</svg></div>"
        ).format(
            y_axis=self._y_axis(),
            height=self.height,
            incidents=joined(self._numbered(place) for place in self.places),
            ticks=self._ticks(),
            top=self.plot_top,
            plot_height=PLOT_HEIGHT,
            width=PLOT_WIDTH,
            areas=self._areas(),
            columns=self._columns(),
            grid=self._grid(),
            x_axis=self._x_axis(),
        )

    def _percent(self, moment_ns: int) -> float:
        return max(0.0, min(100.0, 100 * (moment_ns - self.start_ns) / self.span_ns))

    # -- the areas ---------------------------------------------------------------------------------

    def _areas(self) -> Markup:
        """Draw each category down to the base, and the lower ones over it, so that no gaps show."""
        edges = [self._percent(edge_ns) / 100 * PLOT_WIDTH for edge_ns in self.edges_ns]
        heights = [0.0] * len(self.gpus)
        areas = []
        for category in STACK:
            parts = [bucket.get(category.key, 0.0) for bucket in self.gpus]
            heights = [height + part for height, part in zip(heights, parts, strict=True)]
            if any(parts):
                tops = [PLOT_HEIGHT * (1 - height / self.peak) for height in heights]
                areas.append(
                    Markup('<path class="{}" d="{}"/>').format(mark(category), _outline(edges, tops))
                )
        return joined(reversed(areas))

    def _columns(self) -> Markup:
        """Columns with tooltips: a stretch of time and what the GPUs did in it."""
        buckets = self.report.course.buckets
        grouped = ceil(len(buckets) / COLUMNS_MAX)
        columns = []
        for first in range(0, len(buckets), grouped):
            last = min(first + grouped, len(buckets))
            from_ns, to_ns = self.edges_ns[first], self.edges_ns[last]
            left, right = (self._percent(edge_ns) / 100 * PLOT_WIDTH for edge_ns in (from_ns, to_ns))
            title = f"{wording.span(from_ns, to_ns)}: {_summary(buckets[first:last])}"
            columns.append(column(left, right, PLOT_HEIGHT, title))
        return joined(columns)

    # -- the incidents -----------------------------------------------------------------------------

    def _places(self, incidents: Sequence[IncidentReport]) -> list[_Place]:
        """Place the names, the worst incident first; one without room has only its tick."""
        taken: list[_Place] = []
        for incident in incidents:
            left = min(self._percent(incident.began_ns), 100 - _name_percent(incident))
            right = max(left, self._percent(_ended_ns(incident, self.report.last_ns)))
            possible = (
                _Place(lane=lane, left_percent=left, right_percent=right, incident=incident)
                for lane in range(LANES_MAX)
            )
            free = (place for place in possible if not any(place.collides(other) for other in taken))
            taken.extend(islice(free, 1))
        return taken

    def _numbered(self, place: _Place) -> Markup:
        incident = place.incident
        when = wording.span(incident.began_ns, _ended_ns(incident, self.report.last_ns))
        bottom = self.plot_top - TICKS_HEIGHT - LANE_HEIGHT * place.lane
        return Markup(
            '<a href="#incident-{name}" class="incident {severity}"><title>{title}</title>'
            '<text x="{left:.2f}%" y="{text_y}">{name}</text>'
            '<rect x="{left:.2f}%" y="{bar_y}" width="{width:.2f}%" height="3"/></a>'
        ).format(
            name=incident.name,
            severity=incident.severity,
            title=f"Incident {incident.name}: {wording.short(incident.what)}, {when}",
            left=place.left_percent,
            text_y=bottom - 7,
            bar_y=bottom - 4,
            width=max(BAR_PERCENT_MIN, place.right_percent - place.left_percent),
        )

    def _ticks(self) -> Markup:
        """A tick where an incident began, shown or not; incidents too near each other share one."""
        places = sorted(
            {round(self._percent(incident.began_ns) / 100 * PLOT_WIDTH) for incident in self.report.incidents}
        )
        return Markup(
            '<svg class="ticks" y="{}" width="100%" height="{}" viewBox="0 0 {} 1" '
            'preserveAspectRatio="none" aria-hidden="true"><path d="{}"/></svg>'
        ).format(
            self.plot_top - TICKS_HEIGHT,
            TICKS_HEIGHT - 3,
            PLOT_WIDTH,
            "".join(f"M{place} 0v1" for place in places),
        )

    # -- the axes ----------------------------------------------------------------------------------

    def _y(self, gpus: float) -> float:
        return self.plot_top + PLOT_HEIGHT * (1 - gpus / self.peak)

    def _grid(self) -> Markup:
        return joined(across("grid", self._y(gpus)) for gpus in self.levels)

    def _y_axis(self) -> Markup:
        labels = joined(beside(self._y(gpus), f"{gpus:,}") for gpus in self.levels)
        return Markup('<svg class="y-axis" height="{}" aria-hidden="true">{}</svg>').format(
            self.height, labels
        )

    def _x_axis(self) -> Markup:
        """Labels at round times, and below them the day whenever it changes."""
        step_ns = 10**9 * next(
            step_s for step_s in _TICK_STEPS_S if self.span_ns <= TICKS_MAX * step_s * 10**9
        )
        first_ns = -(-self.start_ns // step_ns) * step_ns
        labels: list[Markup] = []
        day = ""
        for moment_ns in range(first_ns, self.start_ns + self.span_ns + 1, step_ns):
            lines = [wording.tick(moment_ns, step_ns)]
            if step_ns < DAY_S * 10**9 and wording.day(moment_ns) != day:
                day = wording.day(moment_ns)
                lines.append(day)
            labels.append(self._x_label(moment_ns, lines, is_second=len(labels) % 2 == 1))
        return joined(labels)

    def _x_label(self, moment_ns: int, lines: list[str], *, is_second: bool) -> Markup:
        """is_second: it is left out where the page is narrow, but for the day below it."""
        at = self._percent(moment_ns)
        anchor = "start" if at < 8 else "end" if at > 92 else "middle"
        base = self.plot_top + PLOT_HEIGHT
        texts = joined(
            Markup('<text{} x="{:.2f}%" y="{}" text-anchor="{}">{}</text>').format(
                SECOND if is_second and not index else "", at, base + 18 + 15 * index, anchor, line
            )
            for index, line in enumerate(lines)
        )
        return upright("notch", at, base, base + 5) + texts


def _edges_ns(course: Course, end_ns: int) -> list[int]:
    """The beginnings of the buckets, and the end of the last one, or of the run if that is earlier."""
    edges_ns = [course.start_ns + index * course.bucket_ns for index in range(len(course.buckets) + 1)]
    return [*edges_ns[:-1], max(edges_ns[-2] + 1, min(edges_ns[-1], end_ns))]


def _ended_ns(incident: IncidentReport, last_ns: int) -> int:
    return last_ns if incident.recovered_ns is None else incident.recovered_ns


def _name_percent(incident: IncidentReport) -> float:
    """The width of its name, with a blank."""
    return LANE_PERCENT_PER_CHAR * (1 + len(incident.name))


def _outline(edges: Sequence[float], tops: Sequence[float]) -> str:
    """A path under these steps, from the base and back to it."""
    commands, at = [f"M{number(edges[0])} {PLOT_HEIGHT}"], ""
    for right, top in zip(edges[1:], tops, strict=True):
        if number(top) == at:
            commands.pop()  # as high as the one before: one line over both
        else:
            at = number(top)
            commands.append(f"V{at}")
        commands.append(f"H{number(right)}")
    return "".join([*commands, f"V{PLOT_HEIGHT}Z"])


def _summary(buckets: Sequence[dict[str, int]]) -> str:
    sums = {category: sum(bucket.get(category.key, 0) for bucket in buckets) for category in Category}
    whole = sum(sums.values())
    largest = sorted(sums, key=lambda category: -sums[category])[:COLUMN_CATEGORIES_MAX]
    shares = [
        f"{category.label} {wording.percent(sums[category] / whole)}"
        for category in largest
        if sums[category]
    ]
    return ", ".join(shares) or "nothing paid for"
