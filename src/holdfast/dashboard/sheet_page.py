"""The page of a tabletop: one card for each role to hand out, the injects, the questions, the score sheet."""

from functools import cache

from jinja2 import Template

from holdfast import __version__
from holdfast.dashboard.template import template
from holdfast.drills.sheet import TabletopSheet


def render(sheet: TabletopSheet) -> str:
    """The whole page; each part starts on a new sheet in print."""
    return _template().render(version=__version__, sheet=sheet, table=sheet.table, truth=sheet.truth)


@cache
def _template() -> Template:
    return template("sheet.html", styles=("drill.css",), filters={})
