"""A verb's flags, declared once: a structure whose fields are the options that fill them; None: not given.

class Flags(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int = option("How often.", default=3)

@takes(Flags)
def command(given: Flags) -> None: ...
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click
import msgspec

Decorator = Callable[[Any], Any]
Given = TypeVar("Given", bound=msgspec.Struct)


class FiniteRange(click.FloatRange):
    """A number in a range: `nan` is in none, though no comparison says so, and nothing lasts for `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def option(*words: str, **settings: Any) -> Any:
    """An option, as click has it. words: its names, where the field does not say it, and its help.

    What it returns stands as the field's default, and declares the parameter once the field's name is known.
    """
    names = [word for word in words if word.startswith("-")]
    told = " ".join(word for word in words if not word.startswith("-")) or None

    def declared(field: str) -> Decorator:
        return click.option(*(names or [flag_of(field)]), field, help=told, **settings)

    return declared


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def argument(**settings: Any) -> Any:
    """An argument that the field names."""
    return lambda field: click.argument(field, **settings)


def shared(decorator: Decorator) -> Any:
    """An option that several verbs have, declared elsewhere."""
    return lambda field: decorator


def takes(form: type[Given]) -> Callable[[Callable[[Given], Any]], Callable[..., Any]]:
    """Have the verb called with a `form`, whose fields, in their order, are the parameters in the help."""

    def decorate(verb: Callable[[Given], Any]) -> Callable[..., Any]:
        @wraps(verb)
        def called(**flags: Any) -> Any:
            return verb(msgspec.convert(flags, form))

        return _asking(form, called)

    return decorate


def together(form: type[Given], field: str, made: Callable[[Given], Any] = lambda given: given) -> Decorator:
    """Options that several verbs have, as one: a verb gets in `field` what is `made` of the form."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def called(**flags: Any) -> Any:
            own = {name: flags.pop(name) for name in form.__struct_fields__}
            return verb(**{field: made(msgspec.convert(own, form))}, **flags)

        return _asking(form, called)

    return decorate


def _asking(form: type[msgspec.Struct], called: Callable[..., Any]) -> Callable[..., Any]:
    for field in reversed(msgspec.structs.fields(form)):
        called = field.default(field.name)(called)
    return called
