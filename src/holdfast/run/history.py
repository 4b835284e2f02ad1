"""What a run remembers of its past: how long it worked on which steps, and which failures it survived."""

import re
from collections.abc import Collection
from itertools import pairwise

import msgspec

from holdfast.wording import many

MARKS_MAX = 256
"""Of so many steps at most it is kept how much work there was before them."""
KINDS_MAX = 64
"""So many failures of a script are told apart; further ones are only counted."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def gist(words: str) -> str:
    """What is the same each time the same happens: line numbers, ports and addresses differ."""
    return _NUMBERS.sub("#", words)


class Worked(msgspec.Struct, kw_only=True):
    """How long the run has worked on its steps. marks: how much of it came before the end of these steps."""

    total_ns: int = 0
    marks: list[tuple[int, int]] = []

    def note(self, step: int, took_ns: int) -> None:
        """The run has this step, on which it worked for so long."""
        self.total_ns += took_ns
        self.marks.append((step, self.total_ns))
        if len(self.marks) > MARKS_MAX:
            del self.marks[1:-1:2]

    def since_ns(self, step: int) -> int:
        """How long it worked on what came after this step; between two marks all steps count the same."""
        for (low, low_ns), (high, high_ns) in pairwise([(0, 0), *self.marks]):
            if low <= step < high:
                return self.total_ns - low_ns - (high_ns - low_ns) * (step - low) // (high - low)
        return 0

    def go_back(self, step: int) -> None:
        """What came after this step is to be done again."""
        self.total_ns -= self.since_ns(step)
        self.marks = [*(mark for mark in self.marks if mark[0] < step), (step, self.total_ns)]


class Survived(msgspec.Struct, kw_only=True):
    """Failures of the script after which the run went on.

    errors: how many. known: the gist of each. printed: of which the traceback was printed. held: who failed
    with what, until it is certain that the run goes on: if it ends with one of them, that is printed then.
    """

    errors: int = 0
    known: set[str] = set()
    printed: set[str] = set()
    held: list[tuple[str, str]] = []

    def knows(self, complaint: str) -> bool:
        """Whether the same was there before."""
        return gist(complaint) in self.known

    def note(self, complaint: str) -> None:
        """Count a failure."""
        self.errors += 1
        if len(self.known) < KINDS_MAX:
            self.known.add(gist(complaint))

    def hold(self, member: str, complaint: str) -> None:
        """Keep what a member failed with until it may be printed."""
        told = gist(complaint)
        if complaint and told not in self.printed and len(self.printed) < KINDS_MAX:
            self.printed.add(told)
            self.held.append((member, complaint))

    def forget(self, members: Collection[str]) -> None:
        """Do not print what these failed with."""
        self.held = [(member, complaint) for member, complaint in self.held if member not in members]

    def told(self, but: str) -> list[tuple[str, str]]:
        """What is to be printed now. but: what the run ends with, and is printed with its end."""
        held, self.held = self.held, []
        return [(member, complaint) for member, complaint in held if gist(complaint) != gist(but)]

    @property
    def words(self) -> str:
        """For the line that says how the run ended."""
        count = many(self.errors, "survived error")
        return f" with {count}" if self.errors else ""
