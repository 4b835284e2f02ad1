"""The stragglers page: what holds a step back, in one HTML file that needs nothing else.

First the verdict, then its evidence (a heat map of all workers), then workers and operations in numbers. The
style is that of a run's page; the numbers are those of the room `stragglers`.
"""

from collections.abc import Iterator
from functools import cache

import msgspec
from jinja2 import Template
from markupsafe import Markup

from holdfast import __version__, wording
from holdfast.dashboard.template import joined, template
from holdfast.stragglers.report import StragglerReport
from holdfast.stragglers.verdict import seconds

COLUMNS_MAX = 128
"""More columns than this cannot be told apart; neighbours then share one."""
NUMBERED_MAX = 16
"""Up to this many columns, each cell shows its number."""
NUMBERED_PHONE_MAX = 5
"""The same on a phone."""
LABELS_MAX = 16
LABEL_CHARS_MAX = 12
LABEL_CHARS_MIN = 6
"""The width of a name under a column: with few columns, and with many."""
CELL_HEIGHT = 34
GAP = 2
WORKERS_SHOWN_MAX = 10
STRONG = 0.5
"""Above this share of the greatest heat, a number has the colour of the background."""
FAINT = 0.02
"""A score that exceeds 1 by less than this has no heat."""


def render(report: StragglerReport) -> str:
    """The whole page."""
    return _template().render(
        version=__version__,
        report=report,
        analysis=report.analysis,
        verdict=report.verdict,
        heat=heat_map(report),
        hottest=_hottest(report),
        grouped=_grouped(len(report.dp_ranks)),
        workers=report.analysis.workers[:WORKERS_SHOWN_MAX],
        has_grid=len(report.stages) > 1,
    )


# -- the heat map ------------------------------------------------------------------------------------------


def heat_map(report: StragglerReport) -> Markup:
    """Stages down and data-parallel ranks across; a cell is hotter the more its worker alone
    slows the step.
    """
    columns = list(_columns(report))
    height = len(report.stages) * CELL_HEIGHT
    return Markup(
        '<div class="heat {density}"><svg class="stages" height="{below}" aria-hidden="true">{stages}</svg>'
        '<svg class="cells" height="{below}" role="img" aria-label="Slowdown by worker">{cells}{labels}</svg>'
        "</div>"
    ).format(
        density=_density(len(columns)),
        below=height + 24,
        stages=_stage_labels(report.stages),
        cells=joined(cell.drawn() for cell in _cells(report, columns)),
        labels=_column_labels(report, columns, height),
    )


def _grouped(count: int) -> int:
    """How many data-parallel ranks share a column."""
    return -(-count // COLUMNS_MAX)


def _columns(report: StragglerReport) -> Iterator[range]:
    """The rows of `heat` in each column of the picture."""
    count = len(report.dp_ranks)
    size = _grouped(count)
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def _scores(report: StragglerReport, column: range) -> list[float | None]:
    """The highest score of the column in each stage."""
    told = [[report.heat[row][stage] for row in column] for stage in range(len(report.stages))]
    return [max((score for score in scores if score is not None), default=None) for scores in told]


def _hottest(report: StragglerReport) -> float:
    return max((score for row in report.heat for score in row if score is not None), default=1.0)


def _density(columns: int) -> str:
    if columns > NUMBERED_MAX:
        return "dense"
    return "numbered" if columns <= NUMBERED_PHONE_MAX else "numbered crowded"


class _Cell(msgspec.Struct, frozen=True, kw_only=True):
    """heat: from 0 to 1, relative to the hottest cell."""

    title: str
    top: int
    left_percent: float
    width_percent: float
    score: float
    heat: float
    is_numbered: bool

    def drawn(self) -> Markup:
        box = (self.left_percent, self.top, self.width_percent, CELL_HEIGHT - GAP)
        return Markup(
            '<g><title>{}</title><rect class="cold" x="{:.3f}%" y="{}" width="{:.3f}%" height="{}"/>'
            '<rect class="hot" x="{:.3f}%" y="{}" width="{:.3f}%" height="{}" fill-opacity="{:.2f}"/>{}</g>'
        ).format(self.title, *box, *box, self.heat, self._number() if self.is_numbered else "")

    def _number(self) -> Markup:
        return Markup('<text class="{}" x="{:.3f}%" y="{}" text-anchor="middle">{:.2f}</text>').format(
            "strong" if self.heat >= STRONG else "weak",
            self.left_percent + self.width_percent / 2,
            self.top + CELL_HEIGHT / 2 + 4,
            self.score,
        )


def _cells(report: StragglerReport, columns: list[range]) -> Iterator[_Cell]:
    hottest = _hottest(report)
    for number, column in enumerate(columns):
        for row, score in enumerate(_scores(report, column)):
            if score is not None:
                yield _Cell(
                    title=f"{_column_name(report, column)}, stage {report.stages[row]}: {score:.3f}",
                    top=row * CELL_HEIGHT,
                    left_percent=100 * number / len(columns),
                    width_percent=100 / len(columns),
                    score=score,
                    heat=max(0.0, score - 1) / max(hottest - 1, FAINT),
                    is_numbered=len(columns) <= NUMBERED_MAX,
                )


def _column_name(report: StragglerReport, column: range) -> str:
    first, last = report.dp_ranks[column[0]], report.dp_ranks[column[-1]]
    return first if first == last else f"{first} to {last}"


def _stage_labels(stages: tuple[int, ...]) -> Markup:
    return joined(
        Markup('<text x="100%" dx="-10" y="{}" text-anchor="end">stage {}</text>').format(
            row * CELL_HEIGHT + CELL_HEIGHT / 2 + 4, stage
        )
        for row, stage in enumerate(stages)
    )


def _column_labels(report: StragglerReport, columns: list[range], height: int) -> Markup:
    """Names under the columns, as many as fit."""
    step = -(-len(columns) // LABELS_MAX)
    width = 100 / len(columns)
    chars = LABEL_CHARS_MAX if len(columns) <= NUMBERED_PHONE_MAX else LABEL_CHARS_MIN
    return joined(
        Markup('<text class="label{}" x="{:.3f}%" y="{}" text-anchor="middle">{}</text>').format(
            " odd" if len(columns) > NUMBERED_PHONE_MAX and (number // step) % 2 else "",
            (number + 0.5) * width,
            height + 16,
            wording.short(report.dp_ranks[columns[number][0]], chars),
        )
        for number in range(0, len(columns), step)
    )


# -- the rest ----------------------------------------------------------------------------------------------


def bar(share: float | None) -> Markup:
    """A bar for the explained share of the slowdown, cut off below 0 and above 1."""
    width = 100 * max(0.0, min(1.0, share or 0.0))
    return Markup(
        '<svg class="bar" aria-hidden="true"><rect class="rail" width="100%" height="100%"/>'
        '<rect class="hot" width="{:.2f}%" height="100%"/></svg>'
    ).format(width)


def _share(share: float | None) -> str:
    if share is None:
        return wording.UNKNOWN
    points = 100 * share
    return "0.0 %" if abs(points) < 0.05 else f"{'−' if points < 0 else ''}{abs(points):.1f} %"


@cache
def _template() -> Template:
    filters = {"seconds": seconds, "share": _share, "bar": bar}
    return template("stragglers.html", styles=("stragglers.css",), filters=filters)
