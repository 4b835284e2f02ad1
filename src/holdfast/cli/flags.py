"""A verb's flags, declared once: a structure whose fields are the options that fill them.

class Flags(msgspec.Struct, frozen=True, kw_only=True):
    rounds: Annotated[int, option("--rounds", default=3, help="How often.")]

@takes(Flags)
def command(given: Flags) -> None: ...
"""

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import click
import msgspec

Decorator = Callable[[Any], Any]
Declared = Callable[[str], Decorator]
"""Of the field's name, what declares its parameter."""
Given = TypeVar("Given")


def option(*words: str, **settings: Any) -> Declared:
    """An option, as click has it. words: its names, where the field does not say it, and its help."""
    names = [word for word in words if word.startswith("-")]
    told = " ".join(word for word in words if not word.startswith("-")) or None

    def declared(field: str) -> Decorator:
        return click.option(*(names or [flag_of(field)]), field, help=told, **settings)

    return declared


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def argument(**settings: Any) -> Declared:
    """An argument that the field names."""
    return lambda field: click.argument(field, **settings)


def shared(decorator: Decorator) -> Declared:
    """An option that several verbs have, declared elsewhere."""
    return lambda field: decorator


def takes(form: type[Given]) -> Callable[[Callable[[Given], Any]], Callable[..., Any]]:
    """Have the verb called with a `form`, whose fields, in their order, are the parameters in the help."""
    declared = [
        get_args(hint)[1](field)
        for field, hint in get_type_hints(form, include_extras=True).items()
        if get_origin(hint) is Annotated
    ]

    def decorate(verb: Callable[[Given], Any]) -> Callable[..., Any]:
        @wraps(verb)
        def called(**flags: Any) -> Any:
            return verb(msgspec.convert(flags, form))

        asking: Callable[..., Any] = called
        for one in reversed(declared):
            asking = one(asking)
        return asking

    return decorate
