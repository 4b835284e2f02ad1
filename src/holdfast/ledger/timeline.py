"""Tallies over time: between given moments, and in equal buckets whose width doubles as the run grows."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

from holdfast.ledger.copies import copied

Sums = dict[int, int]
"""GPU-ns by key (see `tally`)."""


class Cuts:
    """Sums between given moments, to the nanosecond: a month, or a price that changes at noon, needs exact
    sums. The sum before a moment does not depend on the other cuts, so any windows that tile the time sum to
    the whole.

    edges: the moments, in order. parts: the sums before the first, between two, and after the last.

    blamed: for each incident, by its number, its cost in each part; only parts in which it cost anything,
    because a run may have a thousand incidents, and prices that change every hour.
    """

    __slots__ = ("blamed", "edges", "parts")

    def __init__(self, edges: Iterable[int]) -> None:
        self.edges = sorted(set(edges))
        self.parts: list[Sums] = [{} for _ in range(len(self.edges) + 1)]
        self.blamed: dict[int, dict[int, Sums]] = {}

    @classmethod
    def after(cls, sums: Sums, blamed: Mapping[int, Sums]) -> "Cuts":
        """Cuts without edges that start from these sums."""
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
        """Cut at this moment. Nothing after it was added yet, so only empty parts shift."""
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
        """Charge this much of the sums to the incident."""
        parts = self.blamed.setdefault(incident, {})
        for index, gpu_ns in self._spread(from_ns, to_ns, gpus):
            _put(parts, index, key, gpu_ns)

    def discard(self, key: int, to: int, gpu_ns: int, blamed: int | None, owed: int | None) -> None:
        """Move the latest `gpu_ns` from one key to another, and to the incident that owes them."""
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
        """The index of each part that the stretch touches, with the GPU-ns in it."""
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
    """Take `gpu_ns` from the latest parts that have this key. Return the amount taken from each."""
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


BUCKETS_MAX = 512
WIDTH_NS_MIN_LOG2 = 30  # about a second; shorter buckets would not help anyone act


class Timeline:
    """GPU-ns by key (see `tally`) in buckets of 2**width_log2 ns from `origin_ns` on.

    timed: how many measurements of steps ended in each bucket; one measurement may cover many steps.
    cuts: the same between given moments, if wanted.
    """

    __slots__ = ("_from_ns", "_latest", "_until_ns", "buckets", "cuts", "origin_ns", "timed", "width_log2")

    def __init__(self, origin_ns: int, cuts: Cuts | None = None) -> None:
        self.origin_ns = origin_ns
        self.cuts = cuts
        self.width_log2 = WIDTH_NS_MIN_LOG2
        self.buckets: list[dict[int, int]] = [{}]
        self.timed = [0]
        self._mark_latest()

    def add(self, key: int, from_ns: int, to_ns: int, gpus: int) -> None:
        """`gpus` GPUs did `key` from `from_ns` until `to_ns`. Calls come roughly in order of time."""
        if self._from_ns <= from_ns and to_ns <= self._until_ns:
            bucket = self._latest
            bucket[key] = bucket.get(key, 0) + (to_ns - from_ns) * gpus
            return
        if self.cuts is not None:
            self.cuts.add(key, from_ns, to_ns, gpus)
        for index in range(*self._span(from_ns, to_ns)):
            edge_ns = min(to_ns, self.origin_ns + (index + 1 << self.width_log2))
            bucket = self.buckets[index]
            bucket[key] = bucket.get(key, 0) + (edge_ns - from_ns) * gpus
            from_ns = edge_ns

    def move_latest(self, key: int, to: int, gpu_ns: int) -> int:
        """Move the latest `gpu_ns` added under `key` to another key. Return since when they were spent."""
        number = len(self.buckets)
        while gpu_ns and number:
            number -= 1
            bucket = self.buckets[number]
            part = min(gpu_ns, bucket.get(key, 0))
            if part:
                bucket[key] -= part
                bucket[to] = bucket.get(to, 0) + part
                gpu_ns -= part
        return self.origin_ns + (number << self.width_log2)

    def keep_cuts(self, cuts: Cuts) -> None:
        """From now on, add to these cuts as well."""
        self.cuts = cuts
        self._mark_latest()

    def copy(self) -> "Timeline":
        twin = copied(self, "cuts", "timed")
        twin.buckets = [bucket.copy() for bucket in self.buckets]
        twin._mark_latest()
        return twin

    def _span(self, from_ns: int, to_ns: int) -> tuple[int, int]:
        """Make room for this stretch. Return its first bucket and the one after its last."""
        while (to_ns - 1 - self.origin_ns) >> self.width_log2 >= BUCKETS_MAX:
            self._coarsen()
        end = ((to_ns - 1 - self.origin_ns) >> self.width_log2) + 1
        while len(self.buckets) < end:
            self.buckets.append({})
            self.timed.append(0)
        self._mark_latest()
        return (from_ns - self.origin_ns) >> self.width_log2, end

    def _mark_latest(self) -> None:
        self._latest = self.buckets[-1]
        self._until_ns = self.origin_ns + (len(self.buckets) << self.width_log2)
        self._from_ns = self._until_ns - (1 << self.width_log2)
        if self.cuts is not None:
            self._until_ns = -1  # disables the shortcut in `add`, which ignores cuts

    def _coarsen(self) -> None:
        self.width_log2 += 1
        merged = self.buckets[::2]
        for into, bucket in zip(merged, self.buckets[1::2], strict=False):
            for key, gpu_ns in bucket.items():
                into[key] = into.get(key, 0) + gpu_ns
        self.buckets = merged
        self.timed = [sum(self.timed[index : index + 2]) for index in range(0, len(self.timed), 2)]
