"""How the verbs read a small file that a user wrote: a mistake in it is told with its name."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.record.errors import InputError

Told = TypeVar("Told")


def parsed(path: Path, parse: Callable[[str], Told], *, what: str, hint: str) -> Told:
    """What `parse` makes of the file's text. hint: how to come by such a file where this one is not there."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from None
    except OSError as error:
        raise InputError(f"The {what} cannot be read from {path}: {error.strerror}.", hint=hint) from None
    except InputError as error:
        raise InputError(f"{path}: {error.sentence}", hint=error.hint) from None
