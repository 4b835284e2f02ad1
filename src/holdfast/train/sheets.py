"""Where gradients live: flat sheets of memory, and their fold along the tree.

A sheet holds everything that one lane contributes to a step: gradients in buckets, in the order in which
backward makes them; moving buffers (BatchNorm's statistics); and a tail of small values that travel along:
every lane's loss, a mark that it was computed with the generation its member knows of, the member's times,
prints for audits, and which parameters were used. Sheets add up element by element, so that neither bucket
sizes nor slices can change a bit of the result.

A member that folds k neighbouring lanes needs log2(k) + 1 sheets, and one more if it folds nothing.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from holdfast.train import shards, tree
from holdfast.train.prints import PARTS
from holdfast.train.skeleton import is_dense

BUCKET_BYTES = {"cpu": 16 << 20, "cuda": 50 << 20}
"""Small enough to overlap with backward, large enough that the cost of starting an exchange
does not matter.
"""
BUCKETS_MAX = 96
"""Buckets grow rather than multiply: each adds a few operations to a GPU's queue of about a thousand."""
ALIGNMENT = 16
"""In elements; keeps every view on a boundary that suits vector instructions."""
TOLD = 8
"""How many figures a member sends the others: of its times, see measures.py, and of its checkpoints."""
PRINTS = 3 * PARTS + 1
"""Rows for audits: the print of each lane by its owner and by its auditor, the print of a member's state in
its last lane, and the interval in steps at which that member would compare states.
"""
_TAIL_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Region:
    """A stretch of one bucket."""

    bucket: int
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, flats: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.inside(flats[self.bucket], self.start)

    def inside(self, flat: torch.Tensor, start: int) -> torch.Tensor:
        """The same stretch, beginning at `start` of a flat tensor."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + start)


class BucketLayout:
    """Which stretch of which bucket holds what. The same on every member, as their models are."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        moving: Sequence[torch.Tensor],
        lanes: int,
        *,
        slices: int = 1,
        shared: Collection[int] = (),
        bucket_bytes: int | None = None,
    ) -> None:
        """slices: how many slices the ranks of a replica cut each lane into. shared: the numbers of the
        parameters that each of these ranks has completely.
        """
        self.lanes = lanes
        self.parameters = parameters
        self.device = parameters[0].device
        self._sizes: list[int] = []
        self._dtypes: list[torch.dtype] = []
        parameters = [shards.local_of(parameter) for parameter in parameters]
        size_bytes = sum(parameter.nbytes for parameter in parameters)
        self._bucket_bytes = bucket_bytes or max(BUCKET_BYTES[self.device.type], size_bytes // BUCKETS_MAX)
        self.gradients: list[Region] = [Region(0, 0, (), ())] * len(parameters)
        order = [index for index in reversed(range(len(parameters))) if index not in shared]
        for index in order:  # backward goes from the last to the first
            self.gradients[index] = self._place(parameters[index])
        self.shared = len(self._sizes)
        """Buckets from here on are summed over the ranks of a replica at the end of each lane."""
        if slices > 1:
            self._open(parameters[0].dtype)
        for index in sorted(shared, reverse=True):
            # The limit must be the same on all ranks: their parts of other parameters may differ in size.
            self.gradients[index] = self._place(
                parameters[index], self.shared, BUCKET_BYTES[self.device.type]
            )
        self.waits_for = [0] * len(self._sizes)
        for region in self.gradients:
            self.waits_for[region.bucket] += 1
        # The last bucket of gradients completes last anyway; only then are the contents of the tail known.
        if self._dtypes[-1] not in _TAIL_DTYPES:
            self._open(torch.float32)
        tail = len(self._sizes) - 1
        begun = self._sizes[tail]
        count = lanes * slices
        self.losses = self._append(tail, (count,))
        self.pending = self._append(tail, (count,))
        self.told = self._append(tail, (TOLD, count))
        self.prints = self._append(tail, (PRINTS, count))
        self.used = self._append(tail, (len(parameters),))
        self.tail = Region(tail, begun, (self._sizes[tail] - begun,), (1,))
        self.moving = [self._place_moving(tensor, tail) for tensor in moving]
        self.early = range(min(tail, self.shared))

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The type of each bucket."""
        return list(self._dtypes)

    @property
    def buckets(self) -> int:
        return len(self._sizes)

    def numel_max(self, dtype: torch.dtype) -> int:
        """The size of the largest bucket of a type."""
        return max(size for size, kind in zip(self._sizes, self._dtypes, strict=True) if kind == dtype)

    def spans(self, indices: Collection[int]) -> list[tuple[int, slice]]:
        """Where these parameters' gradients are, by bucket, in as few stretches as possible: the gaps between
        two neighbours are zero.
        """
        indices = frozenset(indices)
        chosen = sorted((self.gradients[index] for index in indices), key=lambda one: (one.bucket, one.start))
        others = {
            (one.bucket, one.start)
            for index, one in enumerate(self.gradients)
            if index not in indices and 0 not in one.shape
        }
        found: list[list[int]] = []
        for region in chosen:
            stop = region.start + math.prod(region.shape)
            if (
                found
                and found[-1][0] == region.bucket
                and not any(
                    bucket == region.bucket and found[-1][2] <= start < region.start
                    for bucket, start in others
                )
            ):
                found[-1][2] = stop
            else:
                found.append([region.bucket, region.start, stop])
        return [(bucket, slice(start, stop)) for bucket, start, stop in found]

    def flats(self) -> list[torch.Tensor]:
        pairs = zip(self._sizes, self._dtypes, strict=True)
        return [torch.empty(size, dtype=dtype, device=self.device) for size, dtype in pairs]

    def _place(self, parameter: torch.Tensor, first: int = 0, bytes_max: int | None = None) -> Region:
        """first: the first bucket that may take it."""
        bucket = self._newest(parameter.dtype)
        limit = bytes_max or self._bucket_bytes
        if bucket is None or bucket < first or self._sizes[bucket] * parameter.dtype.itemsize >= limit:
            bucket = self._open(parameter.dtype)
        stride = parameter.stride() if is_dense(parameter) else None
        return self._append(bucket, tuple(parameter.shape), stride)

    def _newest(self, dtype: torch.dtype) -> int | None:
        """The bucket being filled for a type. Types may alternate from parameter to parameter; each has its
        own.
        """
        return max((bucket for bucket, kind in enumerate(self._dtypes) if kind == dtype), default=None)

    def _place_moving(self, tensor: torch.Tensor, tail: int) -> Region:
        dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.int64
        for bucket in range(tail, len(self._sizes)):
            if self._dtypes[bucket] == dtype:
                return self._append(bucket, tuple(tensor.shape))
        return self._append(self._open(dtype), tuple(tensor.shape))

    def _open(self, dtype: torch.dtype) -> int:
        self._sizes.append(0)
        self._dtypes.append(dtype)
        return len(self._sizes) - 1

    def _append(self, bucket: int, shape: tuple[int, ...], stride: tuple[int, ...] | None = None) -> Region:
        start = self._sizes[bucket]
        self._sizes[bucket] += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT
        return Region(bucket, start, shape, stride or _contiguous(shape))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides)) if shape else ()


@dataclass(frozen=True)
class Tail:
    """The small values of a sheet, on the host. pending: by lane, one more than the generation that its
    member knew of, and 0 if no member computed it. told: the members' figures, by figure and leaf. prints:
    see `PRINTS`.
    """

    losses: tuple[float, ...]
    pending: tuple[int, ...]
    told: tuple[tuple[float, ...], ...]
    used: list[float]
    prints: torch.Tensor


class Sheet:
    """One lane's contribution, or the sum of several."""

    def __init__(self, layout: BucketLayout) -> None:
        self._layout = layout
        self.flats = layout.flats()
        self.gradients = [
            shards.like(region.of(self.flats), parameter)
            for region, parameter in zip(layout.gradients, layout.parameters, strict=True)
        ]
        self.moving = [region.of(self.flats) for region in layout.moving]
        self.losses = layout.losses.of(self.flats)
        self.pending = layout.pending.of(self.flats)
        self.told = layout.told.of(self.flats)
        self.prints = layout.prints.of(self.flats)
        self.used = layout.used.of(self.flats)

    def clear(self) -> None:
        for flat in self.flats:
            flat.zero_()

    def contents(self, bucket: int) -> list[torch.Tensor]:
        """The bucket's gradients and moving buffers, without the tail."""
        flat, tail = self.flats[bucket], self._layout.tail
        if bucket != tail.bucket:
            return [flat]
        return [flat[: tail.start], flat[tail.start + tail.shape[0] :]]

    def tail(self) -> Tail:
        """Copy the tail to the host at once: the only moment in a step when the host waits for the device."""
        layout = self._layout
        memory = layout.tail.of(self.flats).cpu()
        losses, pending, told, used = (
            region.inside(memory, region.start - layout.tail.start).tolist()
            for region in (layout.losses, layout.pending, layout.told, layout.used)
        )
        return Tail(
            losses=tuple(losses),
            pending=tuple(map(int, pending)),
            told=tuple(map(tuple, told)),
            used=used,
            prints=layout.prints.inside(memory, layout.prints.start - layout.tail.start),
        )


class LaneFold:
    """The sums that one member holds of the current step, by node of the tree. They are kept until the step
    is committed, so that they need not be computed again when other members die.
    """

    def __init__(self, layout: BucketLayout) -> None:
        self._layout = layout
        self._free: list[Sheet] = []
        self.held: dict[tree.Node, Sheet] = {}
        self._merging: list[Sheet] = []
        self.target: tree.Node = (0, 0)
        """The node under which the current sum will be held."""

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes contained in the held sums."""
        return frozenset(lane for node in self.held for lane in tree.lanes_of(node))

    def take(self) -> Sheet:
        """An unused sheet, with arbitrary contents."""
        return self._free.pop() if self._free else Sheet(self._layout)

    def give(self, sheet: Sheet) -> None:
        self._free.append(sheet)

    def shed(self) -> None:
        """Release the memory of unused sheets: fewer may be enough from here on."""
        self._free.clear()

    def keep_only(self, lanes: Collection[int]) -> None:
        """Drop sums that contain any other lane."""
        for node in list(self.held):
            if not set(tree.lanes_of(node)).issubset(lanes):
                self._free.append(self.held.pop(node))

    def clear(self, keep: Sheet | None) -> None:
        """Drop all sums. `keep` does not become free."""
        self._free.extend(sheet for sheet in self.held.values() if sheet is not keep)
        self.held.clear()

    def open(self, lane: int, sheet: Sheet) -> Sheet:
        """Begin to add `sheet`, the contribution of `lane`.

        Returns the sheet that will hold the sum; one of its buckets is final once `merge` was called for it.
        """
        node: tree.Node = (0, lane)
        self._merging = [sheet]
        while (neighbour := self.held.pop(tree.sibling(node), None)) is not None:
            self._merging.append(neighbour)
            node = tree.parent(node)
        self.target = node
        return self._merging[-1]

    def merge(self, bucket: int) -> None:
        """Add up one bucket. The order of the operands does not change the bits of one addition."""
        for right, left in pairwise(self._merging):
            left.flats[bucket].add_(right.flats[bucket])

    def close(self, keep: Sheet | None) -> None:
        """All buckets are merged: hold the sum, and free the other sheets except `keep`."""
        *freed, total = self._merging
        self._free.extend(sheet for sheet in freed if sheet is not keep)
        self.held[self.target] = total
        self._merging = []
