"""The page of a story: the pace of a run, and below it a numbered list of events."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from jinja2 import Template
from markupsafe import Markup

from holdfast import __version__
from holdfast.dashboard.template import joined, number, template
from holdfast.drills.live.judging import RowKind
from holdfast.wording.units import SECOND_NS

CELLS = 120
PLOT_WIDTH, PLOT_HEIGHT = 1_000, 200
MARK_HEIGHT = 22
LEVELS = 5
"""How many levels there are for numbers that are close to each other."""
CLOSE = 0.022
"""The share of the width that a number needs."""


class StoryMark(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the story. detail: the evidence for it."""

    at_ns: int
    what: str
    kind: RowKind
    detail: str = ""


def render(title: str, lede: str, commits_ns: Sequence[int], marks: Sequence[StoryMark]) -> str:
    """The whole page. commits_ns: when the run made its steps."""
    told = sorted(marks, key=lambda one: one.at_ns)
    moments = [*commits_ns, *(one.at_ns for one in told)]
    first_ns, last_ns = min(moments, default=0), max(moments, default=1)
    return _template().render(
        version=__version__,
        title=title,
        lede=lede,
        first_ns=first_ns,
        steps=len(commits_ns),
        took_s=(last_ns - first_ns) / SECOND_NS,
        chart=_chart(commits_ns, told, first_ns, max(last_ns, first_ns + 1)),
        marks=[((one.at_ns - first_ns) / SECOND_NS, one) for one in told],
    )


def _chart(commits_ns: Sequence[int], marks: Sequence[StoryMark], first_ns: int, last_ns: int) -> Markup:
    """Steps per second as an area, and the marks by number above it."""
    cell_ns = (last_ns - first_ns) / CELLS
    counts = [0] * CELLS
    for at_ns in commits_ns:
        counts[min(CELLS - 1, int((at_ns - first_ns) / cell_ns))] += 1
    rates = [count / (cell_ns / SECOND_NS) for count in counts]
    smooth = [
        sum(rates[max(0, at - 1) : at + 2]) / len(rates[max(0, at - 1) : at + 2]) for at in range(CELLS)
    ]
    highest = max(smooth, default=0.0) or 1.0
    top = LEVELS * MARK_HEIGHT
    points = " ".join(
        f"{number(PLOT_WIDTH * (at + 0.5) / CELLS)},{number(top + PLOT_HEIGHT * (1 - rate / highest))}"
        for at, rate in enumerate(smooth)
    )
    bottom = top + PLOT_HEIGHT
    area = Markup('<polygon class="pace" points="0,{0} {1} {2},{0}"/>').format(
        bottom, Markup(points), PLOT_WIDTH
    )
    drawn = joined(_marks(marks, first_ns, last_ns, bottom))
    return Markup(
        '<svg class="story" viewBox="0 0 {} {}" role="img" aria-label="Steps per second over time">{}{}</svg>'
        '<p class="note">Steps per second, at most {:.1f}. The numbers are those of the list below.</p>'
    ).format(PLOT_WIDTH, bottom + 2, area, drawn, highest)


def _marks(marks: Sequence[StoryMark], first_ns: int, last_ns: int, bottom: int) -> list[Markup]:
    drawn, used = [], [-1.0] * LEVELS
    for place, one in enumerate(marks, 1):
        share = (one.at_ns - first_ns) / (last_ns - first_ns)
        level = next((at for at in range(LEVELS) if share - used[at] > CLOSE), None)
        if level is None:
            continue  # no room in the chart; the list has it
        used[level] = share
        x, y = PLOT_WIDTH * min(max(share, 0.012), 0.988), level * MARK_HEIGHT + 12
        drawn.append(
            Markup(
                '<g><title>{}</title><line class="stem" x1="{}" x2="{}" y1="{}" y2="{}"/>'
                '<circle class="k-{}" cx="{}" cy="{}" r="10"/>'
                '<text x="{}" y="{}" text-anchor="middle">{}</text></g>'
            ).format(
                one.what, number(x), number(x), y, bottom, one.kind, number(x), y, number(x), y + 4, place
            )
        )
    return drawn


@cache
def _template() -> Template:
    filters: dict[str, Callable[..., Any]] = {}
    return template("story.html", styles=("drill.css",), filters=filters)
