"""A sharded model's tensors: the part of each that this process has, and where that part belongs.

torch keeps a sharded parameter, its gradient and an optimizer's state of it as DTensors: a local tensor, and
how all ranks' local tensors make up the whole. Holdfast folds, sends, hashes and writes local tensors.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from holdfast.record.errors import InputError
from holdfast.run.mesh import DIMENSIONS, MeshDimension

TreePath = tuple[str | int, ...]
"""The keys that lead to a value in a state, outermost first."""


class Extent(NamedTuple):
    """Where a piece lies in the whole tensor: its offset and its size in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


Wanted = Callable[[int, TreePath, tuple[int, ...]], Extent | None]
"""The piece that is wanted of a tensor, given the number of the thing, the tensor's path in its state, and
the shape of the whole tensor. None: all of it.
"""


def is_sharded(tensor: object) -> bool:
    """Whether it is a DTensor. A script without any never loads the module that defines them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part of it that is here; all of it if it is not sharded. Not a copy."""
    local: torch.Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return local


def like(local: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The local tensor as a part of a whole, cut like `whole`."""
    if not is_sharded(whole):
        return local
    from torch.distributed.tensor import DTensor

    made: torch.Tensor = DTensor(local, whole._spec, requires_grad=False)  # type: ignore[attr-defined,no-untyped-call]
    return made


def locals_of(tree: Any) -> Any:
    """The tree with local tensors in place of sharded ones."""
    if isinstance(tree, torch.Tensor):
        return local_of(tree)
    if isinstance(tree, dict):
        twin = copy.copy(tree)  # with the attributes that state_dict() sets on it
        for key, value in tree.items():
            twin[key] = locals_of(value)
        return twin
    if type(tree) in (list, tuple):
        return type(tree)(map(locals_of, tree))
    return tree


def model_state(state: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """A module's state of local tensors, in the form that load_state_dict() needs. present: its current
    state.
    """
    found = copy.copy(dict(state))
    for key, value in state.items():
        if key in present and isinstance(value, torch.Tensor) and isinstance(present[key], torch.Tensor):
            found[key] = like(value, present[key])
    return found


def optimizer_state(state: dict[str, Any], parameters: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The same for an optimizer. A tensor with the shape of a parameter's part is also a part."""
    found = dict(state)
    found["state"] = {
        index: dict(noted) if isinstance(noted, dict) else noted for index, noted in state["state"].items()
    }
    for index, noted in found["state"].items():
        if isinstance(index, int) and is_sharded(parameters[index]):
            local = local_of(parameters[index])
            for key, value in noted.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape == local.shape:
                    noted[key] = like(value, parameters[index])
    return found


def extent_of(tensor: torch.Tensor) -> Extent:
    """The extent of the piece of a sharded tensor that is here. Pieces are cut as torch cuts them, with their
    size rounded up: the last may be smaller, and some are empty.
    """
    offsets, sizes = [0] * tensor.dim(), list(tensor.shape)
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    cuts = [
        (number, placement)
        for number, (_, placement) in enumerate(_placements(tensor))
        if not placement.is_replicate()
    ]
    # FSDP cuts what tensor parallelism has already cut; torch marks that with a stride.
    for number, placement in sorted(cuts, key=lambda cut: _is_strided(cut[1])):
        size = sizes[placement.dim]
        each = -(-size // mesh.size(number))
        begin = min(each * mesh.get_local_rank(number), size)
        offsets[placement.dim] += begin
        sizes[placement.dim] = min(each, size - begin)
    if tuple(sizes) != tuple(local_of(tensor).shape):
        raise InputError(
            f"A parameter of shape {tuple(tensor.shape)} is cut in a way that a checkpoint cannot describe.",
            hint="Shard it along a dimension that the ranks divide evenly.",
        )
    return Extent(tuple(offsets), tuple(sizes))


def sharded_in(tree: Any, path: TreePath = ()) -> Iterator[tuple[TreePath, torch.Tensor]]:
    """The sharded tensors of a state, with their paths."""
    if is_sharded(tree):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from sharded_in(value, (*path, key))
    elif type(tree) in (list, tuple):
        for number, value in enumerate(tree):
            yield from sharded_in(value, (*path, number))


def counts_here(parameter: torch.Tensor, place: Mapping[MeshDimension, int]) -> bool:
    """Whether this rank's part counts when all ranks' parts are added up: of ranks with the same part, one
    counts.
    """
    cut = {name for name, placement in _placements(parameter) if not placement.is_replicate()} | {"pp"}
    return all(name in cut or place[name] == 0 for name in DIMENSIONS)


def is_cut_along(parameter: torch.Tensor, dimension: MeshDimension) -> bool:
    found = _placements(parameter)
    return any(name == dimension and not placement.is_replicate() for name, placement in found)


def check_mesh(parameters: Sequence[torch.Tensor], groups: type) -> None:
    """Raise `InputError` if a parameter is sharded over anything but run.mesh. groups: the type of its
    groups.
    """
    for parameter in parameters:
        if not is_sharded(parameter):
            continue
        mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
        if not all(isinstance(mesh.get_group(number), groups) for number in range(mesh.ndim)):
            raise InputError(
                "The model is sharded over a mesh that the run does not know.",
                hint="Give run.mesh, or a part of it, to fully_shard and parallelize_module.",
            )
        if any(placement.is_partial() for _, placement in _placements(parameter)):
            raise InputError(
                "A parameter is a partial sum over ranks.", hint="Shard it, or have it whole on every rank."
            )


def _placements(parameter: torch.Tensor) -> list[tuple[str, Any]]:
    if not is_sharded(parameter):
        return []
    names = parameter.device_mesh.mesh_dim_names or ()  # type: ignore[attr-defined]
    return list(zip(names, parameter.placements, strict=True))  # type: ignore[attr-defined]


def _is_strided(placement: Any) -> bool:
    return hasattr(placement, "split_factor")
