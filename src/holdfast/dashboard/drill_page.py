"""The page of a live drill, for a team to keep: its score, the evidence for it, and a timeline."""

from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from holdfast import __version__
from holdfast.dashboard.template import template
from holdfast.drills.live.judging import LiveVerdict, TimelineRow
from holdfast.wording.units import HOUR_S


def render(verdict: LiveVerdict) -> str:
    """The whole page."""
    right, judged = verdict.score
    return _template().render(version=__version__, verdict=verdict, right=right, judged=judged)


def moment(row: TimelineRow, last_s: float) -> Markup:
    """The moment of a row in the drill, as a dot on a line."""
    share = 100 * row.at_s / last_s if last_s else 0.0
    return Markup(
        '<svg class="moment" aria-hidden="true"><line class="thread" x1="0" x2="100%" y1="8" y2="8"/>'
        '<circle class="k-{}" cx="{:.2f}%" cy="8" r="5"/></svg>'
    ).format(row.kind, min(max(share, 2.0), 98.0))


def gpu_seconds(hours: float) -> str:
    return f"{hours * HOUR_S:,.1f} GPU-seconds"


@cache
def _template() -> Template:
    filters: dict[str, Callable[..., Any]] = {"moment": moment, "gpu_seconds": gpu_seconds}
    return template("drill.html", styles=("drill.css",), filters=filters)
