"""Where gradients live: flat sheets of memory, and their fold along the tree.

A sheet holds everything one lane contributes to a step: gradients in buckets, in the order in which backward
makes them; moving buffers (BatchNorm's statistics); and a tail of small things that ride along: every lane's
loss, the generation its member knows of, the times that it tells, and which parameters were used. Sheets add
up element by element, so that neither bucket sizes nor slices can change a bit of the result.

A member that folds k neighbouring lanes needs log2(k) + 1 sheets, and one more where it folds nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from holdfast.train import tree
from holdfast.train.skeleton import is_dense

BUCKET_BYTES = {"cpu": 16 << 20, "cuda": 50 << 20}
"""Small enough to overlap with backward, large enough not to pay for beginnings."""
BUCKETS_MAX = 96
"""Larger ones rather than more: each adds a few operations to a GPU's queue, which holds about a thousand."""
ALIGNMENT = 16
"""Elements; keeps every view on a boundary that vector instructions like."""
TOLD = 2
"""How many times a member tells the others: see measures.py."""
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
        """The same stretch where it begins at `start` of a flat tensor."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + start)


class BucketLayout:
    """Which stretch of which bucket holds what. The same on every member, as their models are."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        moving: Sequence[torch.Tensor],
        lanes: int,
        *,
        bucket_bytes: int | None = None,
    ) -> None:
        self.lanes = lanes
        self.device = parameters[0].device
        self._sizes: list[int] = []
        self._dtypes: list[torch.dtype] = []
        size_bytes = sum(parameter.nbytes for parameter in parameters)
        self._bucket_bytes = bucket_bytes or max(BUCKET_BYTES[self.device.type], size_bytes // BUCKETS_MAX)
        self.gradients: list[Region] = [Region(0, 0, (), ())] * len(parameters)
        for index in reversed(range(len(parameters))):  # backward goes from the last to the first
            self.gradients[index] = self._place(parameters[index])
        self.waits_for = [0] * len(self._sizes)
        for region in self.gradients:
            self.waits_for[region.bucket] += 1
        # The last bucket of gradients completes last anyway; what the tail needs is known only then.
        if self._dtypes[-1] not in _TAIL_DTYPES:
            self._open(torch.float32)
        tail = len(self._sizes) - 1
        begun = self._sizes[tail]
        self.losses = self._append(tail, (lanes,))
        self.pending = self._append(tail, (lanes,))
        self.told = self._append(tail, (TOLD, lanes))
        self.used = self._append(tail, (len(parameters),))
        self.tail = Region(tail, begun, (self._sizes[tail] - begun,), (1,))
        self.moving = [self._place_moving(tensor, tail) for tensor in moving]
        self.early = range(tail)

    @property
    def buckets(self) -> int:
        return len(self._sizes)

    def numel_max(self, dtype: torch.dtype) -> int:
        """Of the largest bucket of a type."""
        return max(size for size, kind in zip(self._sizes, self._dtypes, strict=True) if kind == dtype)

    def flats(self) -> list[torch.Tensor]:
        pairs = zip(self._sizes, self._dtypes, strict=True)
        return [torch.empty(size, dtype=dtype, device=self.device) for size, dtype in pairs]

    def _place(self, parameter: torch.Tensor) -> Region:
        bucket = self._newest(parameter.dtype)
        if bucket is None or self._sizes[bucket] * parameter.dtype.itemsize >= self._bucket_bytes:
            bucket = self._open(parameter.dtype)
        stride = parameter.stride() if is_dense(parameter) else None
        return self._append(bucket, tuple(parameter.shape), stride)

    def _newest(self, dtype: torch.dtype) -> int | None:
        """Types may take turns from parameter to parameter; each has a bucket that is being filled."""
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
    """The small things of a sheet, on the host. told: the largest of what members tell."""

    losses: tuple[float, ...]
    pending: tuple[int, ...]
    told: tuple[float, ...]
    used: list[float]


class Sheet:
    """One lane's contribution, or the sum of several."""

    def __init__(self, layout: BucketLayout) -> None:
        self._layout = layout
        self.flats = layout.flats()
        self.gradients = [region.of(self.flats) for region in layout.gradients]
        self.moving = [region.of(self.flats) for region in layout.moving]
        self.losses = layout.losses.of(self.flats)
        self.pending = layout.pending.of(self.flats)
        self.told = layout.told.of(self.flats)
        self.used = layout.used.of(self.flats)

    def clear(self) -> None:
        for flat in self.flats:
            flat.zero_()

    def tail(self) -> Tail:
        """In one copy: the one moment in a step when the host waits for the device."""
        layout = self._layout
        memory = layout.tail.of(self.flats).cpu()
        losses, pending, told, used = (
            region.inside(memory, region.start - layout.tail.start).tolist()
            for region in (layout.losses, layout.pending, layout.told, layout.used)
        )
        return Tail(
            losses=tuple(losses),
            pending=tuple(map(int, pending)),
            told=tuple(map(max, told)),
            used=used,
        )


class LaneFold:
    """The sums one member holds of the step under way, by node of the tree. Kept until the step is committed:
    when others die, they need not be computed again.
    """

    def __init__(self, layout: BucketLayout) -> None:
        self._layout = layout
        self._free: list[Sheet] = []
        self.held: dict[tree.Node, Sheet] = {}
        self._merging: list[Sheet] = []
        self.target: tree.Node = (0, 0)
        """The node that what is being added will be held under."""

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that are in what is held."""
        nodes = [range(index << level, (index + 1) << level) for level, index in self.held]
        return frozenset(lane for lanes in nodes for lane in lanes)

    def take(self) -> Sheet:
        """A sheet that nobody uses; its contents are whatever they were."""
        return self._free.pop() if self._free else Sheet(self._layout)

    def give(self, sheet: Sheet) -> None:
        self._free.append(sheet)

    def clear(self, keep: Sheet | None) -> None:
        """Hold nothing any more. `keep` stays out of what is free."""
        self._free.extend(sheet for sheet in self.held.values() if sheet is not keep)
        self.held.clear()

    def open(self, lane: int, sheet: Sheet) -> Sheet:
        """Begin to add `sheet`, the contribution of `lane`.

        Returns the sheet that will hold the sum; a bucket of it is final once `merge` was called for that.
        """
        node: tree.Node = (0, lane)
        self._merging = [sheet]
        while (neighbour := self.held.pop(tree.sibling(node), None)) is not None:
            self._merging.append(neighbour)
            node = tree.parent(node)
        self.target = node
        return self._merging[-1]

    def merge(self, bucket: int) -> None:
        """Add up one bucket. Which operand comes first makes no difference to the bits of one addition."""
        for right, left in pairwise(self._merging):
            left.flats[bucket].add_(right.flats[bucket])

    def close(self, keep: Sheet | None) -> None:
        """All buckets are merged: the sum is held, the other sheets are free but for `keep`."""
        *freed, total = self._merging
        self._free.extend(sheet for sheet in freed if sheet is not keep)
        self.held[self.target] = total
        self._merging = []
