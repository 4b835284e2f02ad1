"""Reads `--shard` as a layout that `plan size` can check."""

from holdfast.economics.sizing.sizing import Wanted
from holdfast.run.mesh import MeshShape


def layout_of(mesh: MeshShape) -> Wanted:
    """The layout; an empty one if the model is not sharded."""
    if not mesh.sizes:
        return Wanted()
    return Wanted(tp=mesh.size("tp"), pp=mesh.size("pp"), shard=mesh.slices)
