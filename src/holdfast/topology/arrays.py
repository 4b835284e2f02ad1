"""Flat arrays for the edges of a graph, and walks along many of them at once.

Subjects are numbers here; `graph` knows their names. Every walk moves a whole front of subjects in one step,
so that the loop runs in numpy and not in Python.
"""

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int32]
Counts = NDArray[np.int64]
NOT_SEEN = -1
CYCLIC = -1


class Rows(NamedTuple):
    """A list of subjects for each subject: those of number i are targets[starts[i] : starts[i + 1]]."""

    starts: Counts
    targets: Indices

    def of(self, number: int) -> Indices:
        return self.targets[self.starts[number] : self.starts[number + 1]]

    def gather(self, numbers: NDArray[np.integer[Any]]) -> tuple[Counts, Indices]:
        """The length of each list, and the lists one after the other."""
        begins = self.starts[numbers]
        lengths = self.starts[numbers + 1] - begins
        ends = np.cumsum(lengths)
        offsets = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
        return lengths, self.targets[offsets]


def rows_of(sources: Indices, targets: Indices, size: int) -> Rows:
    order = np.lexsort((targets, sources))
    starts = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(sources, minlength=size), out=starts[1:])
    return Rows(starts, targets[order])


def depths_of(dependencies: Rows, dependents: Rows) -> Indices:
    """The longest path from each subject to one that depends on nothing.

    CYCLIC for subjects on a cycle, or that depend on one.
    """
    waiting = np.diff(dependencies.starts)
    depths = np.full(len(waiting), CYCLIC, np.int32)
    ready = np.flatnonzero(waiting == 0)
    depth = 0
    while len(ready):
        depths[ready] = depth
        targets, times = np.unique(dependents.gather(ready)[1], return_counts=True)
        waiting[targets] -= times
        ready = targets[waiting[targets] == 0]
        depth += 1
    return depths


_Numbers = TypeVar("_Numbers", Indices, Counts)


def unique(numbers: _Numbers) -> _Numbers:
    """Sorted numbers without duplicates, like np.unique, but much faster for many."""
    ascending = np.sort(numbers)
    first = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]


def reachable(rows: Rows, start: int) -> Indices:
    """All reachable subjects, ascending, without the start."""
    seen = np.zeros(len(rows.starts) - 1, np.bool_)
    front = np.array([start], np.int32)
    while len(front):
        found = rows.gather(front)[1]
        fresh = found[~seen[found]]
        seen[fresh] = True
        front = unique(fresh)
    return np.flatnonzero(seen).astype(np.int32)


class Search:
    """A search for the shortest path from a start to a goal, level by level; `found` once it gets there.

    Among several shortest paths it takes one with the fewest changes of owner, then the one whose last
    subject but one comes first in order.
    """

    def __init__(self, rows: Rows, start: int, goal: int, owners: Indices) -> None:
        self._rows = rows
        self._owners = owners
        self._start = start
        self._goal = goal
        self._came_from = np.full(len(owners), NOT_SEEN, np.int32)
        self._came_from[start] = start
        self._changes = np.zeros(len(owners), np.int32)
        self.front: Indices = np.array([start], np.int32)

    @property
    def found(self) -> bool:
        return bool(self._came_from[self._goal] != NOT_SEEN)

    def advance(self) -> None:
        lengths, targets = self._rows.gather(self.front)
        fresh = self._came_from[targets] == NOT_SEEN
        comers, targets = np.repeat(self.front, lengths)[fresh], targets[fresh]
        changes = self._changes[comers] + (self._owners[comers] != self._owners[targets])
        # Written from the worst to the best, so that the best remains. Comers are ascending already.
        worst_first = np.argsort(changes, kind="stable")[::-1]
        self._came_from[targets[worst_first]] = comers[worst_first]
        self._changes[targets[worst_first]] = changes[worst_first]
        self.front = unique(targets)

    def way(self) -> list[int]:
        """From the start to the goal; empty if it was not found."""
        if not self.found:
            return []
        way = [self._goal]
        while way[-1] != self._start:
            way.append(int(self._came_from[way[-1]]))
        return way[::-1]


def closure(rows: Rows, starts: Counts, size: int) -> Rows:
    """For each start, by its place in `starts`, everything it reaches, each once."""
    places = np.arange(len(starts), dtype=np.int64)
    pairs: Counts = places * size + starts
    found: list[Counts] = []
    while len(pairs):
        lengths, targets = rows.gather(pairs % size)
        pairs = unique(np.repeat(pairs // size, lengths) * size + targets)
        found.append(pairs)
    every = unique(np.concatenate(found)) if found else pairs
    counts = np.bincount(every // max(1, size), minlength=len(starts))
    return Rows(np.concatenate(([0], np.cumsum(counts))), (every % max(1, size)).astype(np.int32))
