"""How the verbs are told a moment: as people or machines write one."""

import click

from holdfast.record.errors import InputError
from holdfast.record.importers.intake import time_ns


def moment_ns(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """The callback of an option that takes a moment: ISO 8601, or a number since 1970."""
    try:
        return None if text is None else time_ns(text)
    except ValueError as error:
        raise InputError(f"{parameter.opts[0]}: {error}.", hint="Write it as 2026-01-31T12:00:00Z.") from None
