"""The one tree of errors a user may see: a clear sentence, and a hint on what to do about it.

Everything a person can get wrong ends as a `HoldfastError`; the command line prints it in two lines and
exits with code 2, unless the error says another. Anything else that escapes is a defect of ours and keeps
its traceback.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import ClassVar

from holdfast.record.untrusted import printable


def complaint(sentence: str, hint: str) -> str:
    """A sentence and a hint in the two lines that every process of Holdfast ends with for a mistake. Names in
    them come from others, and nothing in one may move a terminal's cursor.
    """
    sentence, hint = printable(sentence), printable(hint)
    return f"{COMPLAINT_PREFIX} {sentence}\n  hint: {hint}" if hint else f"{COMPLAINT_PREFIX} {sentence}"


COMPLAINT_PREFIX = "holdfast:"


def nearest(
    name: str, known: Collection[str], otherwise: str, *, likeness: float = 0.6, quote: str = ""
) -> str:
    """The hint for a name that is not known: the one that it looks most like, if there is any."""
    near = get_close_matches(name, known, n=1, cutoff=likeness)
    return f"Did you mean {quote}{near[0]}{quote}?" if near else otherwise


class HoldfastError(Exception):
    """A user's mistake or a broken input, told in one sentence and one hint. exit_code: of the command."""

    exit_code: ClassVar[int] = 2

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint

    @property
    def told(self) -> str:
        """As the user sees it."""
        return complaint(self.sentence, self.hint)


class InputError(HoldfastError):
    """A file, flag or value that cannot be used as it was given."""


class StoreError(HoldfastError):
    """A store that cannot be opened, read or written."""
