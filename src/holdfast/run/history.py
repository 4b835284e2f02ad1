"""A run's memory of its past: how long it worked on which steps, and which failures it survived."""

import re
from collections.abc import Collection
from itertools import pairwise

import msgspec

from holdfast.wording import many

MARKS_MAX = 256
"""The most steps for which the work before them is kept."""
KINDS_MAX = 64
"""How many different failures of a script are distinguished; further ones are only counted."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def gist(words: str) -> str:
    """The words without their numbers: line numbers, ports and addresses differ each time."""
    return _NUMBERS.sub("#", words)


class Worked(msgspec.Struct, kw_only=True):
    """How long the run has worked on its steps. marks: pairs of a step and the work until its end."""

    total_ns: int = 0
    marks: list[tuple[int, int]] = []

    def note(self, step: int, took_ns: int) -> None:
        """Note that the run has this step and worked on it for `took_ns`."""
        self.total_ns += took_ns
        self.marks.append((step, self.total_ns))
        if len(self.marks) > MARKS_MAX:
            del self.marks[1:-1:2]

    def since_ns(self, step: int) -> int:
        """How long it worked on the steps after this one. Steps between two marks count the same."""
        for (low, low_ns), (high, high_ns) in pairwise([(0, 0), *self.marks]):
            if low <= step < high:
                return self.total_ns - low_ns - (high_ns - low_ns) * (step - low) // (high - low)
        return 0

    def go_back(self, step: int) -> None:
        """Forget the work after this step, which has to be done again."""
        self.total_ns -= self.since_ns(step)
        self.marks = [*(mark for mark in self.marks if mark[0] < step), (step, self.total_ns)]


class Survived(msgspec.Struct, kw_only=True):
    """Failures of the script after which the run continued.

    errors: how many. known: the gist of each. printed: those whose traceback was printed. held: member and
    complaint, until it is certain that the run continues. If the run ends with one of them, it is printed
    then.
    """

    errors: int = 0
    known: set[str] = set()
    printed: set[str] = set()
    held: list[tuple[str, str]] = []

    def knows(self, complaint: str) -> bool:
        """Whether the same failure happened before."""
        return gist(complaint) in self.known

    def note(self, complaint: str) -> None:
        """Count a failure."""
        self.errors += 1
        if len(self.known) < KINDS_MAX:
            self.known.add(gist(complaint))

    def hold(self, member: str, complaint: str) -> None:
        """Keep a member's complaint until it may be printed."""
        told = gist(complaint)
        if complaint and told not in self.printed and len(self.printed) < KINDS_MAX:
            self.printed.add(told)
            self.held.append((member, complaint))

    def forget(self, members: Collection[str]) -> None:
        """Do not print the complaints of these members."""
        self.held = [(member, complaint) for member, complaint in self.held if member not in members]

    def told(self, but: str) -> list[tuple[str, str]]:
        """The complaints to print now. but: the complaint that the run ends with, which is printed then."""
        held, self.held = self.held, []
        return [(member, complaint) for member, complaint in held if gist(complaint) != gist(but)]

    @property
    def words(self) -> str:
        """A phrase for the line that says how the run ended."""
        count = many(self.errors, "survived error")
        return f" with {count}" if self.errors else ""
