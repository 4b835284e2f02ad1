"""Sums of GPU-nanoseconds between given moments, to the nanosecond.

The course over time (`timeline`) has buckets whose bounds are its own. A window of a month, or a price that
changes at noon, needs sums up to that very moment. `Cuts` keeps them: by key, and by incident and key. What
lies before a moment depends on that moment alone, not on the other cuts; so windows that tile the time sum
to the whole, whichever windows they are.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

Sums = dict[int, int]
"""GPU-ns by key (see `tally`)."""


class Cuts:
    """edges: the moments, in order. parts: the sums before the first, between two, and after the last."""

    __slots__ = ("blamed", "edges", "parts")

    def __init__(self, edges: Iterable[int]) -> None:
        self.edges = sorted(set(edges))
        self.parts: list[Sums] = [{} for _ in range(len(self.edges) + 1)]
        self.blamed: dict[int, list[Sums]] = {}  # the incident's number: the same of what it cost

    @classmethod
    def after(cls, sums: Sums, blamed: Mapping[int, Sums]) -> "Cuts":
        """Without a cut so far, and with these sums."""
        cuts = cls(())
        cuts.parts = [sums.copy()]
        cuts.blamed = {incident: [of.copy()] for incident, of in blamed.items()}
        return cuts

    def copy(self) -> "Cuts":
        twin = Cuts(())
        twin.edges = self.edges.copy()
        twin.parts = [part.copy() for part in self.parts]
        twin.blamed = {incident: [part.copy() for part in parts] for incident, parts in self.blamed.items()}
        return twin

    def cut_at(self, now_ns: int) -> None:
        """Cut at this moment, after which nothing was added yet."""
        index = bisect_left(self.edges, now_ns)
        if index < len(self.edges) and self.edges[index] == now_ns:
            return
        self.edges.insert(index, now_ns)
        for parts in (self.parts, *self.blamed.values()):
            parts.insert(index + 1, {})

    def add(self, key: int, from_ns: int, to_ns: int, gpus: int) -> None:
        self._add(self.parts, key, from_ns, to_ns, gpus)

    def blame(self, incident: int, key: int, from_ns: int, to_ns: int, gpus: int) -> None:
        """The incident answers for this much of what was added."""
        self._add(self._blamed(incident), key, from_ns, to_ns, gpus)

    def discard(self, key: int, to: int, gpu_ns: int, blamed: int | None, owed: int | None) -> None:
        """The latest `gpu_ns` under a key belong under another, and to the incident that owes them."""
        moved = _take_latest(self.parts, key, gpu_ns)
        for index, part in moved:
            self.parts[index][to] = self.parts[index].get(to, 0) + part
        if blamed is not None:
            _take_latest(self._blamed(blamed), key, gpu_ns)
        if owed is not None:
            parts = self._blamed(owed)
            for index, part in moved:
                parts[index][to] = parts[index].get(to, 0) + part

    def _blamed(self, incident: int) -> list[Sums]:
        return self.blamed.setdefault(incident, [{} for _ in self.parts])

    def _add(self, parts: list[Sums], key: int, from_ns: int, to_ns: int, gpus: int) -> None:
        edges = self.edges
        index = bisect_right(edges, from_ns)
        while from_ns < to_ns:
            edge_ns = min(to_ns, edges[index]) if index < len(edges) else to_ns
            part = parts[index]
            part[key] = part.get(key, 0) + (edge_ns - from_ns) * gpus
            from_ns = edge_ns
            index += 1


def _take_latest(parts: list[Sums], key: int, gpu_ns: int) -> list[tuple[int, int]]:
    """Take so much from the latest parts that have this key: from which how much."""
    taken = []
    for index in range(len(parts) - 1, -1, -1):
        part = min(gpu_ns, parts[index].get(key, 0))
        if part:
            parts[index][key] -= part
            gpu_ns -= part
            taken.append((index, part))
    return taken
