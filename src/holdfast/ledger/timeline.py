"""Tallies over time, in a bounded number of equal buckets whose width doubles as the run grows."""

from holdfast.ledger.copies import copied
from holdfast.ledger.cuts import Cuts

BUCKETS_MAX = 512
WIDTH_NS_MIN_LOG2 = 30  # about a second; a shorter bucket shows nothing a person acts on


class Timeline:
    """GPU-ns by key (see `tally`) in buckets of 2**width_log2 ns from `origin_ns` on.

    timed: how many measurements of steps ended in each bucket; one measurement may be of many steps.
    cuts: the same between given moments, where that is wanted.
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
        """`gpus` GPUs did `key` from `from_ns` until `to_ns`. Stretches come in about the order of time."""
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

    def move_latest(self, key: int, to: int, gpu_ns: int) -> None:
        """Put the latest `gpu_ns` that were added under `key` under another key."""
        for bucket in reversed(self.buckets):
            part = min(gpu_ns, bucket.get(key, 0))
            if part:
                bucket[key] -= part
                bucket[to] = bucket.get(to, 0) + part
                gpu_ns -= part
            if not gpu_ns:
                return

    def keep_cuts(self, cuts: Cuts) -> None:
        """From now on add to these as well."""
        self.cuts = cuts
        self._mark_latest()

    def copy(self) -> "Timeline":
        twin = copied(self, "cuts", "timed")
        twin.buckets = [bucket.copy() for bucket in self.buckets]
        twin._mark_latest()
        return twin

    def _span(self, from_ns: int, to_ns: int) -> tuple[int, int]:
        """The first bucket of this stretch and the one after its last, after making room for them."""
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
            self._until_ns = -1  # the short way of `add` knows nothing of cuts

    def _coarsen(self) -> None:
        self.width_log2 += 1
        merged = self.buckets[::2]
        for into, bucket in zip(merged, self.buckets[1::2], strict=False):
            for key, gpu_ns in bucket.items():
                into[key] = into.get(key, 0) + gpu_ns
        self.buckets = merged
        self.timed = [sum(self.timed[index : index + 2]) for index in range(0, len(self.timed), 2)]
