"""Sums of GPU-nanoseconds between given moments, to the nanosecond.

The course over time (`timeline`) has buckets whose bounds are its own. A window of a month, or a price that
changes at noon, needs sums up to that very moment. `Cuts` keeps them: by key, and by incident and key. What
lies before a moment depends on that moment alone, not on the other cuts; so windows that tile the time sum
to the whole, whichever windows they are.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

Sums = dict[int, int]
"""GPU-ns by key (see `tally`)."""


class Cuts:
    """edges: the moments, in order. parts: the sums before the first, between two, and after the last.

    blamed: of each incident, by its number, what it cost of these parts; only those in which it cost
    anything, because a run may have a thousand incidents, and prices that change every hour.
    """

    __slots__ = ("blamed", "edges", "parts")

    def __init__(self, edges: Iterable[int]) -> None:
        self.edges = sorted(set(edges))
        self.parts: list[Sums] = [{} for _ in range(len(self.edges) + 1)]
        self.blamed: dict[int, dict[int, Sums]] = {}

    @classmethod
    def after(cls, sums: Sums, blamed: Mapping[int, Sums]) -> "Cuts":
        """Without a cut so far, and with these sums."""
        cuts = cls(())
        cuts.parts = [sums.copy()]
        cuts.blamed = {incident: {0: of.copy()} for incident, of in blamed.items() if of}
        return cuts

    def copy(self) -> "Cuts":
        twin = Cuts(())
        twin.edges = self.edges.copy()
        twin.parts = [part.copy() for part in self.parts]
        twin.blamed = {
            incident: {index: part.copy() for index, part in parts.items()}
            for incident, parts in self.blamed.items()
        }
        return twin

    def cut_at(self, now_ns: int) -> None:
        """Cut at this moment, after which nothing was added yet: only empty parts move on by one."""
        index = bisect_left(self.edges, now_ns)
        if index < len(self.edges) and self.edges[index] == now_ns:
            return
        self.edges.insert(index, now_ns)
        self.parts.insert(index + 1, {})

    def add(self, key: int, from_ns: int, to_ns: int, gpus: int) -> None:
        for index, gpu_ns in self._spread(from_ns, to_ns, gpus):
            part = self.parts[index]
            part[key] = part.get(key, 0) + gpu_ns

    def blame(self, incident: int, key: int, from_ns: int, to_ns: int, gpus: int) -> None:
        """The incident answers for this much of what was added."""
        parts = self.blamed.setdefault(incident, {})
        for index, gpu_ns in self._spread(from_ns, to_ns, gpus):
            _put(parts, index, key, gpu_ns)

    def discard(self, key: int, to: int, gpu_ns: int, blamed: int | None, owed: int | None) -> None:
        """The latest `gpu_ns` under a key belong under another, and to the incident that owes them."""
        latest = ((index, self.parts[index]) for index in reversed(range(len(self.parts))))
        moved = _take_latest(latest, key, gpu_ns)
        for index, part in moved:
            self.parts[index][to] = self.parts[index].get(to, 0) + part
        if blamed is not None:
            _take_latest(sorted(self.blamed.get(blamed, {}).items(), reverse=True), key, gpu_ns)
        if owed is not None:
            parts = self.blamed.setdefault(owed, {})
            for index, part in moved:
                _put(parts, index, to, part)

    def _spread(self, from_ns: int, to_ns: int, gpus: int) -> Iterator[tuple[int, int]]:
        """What lies in which part, in GPU-ns."""
        edges = self.edges
        index = bisect_right(edges, from_ns)
        while from_ns < to_ns:
            edge_ns = min(to_ns, edges[index]) if index < len(edges) else to_ns
            yield index, (edge_ns - from_ns) * gpus
            from_ns = edge_ns
            index += 1


def _put(parts: dict[int, Sums], index: int, key: int, gpu_ns: int) -> None:
    part = parts.setdefault(index, {})
    part[key] = part.get(key, 0) + gpu_ns


def _take_latest(latest: Iterable[tuple[int, Sums]], key: int, gpu_ns: int) -> list[tuple[int, int]]:
    """Take so much from the latest parts that have this key: from which how much."""
    taken = []
    for index, sums in latest:
        part = min(gpu_ns, sums.get(key, 0))
        if part:
            sums[key] -= part
            gpu_ns -= part
            taken.append((index, part))
        if not gpu_ns:
            break
    return taken
