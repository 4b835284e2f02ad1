"""Makes pages: one file with its style and script in it, the wording of all pages, and the
marks of charts.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from holdfast import wording

BAR_PERCENT_MIN = 0.25
"""A bar is never thinner, so that every value above zero is visible."""
SECOND = Markup(' class="second"')
"""Every second label of an axis, which a phone has no room for (page.css)."""
_WORDING = {name: said for name, said in vars(wording).items() if callable(said)}
"""The functions by which all pages write figures, as template functions and as filters."""


def template(
    name: str,
    *,
    styles: Sequence[str] = (),
    has_script: bool = False,
    filters: Mapping[str, Callable[..., Any]],
    values: Mapping[str, Any] | None = None,
) -> Template:
    """The page of this file. styles: beside page.css. has_script: page.js, and the hash that lets it run."""
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({**_WORDING, **filters})
    environment.globals.update({**_WORDING, **(values or {})})
    environment.globals["style"] = Markup("").join(Markup(_text(one)) for one in ("page.css", *styles))
    script = _text("page.js") if has_script else ""
    environment.globals["script"] = Markup(script)
    environment.globals["script_hash"] = b64encode(sha256(script.encode()).digest()).decode()
    return environment.get_template(name)


def _text(name: str) -> str:
    return files("holdfast.dashboard").joinpath(name).read_text(encoding="utf-8")


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def number(value: float) -> str:
    """A coordinate of an SVG, to a tenth."""
    return wording.plain(round(value, 1))


def visible(width_percent: float) -> float:
    return max(BAR_PERCENT_MIN, width_percent) if width_percent > 0 else 0.0


def side_by_side(css: str, parts: Iterable[tuple[str, float, str]]) -> Markup:
    """Bars beside each other: the class of each, its width in percent, and its title."""
    rects, left = [], 0.0
    for own, width, title in parts:
        told = Markup("<title>{}</title>").format(title) if title else ""
        rect = Markup('<rect class="mark {}" x="{:.2f}%" width="{:.2f}%" height="100%">{}</rect>')
        rects.append(rect.format(own, left, visible(width), told))
        left += width
    return Markup('<svg class="{}" aria-hidden="true">{}</svg>').format(css, joined(rects))


def upright(css: str, at_percent: float, top: int | str = 0, bottom: int | str = "100%") -> Markup:
    line = Markup('<line class="{0}" x1="{1:.2f}%" x2="{1:.2f}%" y1="{2}" y2="{3}"/>')
    return line.format(css, at_percent, top, bottom)


def across(css: str, y: float) -> Markup:
    return Markup('<line class="{0}" x1="0" x2="100%" y1="{1:.1f}" y2="{1:.1f}"/>').format(css, y)


def column(left: float, right: float, height: int, title: str) -> Markup:
    """An invisible area with a tooltip."""
    rect = Markup('<rect class="column" x="{}" width="{}" height="{}"><title>{}</title></rect>')
    return rect.format(number(left), number(right - left), height, title)


def beside(y: float, text: str) -> Markup:
    """A label at a level of a vertical axis."""
    return Markup('<text x="100%" dx="-8" y="{:.1f}" dy="4" text-anchor="end">{}</text>').format(y, text)
