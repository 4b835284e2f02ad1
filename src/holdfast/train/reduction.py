"""The sum over all lanes of a step, on every member: the tree reduction.

Every member owns a slice of each bucket. It receives that slice of every subtree that others hold, adds them
up in tree order, and sends the result to all. With one subtree per member this moves as many bytes as a ring
all-reduce. Its operations begin as buckets become ready, in one order on all members, and complete in
`finish`. On a GPU, where waiting costs the host nothing, a bucket's sums are shared together with the slices
of the next, so that nearly all of it overlaps with the backward pass; otherwise they are shared in `finish`.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from holdfast.train import tree
from holdfast.train.group import Group, Transfer, Work
from holdfast.train.sheets import ALIGNMENT, BucketLayout, Sheet


class _Transfers(NamedTuple):
    sends: list[Transfer]
    receives: list[Transfer]


class Reduction:
    """The reduction of one generation. `nodes`: the subtrees each rank holds when its lanes are done."""

    def __init__(self, group: Group, layout: BucketLayout, nodes: Sequence[Sequence[tree.Node]]) -> None:
        self._group = group
        self._layout = layout
        self._nodes = nodes
        self._order, self._top = tree.additions(layout.lanes, {node for held in nodes for node in held})
        self._memories: dict[object, torch.Tensor] = {}
        self._scratch: dict[int, dict[tree.Node, torch.Tensor]] = {}
        self._arriving: dict[int, Work] = {}
        self._held: dict[tree.Node, Sheet] = {}
        self._total: Sheet | None = None

    def begin(self, held: dict[tree.Node, Sheet], total: Sheet) -> None:
        """Begin a step. held: what this rank holds; each bucket is complete when it is launched. total: takes
        the sum.
        """
        self._held = held
        self._total = total
        self.drop()

    def launch(self, bucket: int) -> None:
        """The bucket is complete in everything this rank holds: send the others their slices of it."""
        with self._group.along():
            # One exchange, not two: after an abort, every exchange in the device's queue takes its time.
            sums = self._sums(bucket - 1) if self._group.is_ordered and bucket else _Transfers([], [])
            slices = self._parts(bucket)
            self._arriving[bucket] = self._group.exchange(
                sums.sends + slices.sends, sums.receives + slices.receives, 2 * bucket
            )

    def finish(self) -> None:
        """All buckets are launched: add up, and share the result. Raises `GroupBroken`.

        It is not known then whether all members have the sum. The caller confirms that, while it keeps its
        own.
        """
        buckets = range(self._layout.buckets)
        with self._group.along():
            works = [self._gather(bucket) for bucket in (buckets[-1:] if self._group.is_ordered else buckets)]
        if not self._group.is_ordered:
            for work in works:
                work.wait()
        self._group.settle()

    def drop(self) -> None:
        """The group is aborted: release the operations under way, so that nothing writes into our memory."""
        self._arriving.clear()

    def _parts(self, bucket: int) -> "_Transfers":
        """Exchange each rank's slice of everything held."""
        assert self._total is not None
        own = [self._held[node].flats[bucket] for node in self._nodes[self._group.rank]]
        slices = self._slices(self._total.flats[bucket].numel())
        scratch = self._scratch_for(bucket, self._total.flats[bucket], slices[self._group.rank])
        sends: list[Transfer] = []
        receives: list[Transfer] = []
        for peer in self._peers():
            if slices[self._group.rank]:
                receives += [(scratch[node], peer) for node in self._nodes[peer]]
            if slices[peer]:
                sends += [(_part(flat, slices[peer]), peer) for flat in own]
        return _Transfers(sends, receives)

    def _gather(self, bucket: int) -> Work:
        sums = self._sums(bucket)
        return self._group.exchange(sums.sends, sums.receives, 2 * bucket + 1)

    def _sums(self, bucket: int) -> "_Transfers":
        """The sums of this rank for all others, and the sums of the others."""
        assert self._total is not None
        self._arriving.pop(bucket).wait()
        result = self._total.flats[bucket]
        slices = self._slices(result.numel())
        mine = slices[self._group.rank]
        if mine:
            self._add(bucket, mine, _part(result, mine))
        sends = [(_part(result, mine), peer) for peer in self._peers() if mine]
        receives = [(_part(result, slices[peer]), peer) for peer in self._peers() if slices[peer]]
        return _Transfers(sends, receives)

    def _add(self, bucket: int, mine: range, result: torch.Tensor) -> None:
        """Add up the slice, in place in the received data: what this rank itself holds must not change."""
        values = dict(self._scratch_for(bucket, result, mine))
        received = frozenset(values)
        for node in self._nodes[self._group.rank]:
            values[node] = _part(self._held[node].flats[bucket], mine)
        if not self._order:  # one rank holds everything
            result.copy_(values[self._top])
        add_up(self._order, values, result, spare=received)

    def _scratch_for(self, bucket: int, like: torch.Tensor, mine: range) -> dict[tree.Node, torch.Tensor]:
        """Memory for incoming slices. Buckets of one type share it if they arrive one after the other."""
        if bucket not in self._scratch:
            remote = [node for peer in self._peers() for node in self._nodes[peer]]
            memory = self._memory(bucket, like, len(remote), len(mine))
            views = memory[: len(remote) * len(mine)].view(len(remote), len(mine))
            self._scratch[bucket] = dict(zip(remote, views, strict=True))
        return self._scratch[bucket]

    def _memory(self, bucket: int, like: torch.Tensor, slices: int, numel: int) -> torch.Tensor:
        key: object = bucket
        if self._group.is_ordered:
            key, numel = like.dtype, len(self._slices(self._layout.numel_max(like.dtype))[0])
        if key not in self._memories:
            self._memories[key] = torch.empty(slices * numel, dtype=like.dtype, device=like.device)
        return self._memories[key]

    def _peers(self) -> list[int]:
        """All other ranks, beginning with the next one, so that no member is the first for all."""
        rank, size = self._group.rank, self._group.size
        return [(rank + distance) % size for distance in range(1, size)]

    def _slices(self, numel: int) -> list[range]:
        size = -(-numel // self._group.size // ALIGNMENT) * ALIGNMENT
        starts = [min(numel, rank * size) for rank in range(self._group.size + 1)]
        return [range(start, stop) for start, stop in pairwise(starts)]


def _part(flat: torch.Tensor, part: range) -> torch.Tensor:
    return flat[part.start : part.stop]


def add_up(
    order: Sequence[tree.Addition],
    values: dict[tree.Node, torch.Tensor],
    result: torch.Tensor,
    *,
    spare: Collection[tree.Node] = (),
) -> None:
    """Sum all values into `result`. spare: the values that may be overwritten."""
    free = set(spare)
    for number, (node, left, right) in enumerate(order, 1):
        if number == len(order):
            torch.add(values[left], values[right], out=result)
        elif left in free or right in free:
            into, other = (left, right) if left in free else (right, left)
            values[node] = values[into].add_(values[other])
        else:
            values[node] = values[left] + values[right]
        free.add(node)
