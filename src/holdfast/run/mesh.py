"""The ranks that make one replica of the model: `--shard 4`, or `--shard shard=2,tp=2`.

If the model is sharded, a replica is several members together, each with its part. Ranks count through the
dimensions in the order `pp`, `shard`, `tp`, so tensor parallel ranks, which communicate most, are neighbours.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self, get_args

import msgspec

from holdfast.record.errors import InputError

MeshDimension = Literal["pp", "shard", "tp"]
DIMENSIONS: tuple[MeshDimension, ...] = get_args(MeshDimension)
RANKS_MAX = 4096
_HINT = "Give a number of ranks, --shard 4, or sizes by name, --shard shard=2,tp=2."


class MeshShape(msgspec.Struct, frozen=True):
    """The sizes of a replica's dimensions, in the order of `DIMENSIONS`. Empty for an unsharded model."""

    sizes: tuple[tuple[MeshDimension, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The shape that the user wrote. Raise `InputError` if it is not valid."""
        sizes: dict[MeshDimension, int] = {}
        for part in text.split(","):
            name, equals, number = part.strip().rpartition("=")
            dimension = next((one for one in DIMENSIONS if one == (name.strip() or "shard")), None)
            if dimension is None or dimension in sizes or not (name or not equals):
                raise InputError(f"--shard does not have a dimension {part.strip()!r}.", hint=_HINT)
            if not (number.isascii() and number.isdigit() and 0 < int(number) <= RANKS_MAX):
                raise InputError(f"--shard has no size in {part.strip()!r}.", hint=_HINT)
            sizes[dimension] = int(number)
        shape = cls(tuple((one, sizes[one]) for one in DIMENSIONS if one in sizes))
        if shape.slices & (shape.slices - 1):
            raise InputError(
                f"--shard {shape.slices} is not a power of two.",
                hint="Gradients are added along a binary tree: shard over 2, 4 or 8 ranks.",
            )
        return shape

    @property
    def ranks(self) -> int:
        """The number of members of one replica."""
        return math.prod(size for _, size in self.sizes)

    @property
    def slices(self) -> int:
        """The number of slices into which a replica cuts a lane's data, one for each rank along `shard`."""
        return self.size("shard")

    @property
    def last_stage(self) -> int:
        """The first rank of the last pipeline stage. It has the loss; others may not."""
        return self.ranks - self.ranks // self.size("pp")

    def size(self, dimension: MeshDimension) -> int:
        return dict(self.sizes).get(dimension, 1)

    def place(self, rail: int) -> dict[MeshDimension, int]:
        """The position of a rank of the replica in each dimension."""
        found: dict[MeshDimension, int] = {}
        for name, size in reversed(self.sizes):
            rail, found[name] = divmod(rail, size)
        return {**dict.fromkeys(DIMENSIONS, 0), **found}

    def beside(self, rail: int, dimension: MeshDimension) -> tuple[int, ...]:
        """The ranks of the replica that differ from this one only in this dimension, itself included."""
        stride = math.prod(
            size for name, size in self.sizes if DIMENSIONS.index(name) > DIMENSIONS.index(dimension)
        )
        first = rail - self.place(rail)[dimension] * stride
        return tuple(first + stride * number for number in range(self.size(dimension)))

    def check_fits(self, *, slots: int, nodes_min: int) -> None:
        """Raise `InputError` unless nodes with this many slots can hold whole replicas."""
        if self.ranks > slots * nodes_min:
            raise InputError(
                f"A replica has {self.ranks} ranks; the run may have only {slots * nodes_min} members.",
                hint="Start more processes, or shard over fewer ranks.",
            )
        if slots % self.ranks and self.ranks % slots:
            raise InputError(
                f"Replicas of {self.ranks} ranks do not fit nodes of {slots} members.",
                hint="Make one of them a multiple of the other.",
            )
        if slots % self.size("tp"):
            raise InputError(
                f"{self.size('tp')} tensor parallel ranks must be on one node, which has {slots} members.",
                hint="Make --nproc-per-node a multiple of tp.",
            )

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes)


def mirror_offset(nodes: Sequence[str]) -> int:
    """The offset from a rank to its mirror that puts as many mirrors as possible on another node. nodes: the
    nodes of a replica's ranks.
    """

    def apart(offset: int) -> int:
        return sum(node != nodes[(rail + offset) % len(nodes)] for rail, node in enumerate(nodes))

    return max(range(1, len(nodes)), key=apart)
