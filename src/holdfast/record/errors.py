"""The one tree of errors a user may see: a clear sentence, and a hint on what to do about it.

Every user mistake ends as a `HoldfastError`; the command line prints it in two lines and exits with code 2,
unless the error sets another. Any other exception that escapes is a defect of ours and keeps its traceback.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import ClassVar

from holdfast.record.untrusted import printable


def complaint(sentence: str, hint: str) -> str:
    """Format a sentence and a hint as the two lines that every Holdfast process prints for a mistake. Names
    in them are foreign data, so characters that could move a terminal's cursor are escaped."""
    sentence, hint = printable(sentence), printable(hint)
    return f"{COMPLAINT_PREFIX} {sentence}\n  hint: {hint}" if hint else f"{COMPLAINT_PREFIX} {sentence}"


COMPLAINT_PREFIX = "holdfast:"


def nearest(
    name: str, known: Collection[str], otherwise: str, *, likeness: float = 0.6, quote: str = ""
) -> str:
    """The hint for an unknown name: the most similar known name, or `otherwise`."""
    near = get_close_matches(name, known, n=1, cutoff=likeness)
    return f"Did you mean {quote}{near[0]}{quote}?" if near else otherwise


class HoldfastError(Exception):
    """A user's mistake or a broken input, as one sentence and one hint. exit_code: of the command."""

    exit_code: ClassVar[int] = 2

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint

    @property
    def told(self) -> str:
        """The text that the user sees."""
        return complaint(self.sentence, self.hint)


class InputError(HoldfastError):
    """A file, flag or value that cannot be used."""


class StoreError(HoldfastError):
    """A store that cannot be opened, read or written."""
