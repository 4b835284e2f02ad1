"""A verb's flags, declared once as a structure with a field for each option; None if one is not given.

class Flags(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int = option("How often.", default=3)

@takes(Flags)
def command(given: Flags) -> None: ...
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click
import msgspec
from msgspec.structs import FieldInfo

Decorator = Callable[[Any], Any]
Given = TypeVar("Given", bound=msgspec.Struct)


class FiniteRange(click.FloatRange):
    """A finite number in a range. click's own would let `nan` through, and `inf`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def option(*words: str, **settings: Any) -> Any:
    """An option of click. words: its names, unless the field names it, and its help.

    The result is the field's default, and declares the parameter once the field is known: a `bool` is a flag,
    a tuple takes the option several times, and a path is a FILE unless `settings` differ.
    """
    names = [word for word in words if word.startswith("-")]
    told = " ".join(word for word in words if not word.startswith("-")) or None

    def declared(field: FieldInfo) -> Decorator:
        flags = names or [flag_of(field.name)]
        return click.option(*flags, field.name, help=told, **{**_implied(field, flags), **settings})

    return declared


def _implied(field: FieldInfo, flags: Sequence[str]) -> dict[str, Any]:
    """The settings that follow from the field's type."""
    kinds = {field.type, *get_args(field.type)}
    if bool in kinds and "/" not in flags[0]:
        return {"is_flag": True}
    path = {"type": click.Path(path_type=Path), "metavar": "FILE"} if Path in kinds else {}
    return {**path, "multiple": True} if get_origin(field.type) is tuple else path


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def is_typed(field: str) -> bool:
    """Whether the parameter was given on the command line, not by the environment or a default."""
    source = click.get_current_context().get_parameter_source(field)
    return source is click.core.ParameterSource.COMMANDLINE


def argument(**settings: Any) -> Any:
    """An argument with the field's name."""
    return lambda field: click.argument(field.name, **settings)


def shared(decorator: Decorator) -> Any:
    """An option that several verbs have, declared elsewhere."""
    return lambda field: decorator


def takes(form: type[Given]) -> Callable[[Callable[[Given], Any]], Callable[..., Any]]:
    """Call the verb with a `form`, whose fields are the parameters, in the order of the help."""

    def decorate(verb: Callable[[Given], Any]) -> Callable[..., Any]:
        @wraps(verb)
        def called(**flags: Any) -> Any:
            return verb(msgspec.convert(flags, form))

        return _asking(form, called)

    return decorate


def together(form: type[Given], field: str, made: Callable[[Given], Any] = lambda given: given) -> Decorator:
    """Options that several verbs share: the verb gets the result of `made` as `field`."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def called(**flags: Any) -> Any:
            own = {name: flags.pop(name) for name in form.__struct_fields__}
            return verb(**{field: made(msgspec.convert(own, form))}, **flags)

        return _asking(form, called)

    return decorate


def _asking(form: type[msgspec.Struct], called: Callable[..., Any]) -> Callable[..., Any]:
    for field in reversed(msgspec.structs.fields(form)):
        called = field.default(field)(called)
    return called
