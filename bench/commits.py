"""The commits of a recovery benchmark's workers, read from the files that each of them appends to."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

SUFFIX = ".commits"
UNTOLD = 0
"""The `world` of a process that does not know how many members made the step."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A process kept the result of a step that `world` members made."""

    process: int
    step: int
    world: int
    at_ns: int


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A step that a whole membership has committed, the last of them at `at_ns`."""

    step: int
    at_ns: int
    processes: frozenset[int]


def read_commits(folder: Path) -> list[Commit]:
    """All commits in order of time. Half a line at the end of a file is still being written."""
    found = [
        Commit(process=int(file.stem), step=int(step), world=int(world), at_ns=int(at_ns))
        for file in folder.glob(f"*{SUFFIX}")
        for line in file.read_text(encoding="ascii").splitlines(keepends=True)
        if line.endswith("\n")
        for step, world, at_ns in [line.split()]
    ]
    return sorted(found, key=lambda commit: commit.at_ns)


def whole_steps(commits: Iterable[Commit], members: int, *, after_ns: int = 0) -> list[Whole]:
    """The steps that a membership of this size committed entirely after that moment.

    If processes do not say how many they are, any `members` of them count.
    """
    by_step: dict[int, set[int]] = {}
    found = []
    for commit in commits:
        if commit.world in (members, UNTOLD) and commit.at_ns > after_ns:
            processes = by_step.setdefault(commit.step, set())
            processes.add(commit.process)
            if len(processes) == members:
                found.append(Whole(step=commit.step, at_ns=commit.at_ns, processes=frozenset(processes)))
    return found


def steps_lost(commits: Iterable[Commit], resumed: Whole, killed_ns: int) -> int:
    """Steps that a process had committed before the kill and that were done again after it."""
    highest = max((commit.step for commit in commits if commit.at_ns <= killed_ns), default=0)
    return max(0, highest - resumed.step + 1)


def step_s(steps: list[Whole]) -> float:
    """The usual time from one whole step to the next."""
    return median(after.at_ns - before.at_ns for before, after in pairwise(steps)) / 1e9
