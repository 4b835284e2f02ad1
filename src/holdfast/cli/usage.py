"""A mistake on the command line as one plain sentence: the flag, what was given, and what is expected."""

import re

import click

from holdfast import wording

_GIVEN = re.compile(r"('.*?'|\".*?\"|\S+) ((?:is|must|has) .*)", re.DOTALL)
"""A complaint of click, or of a converter, that begins with the value."""
_OF_NUMBERS = ("is not a valid ", "is not in the range ", "is not a finite ")
_PLAIN = re.compile(r"'[^\s'\\]+'")


def sentence(error: click.UsageError) -> str:
    match error:
        case click.MissingParameter(param=click.Parameter(type=click.Choice(choices=choices)) as parameter):
            # click writes the choices below each other, and a complaint is one line.
            return f"Missing {parameter.param_type_name} '{_name(parameter)}': one of {', '.join(choices)}."
        case click.MissingParameter() | click.BadParameter(param=None):
            return error.format_message()
        case click.BadParameter(param=click.Parameter() as parameter, message=message):
            name = _name(parameter)
            found = _GIVEN.fullmatch(message)
            if found is None:
                return f"{name}: {message}"
            given, rest = found.groups()
            expected = _number(parameter.type) if rest.startswith(_OF_NUMBERS) else ""
            if not expected:
                return f"{name} {given} {rest}"
            plain = given[1:-1] if _PLAIN.fullmatch(given) else given.removesuffix(".0")
            return f"{name} {plain} is not a {'finite ' if 'finite' in rest else ''}{expected}."
    return error.format_message()


def _name(parameter: click.Parameter) -> str:
    is_argument = isinstance(parameter, click.Argument)
    return parameter.human_readable_name if is_argument else max(parameter.opts, key=len)


def _number(kind: object) -> str:
    """`whole number from 1 to 8`; empty if the parameter is not a number."""
    if not isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return ""
    noun = "whole number" if isinstance(kind, click.types.IntParamType) else "number"
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return noun
    low, high = _bound(kind.min), _bound(kind.max)
    if low and high and not (kind.min_open or kind.max_open):
        return f"{noun} from {low} to {high}"
    limits = [f"{'above' if kind.min_open else 'of at least'} {low}"] if low else []
    limits += [f"{'below' if kind.max_open else 'of at most'} {high}"] if high else []
    return " ".join([noun, " and ".join(limits)])


def _bound(value: float | None) -> str:
    if value is None:
        return ""
    return wording.number(value, 12)
