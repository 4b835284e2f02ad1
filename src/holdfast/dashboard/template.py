"""How a page is made: one file with its style and script in it, and the wording of all pages at hand."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from holdfast import wording

_WORDING = {name: said for name, said in vars(wording).items() if callable(said)}
"""How all pages write figures: each of them may be called, and be a filter."""


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
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update({**_WORDING, **filters})
    environment.globals.update({**_WORDING, **(values or {})})
    environment.globals["style"] = Markup("").join(Markup(_text(one)) for one in ("page.css", *styles))
    if has_script:
        script = _text("page.js")
        environment.globals["script"] = Markup(script)
        environment.globals["script_hash"] = b64encode(sha256(script.encode()).digest()).decode()
    return environment.from_string(_text(name))


def _text(name: str) -> str:
    return files("holdfast.dashboard").joinpath(name).read_text(encoding="utf-8")


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def number(value: float) -> str:
    """A coordinate of an SVG, to a tenth."""
    return f"{round(value, 1):g}"
